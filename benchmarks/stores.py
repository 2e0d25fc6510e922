"""How much of an engine's own rate the stores keep, and how much faster than LangGraph they are.

Each section is one alternating run on one medium: whole runs of the loop of `loop` in Milecastle,
and beside them either a bare loop of commits (see `bare`) or the same loop in LangGraph.
Rates are commits a second for the bare loop and steps a second for the others.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from benchmarks import bare
from benchmarks.alternating import Peer, best_of
from benchmarks.bare import Clock, Row, Synchronous
from benchmarks.loop import STEPS, verify
from benchmarks.milecastle_loop import THREAD, LoopState, compile_loop, run
from benchmarks.postgres_server import fresh_schema, postgres_server
from benchmarks.report import Report, columns
from milecastle import App, ExecutionOptions
from milecastle.stores.opening import find_store

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

T = TypeVar("T")

DATABASE = "loop.db"
BARE, OURS, THEIRS = "bare", "milecastle", "langgraph"

FIGURES = {
    "sqlite_full_vs_bare": ("sqlite_full", BARE),
    "sqlite_normal_vs_bare": ("sqlite_normal", BARE),
    "sqlite_vs_langgraph": ("sqlite_beside", THEIRS),
    "jsonl_vs_bare": ("jsonl", BARE),
    "postgres_vs_bare": ("postgres", BARE),
    "postgres_vs_langgraph": ("postgres_beside", THEIRS),
    "postgres_group_vs_bare": ("postgres_group", BARE),
    "postgres_group_vs_langgraph": ("postgres_group_beside", THEIRS),
}
"""For each figure the section that it is from, and the peer whose rate ours is divided by."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Beside the bare loop many rounds, because what a disk takes for a sync changes from second to
    second, and longer groups: LangGraph takes a minute for a short one.
    """

    steps: int = STEPS
    rounds: int = 12
    peer_rounds: int = 4
    runs: int = 200
    group_steps: int = 200
    peer_group_steps: int = 20
    group_rounds: int = 8
    clock: Clock = perf_counter


QUICK = Size(
    steps=40, rounds=3, peer_rounds=1, runs=20, group_steps=3, peer_group_steps=3, group_rounds=1
)

Rates = dict[str, float]
"""For each peer, how many a second."""


@dataclass
class Section:
    """Peers that take turns; each with how many commits or steps one run of it makes."""

    rounds: int
    peers: list[Peer] = field(default_factory=list[Peer])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, name: str, count: int, once: Callable[[], float], repeats: int = 1) -> None:
        """Add a peer."""
        self.peers.append(Peer(name, once, repeats))
        self.counts[name] = count

    def race(self) -> Rates:
        """Let the peers take turns and return the rates of their best runs."""
        best = best_of(self.rounds, self.peers)
        return {name: self.counts[name] / seconds for name, seconds in best.items()}


def measure(*, quick: bool = False) -> Report:
    """Measure every store against its engine and, where it is installed, against LangGraph."""
    for variable in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        os.environ.pop(variable, None)
    rates = compare(QUICK if quick else Size())
    return Report(figures=_figures(rates), table=_table(rates))


def compare(size: Size) -> dict[str, Rates]:
    """Return the rates of each section that can be measured here."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rates = {
            "sqlite_full": sqlite(folder, size, "full"),
            "sqlite_full_with_room": sqlite_with_room(folder, size),
            "sqlite_normal": sqlite(folder, size, "normal"),
            "sqlite_group": sqlite_group(folder, size),
            "jsonl": jsonl(folder, size),
        }
        if _installed("langgraph.checkpoint.sqlite"):
            rates["sqlite_beside"] = sqlite_beside(folder, size)
        cluster = stack.enter_context(postgres_server())
        if cluster is None:
            return rates
        rates["postgres"] = postgres(cluster, size)
        rates["postgres_group"] = postgres_group(cluster, size)
        if _installed("langgraph.checkpoint.postgres"):
            rates["postgres_beside"] = postgres_beside(cluster, size)
            rates["postgres_group_beside"] = postgres_group_beside(cluster, size)
        return rates


# -- sections


def sqlite(folder: Path, size: Size, synchronous: Synchronous) -> Rates:
    """One run at a time on an SQLite file."""
    steps, section = size.steps, Section(size.rounds)
    url = partial(_sqlite_url, synchronous=synchronous)
    rows = sqlite_rows(folder, steps)
    section.add(BARE, len(rows), lambda: bare_sqlite(folder, rows, synchronous, size.clock))
    section.add(
        OURS,
        steps,
        lambda: in_new_folder(folder, lambda place: ours(url(place), steps, size.clock)),
    )
    return section.race()


