"""LangGraph's savers at the work of `growth`, with shorter threads."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from benchmarks.alternating import best_of, timed
from benchmarks.growing import (
    ITEM,
    VALUE,
    Size,
    Wide,
    make_items,
    make_value,
    schema_size,
    wide_state,
)
from benchmarks.langgraph_stores import config, postgres_saver, sqlite_saver

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

PAGE = 100
Saver = AbstractContextManager[Any]


class Items(TypedDict):
    """A list that grows."""

    items: Annotated[list[str], operator.add]


def study(folder: Path, cluster: Cluster | None, size: Size) -> dict[str, dict[str, float]]:
    """Measure the savers that are installed."""
    found: dict[str, dict[str, float]] = {}
    if find_spec("langgraph.checkpoint.sqlite"):
        found["langgraph_sqlite"] = _sqlite(folder, size)
    if cluster is not None and find_spec("langgraph.checkpoint.postgres"):
        found["langgraph_postgres"] = _postgres(cluster, size)
    return found


def _sqlite(folder: Path, size: Size) -> dict[str, float]:
    def weigh(work: Callable[[Any], None]) -> int:
        path = folder / "saver.db"
        path.unlink(missing_ok=True)
        with sqlite_saver(path) as saver:
            work(saver)
        return path.stat().st_size

    return _figures(weigh, sqlite_saver(folder / "pages.db"), size)


def _postgres(cluster: Cluster, size: Size) -> dict[str, float]:
    def weigh(work: Callable[[Any], None]) -> int:
        with postgres_saver(cluster.url) as saver:
            work(saver)
        return schema_size(cluster, "public")

    return _figures(weigh, postgres_saver(cluster.url), size)


def _figures(
    weigh: Callable[[Callable[[Any], None]], int], pages: Saver, size: Size
) -> dict[str, float]:
    steps = size.their_steps
    short, long = (weigh(partial(grow, count=count)) for count in (steps, 10 * steps))
    values = weigh(partial(_overwrite, steps=size.overwrites))
    with pages as saver:
        growth = _page_growth(saver, steps, size.rounds)
    return {
        "bytes_vs_raw": long / (10 * steps * ITEM),
        "10x": long / short,
        "page_growth": growth,
        "overwritten": values / (size.overwrites * VALUE),
    }


def grow(saver: Any, count: int, thread: str = "loop") -> None:
    items = make_items(count)

    def add(state: Items) -> Items:
        return {"items": [items[len(state["items"])]]}

    def route(state: Items) -> str:
        return "add" if len(state["items"]) < count else graphs.END

    graphs = import_module("langgraph.graph")
    graph = graphs.StateGraph(Items)
    graph.add_node("add", add)
    graph.add_edge(graphs.START, "add")
    graph.add_conditional_edges("add", route, ["add", graphs.END])
    app = graph.compile(checkpointer=saver)
    state = app.invoke({"items": []}, config(count, thread), durability="sync")
    if state["items"] != items:
        raise AssertionError("the list did not grow as it should")


def _overwrite(saver: Any, steps: int) -> None:
    def turn(state: Wide) -> dict[str, object]:
        return {"n": state["n"] + 1, "value": make_value(state["n"])}

    def route(state: Wide) -> str:
        return "turn" if state["n"] < steps else graphs.END

    graphs = import_module("langgraph.graph")
    graph = graphs.StateGraph(Wide)
    graph.add_node("turn", turn)
    graph.add_edge(graphs.START, "turn")
    graph.add_conditional_edges("turn", route, ["turn", graphs.END])
    graph.compile(checkpointer=saver).invoke(wide_state(), config(steps), durability="sync")


def _page_growth(saver: Any, steps: int, rounds: int) -> float:
    counts = {"few": steps, "many": 10 * steps}
    for name, count in counts.items():
        grow(saver, count, name)
    best = best_of(
        max(2, rounds // 5),
        [timed(name, partial(_page, saver, steps, name)) for name in counts],
    )
    return best["many"] / best["few"]


def _page(saver: Any, steps: int, thread: str) -> None:
    limit = min(PAGE, steps)
    if len(list(saver.list(config(steps, thread), limit=limit))) != limit:
        raise AssertionError("a page was not full")
