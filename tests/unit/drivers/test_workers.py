"""Workers: threads for the tasks of a step, as many as they need and no more."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, ExecutionConfig, StateGraph, append

user: ContextVar[str] = ContextVar("user")


class State(TypedDict, total=False):
    items: list[int]
    item: int
    found: Annotated[list[Any], append]


def mapped(work: Any, most: int = 32) -> App[State]:
    graph: StateGraph[State] = StateGraph(State)

    def split(state: State) -> None:
        return None

    graph.add_node("split", split)
    graph.add_node("work", work)
    graph.add_edge(START, "split")
    graph.map("split", "work", over="items", item="item")
    graph.add_edge("work", END)
    graph.with_default_config(ExecutionConfig(max_parallel=most))
    return graph.compile()


def test_tasks_that_wait_for_each_other_all_get_a_thread() -> None:
    barrier = threading.Barrier(20)

    def meet(state: State) -> dict[str, Any]:
        barrier.wait(20)
        return {"found": [1]}

    assert len(mapped(meet).invoke({"items": list(range(20))})["found"]) == 20


def test_short_tasks_make_do_with_few_threads() -> None:
    threads: set[int] = set()

    def note(state: State) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return {"found": [1]}

    mapped(note).invoke({"items": list(range(8))})
    assert len(threads) <= 8


def test_a_task_sees_the_context_of_who_called() -> None:
    def who(state: State) -> dict[str, Any]:
        return {"found": [user.get()]}

    token = user.set("ada")
    try:
        assert mapped(who).invoke({"items": [1, 2, 3]})["found"] == ["ada"] * 3
    finally:
        user.reset(token)
