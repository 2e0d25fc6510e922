"""The measurement behind ADR 0007: what large values cost in the log itself.

Random bytes, so that nothing is compressed away. Each case is a thread in an SQLite file; the
figure is the size of the closed file to the bytes of every value that was ever new.

    python -m benchmarks.adr_0007_large_values
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypedDict

from benchmarks.report import columns
from milecastle import END, START, App, ExecutionOptions, StateGraph, Store
from milecastle.app.opening import find_store

LARGE = 5_000_000
STEPS = 40


class Large(TypedDict, total=False):
    """A counter beside large values."""

    n: int
    kept: bytes
    other: bytes


def compile_loop(store: Store, update: Callable[[int], Large]) -> App[Large]:
    """A loop of which each step writes what ``update`` makes of its number."""

    def turn(state: Large) -> Large:
        n = state.get("n", 0)
        return {**update(n), "n": n + 1}

    def route(state: Large) -> str:
        return "turn" if state.get("n", 0) < STEPS else END

    graph = StateGraph(Large)
    graph.add_node("turn", turn)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges("turn", route, ["turn", END])
    return graph.compile(store=store)


def never(app: App[Large]) -> int:
    """One large value that no step changes."""
    app.invoke({"kept": os.urandom(LARGE)}, "t", options=ExecutionOptions(max_steps=STEPS))
    return LARGE


def forked(app: App[Large]) -> int:
    """The same, and ten branches of it."""
    new = never(app)
    for number in range(10):
        app.fork("t", 2, as_thread=f"t{number}")
    return new


def each_step(app: App[Large]) -> int:
    """One large value that stays, and one that each step writes anew."""
    return never(app) + STEPS * LARGE


CASES: dict[str, tuple[Callable[[int], Large], Callable[[App[Large]], int]]] = {
    "one that no step changes": (lambda n: {}, never),
    "the same, and ten forks": (lambda n: {}, forked),
    "one that stays, one anew each step": (lambda n: {"other": os.urandom(LARGE)}, each_step),
}


def main() -> None:
    """Print the ratio of each case."""
    rows: list[tuple[str, ...]] = [("a value of 5 MB", "MB written", "to what was new")]
    for name, (update, run) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "large.db"
            with closing(find_store(f"sqlite:///{path}?synchronous=normal")) as store:
                new = run(compile_loop(store, update))
            size = path.stat().st_size
        rows.append((name, f"{size / 1e6:.1f}", f"{size / new:.2f}"))
    print(columns(rows))


if __name__ == "__main__":
    main()
