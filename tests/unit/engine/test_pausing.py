"""Pausing: what tasks wait for is looked up by task, however many wait."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, StateGraph, append, interrupt
from milecastle.engine.position import Position, restore
from milecastle.engine.reserved_channels import WAITS
from milecastle.stores.memory import MemoryStore


class Many(TypedDict):
    items: list[int]
    out: Annotated[list[int], append]


class One(TypedDict):
    i: int


def asking() -> App[Many]:
    graph: StateGraph[Many] = StateGraph(Many)

    @graph.node
    def work(state: One) -> dict[str, Any]:
        return {"out": [interrupt(f"q{state['i']}", answer=int)]}

    graph.map(START, "work", over="items", item="i")
    graph.add_edge("work", END)
    return graph.compile(store=MemoryStore())


class Counted(dict[str, Any]):
    """Counts how often all of it is looked at."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def values(self) -> Any:
        self.looks += 1
        return super().values()


@pytest.mark.parametrize("size", [5, 80])
def test_one_answer_looks_at_the_open_questions_a_few_times(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are. Tried: a look through all questions for each task, as it was."""
    app = asking()
    waiting = app.invoke({"items": list(range(size))}, "t")
    found: list[Counted] = []

    def counting(*args: Any, **given: Any) -> Position:
        position = restore(*args, **given)
        counted = Counted(position.reserved[WAITS])
        found.append(counted)
        position.reserved = {**position.reserved, WAITS: counted}
        return position

    monkeypatch.setattr("milecastle.app.threads.log.restore", counting)
    left = app.resume("t", answers={waiting.interrupts[2].id: 1})
    assert len(left.interrupts) == size - 1
    assert found
    assert sum(counted.looks for counted in found) <= 12
