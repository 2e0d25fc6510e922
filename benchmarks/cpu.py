"""The processor time of a step, to that of the bare loop that does the same writes.

Processor time is that of this process, its threads and its system calls included, and does not
depend on what a disk or another process does meanwhile. A server's is not in it. Peers take turns;
best of several.

- ``no_store``, ``memory``: beside a loop that calls the node and the router and applies the update;
  for ``memory`` it also encodes the update and appends the bytes to a list.
- ``sqlite_normal``, ``sqlite_full``, ``jsonl``, ``postgres``: beside the loops of ``bare``.
- ``sqlite_group``, ``postgres_group``: a step of 200 runs at once, beside the same loops.
- ``fanout_item``: beside the loop of ``fanout``.
- ``first_invoke``, ``submit``: the whole call for a new thread, one node, on SQLite, beside one
  insert into the log.
- ``fleet_run``: a submitted run of one step by a worker, beside one statement that inserts an
  entry and updates the thread's line and the record of the run.

For each of them also ``..._us``: our processor time in microseconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Literal

import msgspec.msgpack

from benchmarks import fanout, fleet_speed, stores
from benchmarks.bare import Clock
from benchmarks.loop import verify
from benchmarks.milecastle_loop import LoopState, advance, compile_loop, memory, no_store
from benchmarks.postgres_server import postgres_server
from benchmarks.report import Report, columns
from benchmarks.stores import BARE, OURS, Rates, Section, Size

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

NAMES = (
    "no_store",
    "memory",
    "sqlite_normal",
    "sqlite_full",
    "jsonl",
    "sqlite_group",
    "fanout_item",
    "first_invoke",
    "submit",
    "postgres",
    "postgres_group",
    "fleet_run",
)

BareLoop = Callable[[int], float]
OurLoop = Callable[[int, Clock], float]
"""Do a loop of so many steps and return its seconds."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    size: Size
    repeats: int = 10
    items: int = 5_000
    jobs: int = 1_000


FULL = Scale(Size(rounds=5, group_steps=50, group_rounds=3, clock=process_time))
QUICK = Scale(Size(100, 2, runs=20, group_steps=5, group_rounds=1, clock=process_time), 1, 500, 100)


def measure(*, quick: bool = False) -> Report:
    """Measure what can be measured here."""
    rates = compare(QUICK if quick else FULL)
    figures: dict[str, float | None] = dict.fromkeys(NAMES)
    figures |= {name: round(found[BARE] / found[OURS], 2) for name, found in rates.items()}
    figures |= {f"{name}_us": round(1e6 / found[OURS], 1) for name, found in rates.items()}
    return Report(figures=figures, table=_table(rates))


def compare(scale: Scale) -> dict[str, Rates]:
    """For each section how many steps the bare loop and ours do in a second of the processor."""
    size = scale.size
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rates = {
            "no_store": in_memory(scale, bare_loop, no_store),
            "memory": in_memory(scale, bare_writes, memory),
            "sqlite_normal": stores.sqlite(folder, size, "normal"),
            "sqlite_full": stores.sqlite(folder, size, "full"),
            "jsonl": stores.jsonl(folder, size),
            "sqlite_group": stores.sqlite_group(folder, size),
            "fanout_item": fan_out(scale),
            "first_invoke": new_threads(folder, scale, "invoke"),
            "submit": new_threads(folder, scale, "submit"),
        }
        cluster = stack.enter_context(postgres_server())
        if cluster is not None:
            rates["postgres"] = stores.postgres(cluster, size)
            rates["postgres_group"] = stores.postgres_group(cluster, size)
            rates["fleet_run"] = fleet_run(cluster, scale)
        return rates


def in_memory(scale: Scale, run_bare: BareLoop, run_ours: OurLoop) -> Rates:
    """The loop without a medium."""
    steps, section = scale.size.steps, Section(scale.size.rounds)
    section.add(BARE, steps, lambda: run_bare(steps), scale.repeats)
    section.add(OURS, steps, lambda: run_ours(steps, process_time), scale.repeats)
    return section.race()


def fan_out(scale: Scale) -> Rates:
    """An item of a fan-out on SQLite."""
    section = Section(scale.size.rounds)
    section.add(BARE, scale.items, lambda: fanout.bare(scale.items, process_time))
    section.add(OURS, scale.items, lambda: fanout.ours(scale.items, process_time))
    return section.race()


def new_threads(folder: Path, scale: Scale, verb: Literal["invoke", "submit"]) -> Rates:
    """Threads that are new to an SQLite file."""
    size, jobs = scale.size, scale.jobs
    section = Section(size.rounds)
    rows = stores.sqlite_rows(folder, size.steps)

    def run_ours(place: Path) -> float:
        app = compile_loop(1, store=f"sqlite:///{place / 'new.db'}?synchronous=normal")
        call: Callable[..., object] = getattr(app, verb)
        call({"n": 0, "items": []}, thread="first of all")
        began = process_time()
        for number in range(jobs):
            call({"n": 0, "items": []}, thread=f"{number}")
        return process_time() - began

    section.add(BARE, len(rows), lambda: stores.bare_sqlite(folder, rows, "normal", process_time))
    section.add(OURS, jobs, lambda: stores.in_new_folder(folder, run_ours))
    return section.race()


def fleet_run(cluster: Cluster, scale: Scale) -> Rates:
    """A run of one step that was submitted before."""
    section = Section(scale.size.group_rounds)
    jobs = scale.jobs
    section.add(BARE, jobs, lambda: fleet_speed.bare_runs(cluster, jobs, process_time))
    section.add(OURS, jobs, lambda: fleet_speed.worked(cluster, jobs, 1, process_time))
    return section.race()


# -- bare loops


def bare_writes(steps: int) -> float:
    """Seconds of the loop that also encodes and keeps each update."""
    kept: list[bytes] = []
    encode = msgspec.msgpack.Encoder().encode
    seconds = bare_loop(steps, lambda update: kept.append(encode(update)))
    if len(kept) != steps:
        raise AssertionError("an update was not kept")
    return seconds


def bare_loop(steps: int, keep: Callable[[LoopState], None] | None = None) -> float:
    """Seconds of the loop in a few lines of Python."""

    def route(state: LoopState) -> bool:
        return state["n"] < steps

    state: LoopState = {"n": 0, "items": []}
    began = process_time()
    while route(state):
        update = advance(state)
        state = {"n": update["n"], "items": state["items"] + update["items"]}
        if keep is not None:
            keep(update)
    seconds = process_time() - began
    verify(state, steps)
    return seconds


def _table(rates: dict[str, Rates]) -> str:
    rows: list[tuple[str, ...]] = [("µs of the processor", "bare", "Milecastle", "times bare")]
    for name, found in rates.items():
        bare, ours = (1e6 / found[peer] for peer in (BARE, OURS))
        rows.append((name, f"{bare:.2f}", f"{ours:.2f}", f"{ours / bare:.2f}"))
    return columns(rows)
