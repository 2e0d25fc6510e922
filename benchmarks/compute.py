"""A map of 10 ms items elsewhere, beside the bare thing: `concurrent.futures`, and Ray.

An item takes 10 ms of processor time. Ours commits the attempt and the outcome of each item to a
SQLite file; the bare pool keeps nothing. All have as many processes as there are processors, and
have them before the clock starts. On Ray each item is one message on both sides, and as many are
in flight. Without Ray, its figures are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Annotated, Any, Literal, TypedDict

from benchmarks.alternating import Peer, best_of
from benchmarks.report import Report, columns
from milecastle import END, START, ExecutionConfig, Ray, StateGraph, append, open_store
from milecastle.compute.processes import usable_cpus

ITEMS = 10_000
QUICK_ITEMS = 200
ROUNDS = 3
QUICK_ROUNDS = 1
SECONDS = 0.01
IN_FLIGHT = 64


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


def mapped(run_on: Literal["process"] | Ray) -> StateGraph[Work]:
    """The map, elsewhere."""
    made = StateGraph(Work)
    made.add_node("split", split)
    made.add_node("item", item, run_on=run_on)
    made.add_edge(START, "split")
    made.map("split", "item", over="numbers", item="number")
    made.add_edge("item", END)
    return made.with_default_config(ExecutionConfig(max_parallel=IN_FLIGHT))


graph = mapped("process")
graph_on_ray = mapped(Ray(resources={"ours": 1}))


def ours(items: int, graph: StateGraph[Work]) -> float:
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
    figures = on_processes(items, rounds)
    if find_spec("ray") is not None:
        figures |= on_ray(items, rounds)
    rows = [("", "items/s"), *((name, f"{value:,.2f}") for name, value in figures.items())]
    return Report(figures, columns(rows))


def compared(
    name: str, items: int, rounds: int, graph: Any, bare: Callable[[], None]
) -> dict[str, float]:
    """The figures of one place."""

    def timed() -> float:
        start = perf_counter()
        bare()
        return perf_counter() - start

    best = best_of(rounds, [Peer("ours", lambda: ours(items, graph)), Peer("bare", timed)])
    return {
        f"{name}_items_per_second": round(items / best["ours"]),
        f"{name}_bare_items_per_second": round(items / best["bare"]),
        f"{name}_vs_bare": round(best["bare"] / best["ours"], 3),
    }


def on_processes(items: int, rounds: int) -> dict[str, float]:
    """Processes of this machine."""
    with ProcessPoolExecutor(usable_cpus(), mp_context=get_context("spawn")) as pool:
        ours(8, graph)
        list(pool.map(compute, range(8)))

        def bare() -> None:
            verify([*pool.map(compute, range(items))], items)

        return compared("process", items, rounds, graph, bare)


def on_ray(items: int, rounds: int) -> dict[str, float]:
    """A Ray cluster of this machine: tasks of Ray, of which as many are in flight.

    Each of the two has its own resource, so that the workers of one do not keep out the other.
    """
    import ray as found  # pyright: ignore[reportMissingImports] - measured where it is installed

    ray: Any = found
    workers = usable_cpus()
    lanes = {"ours": workers, "bare": workers}
    ray.init(
        num_cpus=2 * workers,
        resources=lanes,
        log_to_driver=False,
        include_dashboard=False,
        logging_level="ERROR",
    )
    remote = ray.remote(resources={"bare": 1})(compute)

    def bare() -> None:
        results, running, numbers = dict[int, int](), dict[Any, int](), iter(range(items))
        while True:
            for number in islice(numbers, IN_FLIGHT - len(running)):
                running[remote.remote(number)] = number
            if not running:
                break
            for ref in ray.wait([*running])[0]:
                results[running.pop(ref)] = ray.get(ref)
        verify([results[number] for number in range(items)], items)

    try:
        ray.get([remote.remote(number) for number in range(8)])
        ours(8, graph_on_ray)
        return compared("ray", items, rounds, graph_on_ray, bare)
    finally:
        ray.shutdown()
