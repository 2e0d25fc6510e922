"""The command line of the benchmarks: one verb for each thing that is measured."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    agents,
    archive,
    compute,
    cpu,
    edited_code,
    fanout,
    faults,
    fleet,
    flows,
    growth,
    import_time,
    incremental,
    long_term_memory,
    memory_growth,
    messages,
    saver,
    scale,
    server,
    steps,
    stores,
    telemetry,
)
from benchmarks.alternating import PeerMissing
from benchmarks.faults.injections import FAULTS
from benchmarks.faults.world import RUNTIMES
from benchmarks.report import Report

ROOT = Path(__file__).resolve().parent.parent
SAVED = "docs/evidence/figures/measured"
"""Where scripts/charts.py looks for what was measured."""

VERBS: dict[str, tuple[Callable[..., Report], str]] = {
    "steps": (steps.measure, "time of a step, beside LangGraph"),
    "import": (import_time.measure, "time of a cold import, and what an installation brings"),
    "stores": (stores.measure, "steps a second on each store, beside its engine and LangGraph"),
    "cpu": (
        cpu.measure,
        "processor time of a step, beside the bare loop that does the same writes",
    ),
    "growth": (growth.measure, "what a long thread takes on disk and to read, beside LangGraph"),
    "archive": (archive.measure, "a store most of which is archived, beside one that is not"),
    "incremental": (incremental.measure, "planning beside hashing; a run with nothing to do"),
    "faults": (faults.measure, "the same faults on Milecastle, LangGraph, DBOS and Temporal"),
    "fanout": (fanout.measure, "an item of a fan-out on SQLite, beside a bare loop and LangGraph"),
    "compute": (compute.measure, "items of a map in processes, beside concurrent.futures"),
    "fleet": (fleet.measure, "fairness of workers, and what many waiting threads cost them"),
    "flows": (flows.measure, "recorded calls beside steps, resuming; steps beside DBOS, Temporal"),
    "edits": (edited_code.measure, "what a changed flow and a changed DBOS workflow make of a run"),
    "messages": (messages.measure, "sending and receiving, beside INSERT, a step, submit and DBOS"),
    "agents": (agents.measure, "turns and bytes of an agent, beside LangChain's on LangGraph"),
    "server": (server.measure, "readers of events while their server is killed; growth of pages"),
    "telemetry": (telemetry.measure, "what the OpenTelemetry observer adds to a step"),
    "saver": (saver.measure, "the LangGraph saver beside LangGraph's own"),
    "scale": (scale.measure, "calls beside ten million checkpoints; 1, 2 and 4 databases"),
    "memory": (long_term_memory.measure, "remembering beside a step, SELECT and LangGraph's store"),
    "held": (memory_growth.measure, "bytes that the memory store holds after a long loop"),
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, (_, meaning) in VERBS.items():
        verb = verbs.add_parser(name, help=meaning)
        verb.add_argument("--json", action="store_true", help="print one flat JSON object")
        verb.add_argument(
            "--save", action="store_true", help=f"write {SAVED}/{name}.json, for charts"
        )
        verb.add_argument("--quick", action="store_true", help="fewer rounds, rougher figures")
        if name == "faults":
            verb.add_argument("--runtime", action="append", choices=RUNTIMES, help="only this one")
            verb.add_argument("--fault", action="append", choices=FAULTS, help="only this one")
            verb.add_argument("--times", type=int, default=0, help="faults in each cell")
    return parser.parse_args(arguments)


def measured(chosen: argparse.Namespace) -> Report:
    """Measure what was asked for."""
    if chosen.verb == "faults":
        runtimes, tried = chosen.runtime or (), chosen.fault or ()
        return faults.measure(
            quick=chosen.quick, runtimes=runtimes, faults=tried, times=chosen.times
        )
    measure, _ = VERBS[chosen.verb]
    return measure(quick=chosen.quick)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    chosen = parse(arguments)
    try:
        report = measured(chosen)
    except PeerMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    if chosen.save:
        text = json.dumps(report.figures, indent=2) + "\n"
        (ROOT / SAVED).mkdir(exist_ok=True)
        (ROOT / SAVED / f"{chosen.verb}.json").write_text(text, encoding="utf-8")
    print(json.dumps(report.figures) if chosen.json else report.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