def sqlite_with_room(folder: Path, size: Size) -> Rates:
    """One run at a time, every commit synced, beside a bare loop that makes room as we do."""
    steps, section = size.steps, Section(size.rounds)
    rows = sqlite_rows(folder, steps)

    def run_bare(place: Path) -> float:
        find_store(_sqlite_url(place)).close()
        return bare.sqlite_inserts_with_room(place / DATABASE, rows)

    def run_ours(place: Path) -> float:
        return ours(_sqlite_url(place), steps)

    section.add(BARE, len(rows), lambda: in_new_folder(folder, run_bare))
    section.add(OURS, steps, lambda: in_new_folder(folder, run_ours))
    return section.race()


def sqlite_beside(folder: Path, size: Size) -> Rates:
    """The long loop on an SQLite file, ours and LangGraph's."""
    from benchmarks.langgraph_stores import sqlite_loop

    steps, section = size.steps, Section(size.peer_rounds)

    def run_ours(place: Path) -> float:
        return ours(_sqlite_url(place), steps)

    def run_theirs(place: Path) -> float:
        return sqlite_loop(place / DATABASE, steps)

    section.add(OURS, steps, lambda: in_new_folder(folder, run_ours))
    section.add(THEIRS, steps, lambda: in_new_folder(folder, run_theirs))
    return section.race()


def sqlite_group(folder: Path, size: Size) -> Rates:
    """Many runs at once on one SQLite file."""
    section, runs, steps = Section(size.group_rounds), size.runs, size.group_steps
    rows = sqlite_rows(folder, size.steps)

    def run_ours(place: Path) -> float:
        return our_group(_sqlite_url(place), runs, steps, size.clock)

    section.add(BARE, len(rows), lambda: bare_sqlite(folder, rows, "full", size.clock))
    section.add(OURS, runs * steps, lambda: in_new_folder(folder, run_ours))
    return section.race()


def jsonl(folder: Path, size: Size) -> Rates:
    """One run at a time on a folder of files."""
    steps, section = size.steps, Section(size.rounds)
    lines = in_new_folder(folder, lambda place: _jsonl_lines(place, steps))

    def run_bare(place: Path) -> float:
        return bare.file_writes(place / "log", lines, size.clock)

    def run_ours(place: Path) -> float:
        return ours(f"file://{place}", steps, size.clock)

    section.add(BARE, len(lines), lambda: in_new_folder(folder, run_bare))
    section.add(OURS, steps, lambda: in_new_folder(folder, run_ours))
    return section.race()


def postgres(cluster: Cluster, size: Size) -> Rates:
    """One run at a time on PostgreSQL."""
    steps, section = size.steps, Section(size.rounds)
    rows = _postgres_rows(cluster, steps)

    def run_ours(url: str) -> float:
        return ours(url, steps, size.clock)

    section.add(BARE, len(rows), lambda: _bare_postgres(cluster, rows, size.clock))
    section.add(OURS, steps, lambda: _in_new_schema(cluster, run_ours))
    return section.race()


def postgres_beside(cluster: Cluster, size: Size) -> Rates:
    """The long loop on PostgreSQL, ours and LangGraph's."""
    from benchmarks.langgraph_stores import postgres_loop

    steps, section = size.steps, Section(size.peer_rounds)
    section.add(OURS, steps, lambda: _in_new_schema(cluster, lambda url: ours(url, steps)))
    section.add(THEIRS, steps, lambda: postgres_loop(cluster.url, steps))
    return section.race()


def postgres_group(cluster: Cluster, size: Size) -> Rates:
    """Many runs at once in one process on PostgreSQL; the bare loop has one connection."""
    section, runs, steps = Section(size.group_rounds), size.runs, size.group_steps
    rows = _postgres_rows(cluster, size.steps)

    def run_ours(url: str) -> float:
        return our_group(url, runs, steps, size.clock)

    section.add(BARE, len(rows), lambda: _bare_postgres(cluster, rows, size.clock))
    section.add(OURS, runs * steps, lambda: _in_new_schema(cluster, run_ours))
    return section.race()


