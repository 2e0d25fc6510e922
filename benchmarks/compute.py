"""A map of 10 ms items in other processes, beside the bare pool of `concurrent.futures`.

An item takes 10 ms of processor time. Ours commits the attempt and the outcome of each item to a
SQLite file; the bare pool keeps nothing. Both have as many processes as there are processors, and
have them before the clock starts.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Annotated, Any, TypedDict

from benchmarks.alternating import Peer, best_of
from benchmarks.report import Report, columns
from milecastle import END, START, ExecutionConfig, StateGraph, append, open_store

ITEMS = 10_000
QUICK_ITEMS = 200
ROUNDS = 3
QUICK_ROUNDS = 1
SECONDS = 0.01


class Work(TypedDict, total=False):
    """The state of the map."""

    numbers: list[int]
    number: int
    found: Annotated[list[int], append]


def compute(number: int) -> int:
    """Take 10 ms of a processor."""
    end, found = thread_time() + SECONDS, number
    while thread_time() < end:
        found = (found * 31 + 7) % 1_000_003
    return number * 2


def split(state: Work) -> None:
    """Nothing is done before the map."""


def item(state: Work) -> Work:
    """One item of the map."""
    return {"found": [compute(state.get("number", 0))]}


graph = StateGraph(Work)
graph.add_node("split", split)
graph.add_node("item", item, run_on="process")
graph.add_edge(START, "split")
graph.map("split", "item", over="numbers", item="number")
graph.add_edge("item", END)
graph.with_default_config(ExecutionConfig(max_parallel=64))


def ours(items: int) -> float:
    """Seconds of our map."""
    with TemporaryDirectory(dir=Path.cwd()) as folder:
        store: Any = open_store(f"sqlite:///{folder}/compute.db")
        try:
            app = graph.compile(store=store)
            start = perf_counter()
            state = app.invoke({"numbers": [*range(items)]}, thread="compute").state
            seconds = perf_counter() - start
        finally:
            store.close()
    verify(state.get("found", []), items)
    return seconds


def verify(found: list[int], items: int) -> None:
    """Every item, in order."""
    if found != [number * 2 for number in range(items)]:
        raise AssertionError("the map lost an item, or their order")


def measure(*, quick: bool = False) -> Report:
    """Time both in turns; the speed of ours as a part of the bare one's."""
    items, rounds = (QUICK_ITEMS, QUICK_ROUNDS) if quick else (ITEMS, ROUNDS)
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:

        def bare() -> float:
            start = perf_counter()
            found = [*pool.map(compute, range(items))]
            seconds = perf_counter() - start
            verify(found, items)
            return seconds

        ours(8)
        list(pool.map(compute, range(8)))
        peers = [Peer("ours", lambda: ours(items)), Peer("bare", bare)]
        best = best_of(rounds, peers)
    figures = {
        "process_items_per_second": items / best["ours"],
        "process_bare_items_per_second": items / best["bare"],
        "process_vs_bare": best["bare"] / best["ours"],
    }
    rows = [
        ("", "items/s"),
        ("processes, ours", f"{figures['process_items_per_second']:,.1f}"),
        ("concurrent.futures", f"{figures['process_bare_items_per_second']:,.1f}"),
        ("ours beside it", f"{figures['process_vs_bare']:.2f}"),
    ]
    return Report(figures, columns(rows))
