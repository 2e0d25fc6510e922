"""Ctrl-C at every line of the engine and its driver: it surfaces as itself and breaks nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

import pytest

import milecastle
from milecastle import END, START, App, StateGraph
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from tests.acceptance.running import Recorder

PACKAGE = Path(milecastle.__file__).parent
PLACES = (str(PACKAGE / "engine"), str(PACKAGE / "drivers" / "blocking.py"))


class Count(TypedDict):
    n: int


class Counting(WrappedStore):
    """Knows whether the batch that ends a run was written."""

    completed = False

    def commit(self, batch: Any) -> None:
        super().commit(batch)
        self.completed = any(run.status == "completed" for run in batch.runs)


def interrupted(call: Callable[[], object], line: int) -> bool:
    """Call, and raise ``KeyboardInterrupt`` at the n-th line; whether there were so many."""
    seen = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(PLACES):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    gc.disable()  # or the line may be one of an earlier run that is collected here
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    return seen >= line


def two_steps(store: Counting, observers: list[Recorder]) -> App[Count]:
    def add(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    graph: StateGraph[Count] = StateGraph(Count)
    graph.add_node("a", add)
    graph.add_node("b", add)
    graph.add_edges(START, "a", "b", END)
    return graph.compile(store=store, observers=observers)


@pytest.mark.parametrize("listening", [False, True])
def test_run_interrupted_at_any_line_says_so_and_can_continue(listening: bool) -> None:
    """What was recorded as completed stays so; anything else continues to the same end."""
    line, met = 0, set[bool]()
    while True:
        line += 1
        store = Counting(MemoryStore())
        app = two_steps(store, [Recorder()] if listening else [])
        if not interrupted(partial(app.invoke, {"n": 0}, "t"), line):
            break
        met.add(store.completed)
        if store.completed:
            assert app.state("t").status == "completed"
        result = app.invoke({"n": 0}, "t")
        assert (result.status, result["n"]) == ("completed", 2)
    assert met == {False, True}
    assert line > 100
