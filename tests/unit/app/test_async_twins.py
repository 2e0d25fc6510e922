"""Every call of an app that may wait has an async twin, which does the same."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any, TypedDict

from milecastle import END, START, App, StateGraph

WAIT_FOR_NOTHING = {"begin", "conclude", "draw", "migrate", "using", "with_graph"}
NOT_YET = {"plan"}
ANOTHER_NAME = {"wait", "await_result"}
"""``await`` is a keyword, and a timeout around an async call is ``asyncio.timeout``."""


class Count(TypedDict):
    n: int


def counting() -> App[Count]:
    graph = StateGraph(Count)

    @graph.node
    async def up(state: Count) -> Count:
        return {"n": state["n"] + 1}

    graph.add_edges(START, "up", END)
    return graph.compile(store="memory://")


def test_every_call_has_an_async_twin_with_the_same_parameters() -> None:
    """Seen to fail: ``save_checkpoint``, ``load_checkpoint``, ``resume_from_checkpoint`` and
    ``fit`` had none.
    """
    methods = {
        name for name in dir(App) if not name.startswith("_") and callable(getattr(App, name))
    }
    twins = {name for name in methods if name[:1] == "a" and name[1:] in methods}
    for name in methods - twins - WAIT_FOR_NOTHING - NOT_YET - ANOTHER_NAME:
        assert f"a{name}" in twins, name
        sync, twin = (inspect.signature(getattr(App, each)) for each in (name, f"a{name}"))
        assert sync.parameters == twin.parameters, name


async def _use_twins(app: App[Count], path: Path) -> dict[str, Any]:
    await app.asave_checkpoint(path, {"n": 4}, "up")
    loaded = await app.aload_checkpoint(path)
    result = await app.aresume_from_checkpoint(path, thread="a")
    assert result["n"] == 5
    assert (await app.acompatibility("a")).reasons == app.compatibility("a").reasons == ()
    return loaded


def test_the_twins_of_portable_files_work_on_a_loop(tmp_path: Path) -> None:
    app, path = counting(), tmp_path / "up.pkl"
    assert asyncio.run(_use_twins(app, path)) == app.load_checkpoint(path)
