"""The same faults on every runtime: one order process, one log of what the outside world saw.

    python -m benchmarks faults [--runtime NAME]... [--fault NAME]... [--quick] [--json]

A runtime that is not installed, or whose server is missing, is left out and named.
docs/evidence/faults.md says how to read the table, and what each runtime promises.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.faults.injections import FAULTS, Cell, NotApplicable
from benchmarks.faults.world import RUNTIMES, World, a_world
from benchmarks.postgres_server import postgres_server
from benchmarks.report import Report, columns

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

PEERS = {"langgraph": "langgraph", "dbos": "dbos", "temporal": "temporalio"}
WRONG = ("lost", "wrong", "repeated", "skipped", "stuck")
QUICK = ("kill-worker", "approve-twice")
SEED = 1


class Result(NamedTuple):
    """A cell of the table, or why there is none."""

    runtime: str
    fault: str
    cell: Cell | None
    why: str = ""

    @property
    def text(self) -> str:
        """The cell in a few words."""
        if self.cell is None:
            return self.why
        counts = self.cell.verdict.counts
        if not self.cell.hits:
            return f"no result: none of {self.cell.faults} faults hit work in flight"
        found = [f"{counts[name]} {name}" for name in (*WRONG, "refused") if counts[name]]
        return f"{counts['done']} of {counts['orders']} done; {', '.join(found) or 'ok'}"


def measure(
    *, quick: bool, runtimes: Sequence[str] = (), faults: Sequence[str] = (), times: int = 0
) -> Report:
    """Try every fault on every runtime, or those that are named."""
    chosen = runtimes or (("milecastle-sqlite",) if quick else tuple(RUNTIMES))
    tried = faults or (QUICK if quick else tuple(FAULTS))
    results = list[Result]()
    with postgres_server() as cluster:
        for runtime in chosen:
            for fault in tried:
                results.append(one_cell(runtime, fault, cluster, times or (3 if quick else 10)))
                print(json.dumps(as_document(results[-1])), file=sys.stderr, flush=True)
    return report(results)


def one_cell(runtime: str, fault: str, cluster: Cluster | None, times: int) -> Result:
    """Try one fault on one runtime."""
    peer = RUNTIMES[runtime].peer
    if peer in PEERS and find_spec(PEERS[peer]) is None:
        return Result(runtime, fault, None, f"{PEERS[peer]} is not installed")
    if RUNTIMES[runtime].store == "postgres" and cluster is None:
        return Result(runtime, fault, None, "there is no PostgreSQL")
    with ExitStack() as stack:
        disk: Path | None = None
        if fault == "fill-disk":
            from tests.process.power_cut import a_disk, available

            if why := available():
                return Result(runtime, fault, None, why)
            disk = stack.enter_context(a_disk("ext4")).place
        world: World = stack.enter_context(a_world(runtime, cluster, disk))
        try:
            return Result(runtime, fault, FAULTS[fault](world, times, SEED))
        except NotApplicable as why:
            return Result(runtime, fault, None, str(why))


def as_document(result: Result) -> dict[str, object]:
    """Everything of a cell, for the record."""
    document: dict[str, object] = {"runtime": result.runtime, "fault": result.fault}
    if result.cell is None:
        return document | {"why": result.why}
    cell = result.cell
    return document | {
        **cell.verdict.counts,
        "faults": cell.faults,
        "hits": cell.hits,
        "recovery": [round(seconds, 2) for seconds in cell.recovery],
        "said": dict(cell.said),
        "notes": cell.verdict.notes[:12],
    }


def report(results: Sequence[Result]) -> Report:
    """A table of all cells; figures of the product, and how much was tried."""
    ours = [result.cell for result in results if result.runtime.startswith("milecastle")]
    figures: dict[str, float | None] = {
        f"milecastle_{name}": sum(cell.verdict.counts[name] for cell in ours if cell)
        for name in WRONG
    }
    tried = [result for result in results if result.cell is not None and result.cell.hits]
    figures["runtimes"] = len({RUNTIMES[result.runtime].peer for result in tried})
    figures["faults"] = len({result.fault for result in tried})
    figures["cells"] = len(tried)
    rows = [("fault", "runtime", "outcome")]
    rows += [(result.fault, result.runtime, result.text) for result in results]
    return Report(figures, columns(rows))
