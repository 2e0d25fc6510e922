"""How much the process that drives a map holds for each of its items."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from milecastle import END, START, StateGraph
from tests.unit.compute.in_threads import app_here, app_on, pool_of

FEW, MANY = 500, 3_000
MOST_BYTES = 900
"""For an item whose task is named, sent, ended and applied: its input and its update, each a dict
of 184 bytes, are part of it."""
MOST_BYTES_ELSEWHERE = 1_000
"""The same, and its share of the items that are on their way: more of them on a busy machine."""


class Total(TypedDict, total=False):
    numbers: list[int]
    number: int
    total: Annotated[int, add]


def split(state: Total) -> None:
    return None


def item(state: Total) -> Total:
    return {"total": state.get("number", 0) + 1_000_000}


def mapped(**options: Any) -> StateGraph[Total]:
    made = StateGraph(Total)
    made.add_node("split", split)
    made.add_node("item", item, **options)
    made.add_edge(START, "split")
    made.map("split", "item", over="numbers", item="number")
    made.add_edge("item", END)
    return made


here = mapped()
elsewhere = mapped(run_on="process")


def bytes_per_item(app: Any) -> float:
    """The peak while the map runs; the list of numbers is the caller's."""
    peaks: list[int] = []
    for count in (3, FEW, MANY):
        numbers = [*range(count)]
        tracemalloc.start()
        try:
            app.invoke({"numbers": numbers}, f"t{count}")
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return (peaks[2] - peaks[1]) / (MANY - FEW)


def least_bytes_per_item(limit: int, app_of: Callable[[str], Any], folder: Path) -> float:
    """The least of three measurements, or the first below the limit: other threads allocate."""
    found: list[float] = []
    while len(found) < 3 and not any(each < limit for each in found):
        found.append(bytes_per_item(app_of(f"sqlite:///{folder}/map{len(found)}.db")))
    return min(found)


def test_item_of_a_map_takes_little_memory(tmp_path: Path) -> None:
    """Fails if updates are copied before they are applied and a set names the tasks: 1,147."""
    found = least_bytes_per_item(MOST_BYTES, lambda url: app_here(here, store=url), tmp_path)
    assert found < MOST_BYTES


def test_item_that_runs_elsewhere_takes_no_more(tmp_path: Path) -> None:
    """Fails if the attempts of items that have ended are remembered: 1,568 bytes."""
    with pool_of() as (pool, _):

        def app_of(url: str) -> Any:
            return app_on(pool, elsewhere, store=url)

        assert least_bytes_per_item(MOST_BYTES_ELSEWHERE, app_of, tmp_path) < MOST_BYTES_ELSEWHERE