def postgres_group_beside(cluster: Cluster, size: Size) -> Rates:
    """Many runs at once in one process on PostgreSQL, ours and LangGraph's."""
    from benchmarks.langgraph_stores import postgres_group as their_group

    section, runs, steps = Section(max(1, size.peer_rounds // 2)), size.runs, size.peer_group_steps

    def run_ours(url: str) -> float:
        return our_group(url, runs, steps)

    section.add(OURS, runs * steps, lambda: _in_new_schema(cluster, run_ours))
    section.add(THEIRS, runs * steps, lambda: their_group(cluster.url, runs, steps))
    return section.race()


# -- ours


def ours(url: str, steps: int, clock: Clock = perf_counter) -> float:
    """Return the seconds of one loop on a store that is open and has been used, as the peers' are.

    PostgreSQL plans a statement again the first five times.
    """
    app = compile_loop(steps, store=url)
    for number in range(6):
        app.invoke({"n": steps, "items": []}, thread=f"before-{number}")
    began = clock()
    state = run(app, steps)
    seconds = clock() - began
    _close(app)
    verify(state, steps)
    return seconds


def our_group(url: str, runs: int, steps: int, clock: Clock = perf_counter) -> float:
    """Return the seconds of many loops at once, in one process on one event loop."""
    app = compile_loop(steps, store=url, is_async=True)
    began = clock()
    states = asyncio.run(_run_all(app, runs, steps))
    seconds = clock() - began
    _close(app)
    for state in states:
        verify(state, steps)
    return seconds


async def _run_all(app: App[LoopState], runs: int, steps: int) -> list[LoopState]:
    options = ExecutionOptions(max_steps=steps)
    start: LoopState = {"n": 0, "items": []}
    calls = (app.ainvoke(start, thread=f"loop-{run}", options=options) for run in range(runs))
    return [result.state for result in await asyncio.gather(*calls)]


def _close(app: App[LoopState]) -> None:
    if app.has_store:
        app.store.close()


# -- places to write to


def in_new_folder(folder: Path, work: Callable[[Path], T]) -> T:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return work(Path(name))


def _in_new_schema(cluster: Cluster, work: Callable[[str], T]) -> T:
    with fresh_schema(cluster) as schema:
        return work(cluster.url_of(schema))


def _sqlite_url(place: Path, *, synchronous: Synchronous = "full") -> str:
    return f"sqlite:///{place / DATABASE}?synchronous={synchronous}"


def sqlite_rows(folder: Path, steps: int) -> list[Row]:
    def work(place: Path) -> list[Row]:
        ours(_sqlite_url(place, synchronous="normal"), steps)
        return bare.sqlite_rows(place / DATABASE)

    return in_new_folder(folder, work)


def bare_sqlite(folder: Path, rows: list[Row], synchronous: Synchronous, clock: Clock) -> float:
    def work(place: Path) -> float:
        find_store(_sqlite_url(place)).close()
        return bare.sqlite_inserts(place / DATABASE, rows, synchronous, clock)

    return in_new_folder(folder, work)


def _jsonl_lines(place: Path, steps: int) -> list[bytes]:
    ours(f"file://{place}", steps)
    (log,) = place.glob(f"threads/*/{THREAD}.jsonl")
    return bare.file_lines(log)


def _postgres_rows(cluster: Cluster, steps: int) -> list[Row]:
    with fresh_schema(cluster) as schema:
        ours(cluster.url_of(schema), steps)
        return bare.postgres_rows(cluster.url, schema)


def _bare_postgres(cluster: Cluster, rows: list[Row], clock: Clock) -> float:
    with fresh_schema(cluster) as schema:
        find_store(cluster.url_of(schema)).close()
        return bare.postgres_inserts(cluster.url, schema, rows, clock)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# -- what is reported


def _figures(rates: dict[str, Rates]) -> dict[str, float | None]:
    return {
        figure: _ratio(rates.get(section, {}), peer) for figure, (section, peer) in FIGURES.items()
    }


def _ratio(rates: Rates, peer: str) -> float | None:
    return round(rates[OURS] / rates[peer], 3) if peer in rates else None


def _table(rates: dict[str, Rates]) -> str:
    rows: list[tuple[str, ...]] = [
        ("steps a second", "bare", "Milecastle", "LangGraph", "of bare", "times LangGraph")
    ]
    for section, found in rates.items():
        speeds = [f"{found[peer]:.0f}" if peer in found else "-" for peer in (BARE, OURS, THEIRS)]
        ratios = [_ratio(found, peer) for peer in (BARE, THEIRS)]
        rows.append((section, *speeds, *("-" if one is None else f"{one:.2f}" for one in ratios)))
    return columns(rows)
