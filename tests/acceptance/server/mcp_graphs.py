"""Graphs that a server offers as tools: at once, slowly, with questions, and one that fails."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import END, START, Context, ExecutionConfig, StateGraph, append, interrupt


class Greeting(TypedDict):
    """Greet somebody."""

    name: str
    text: NotRequired[str]


class Work(TypedDict):
    """Work for some seconds, in steps of a twentieth.

    Each step adds a line to the file ``notes``. ``asks`` asks before the second half; ``sleeps`` is
    for how long the run sleeps behind the question.
    """

    seconds: float
    notes: NotRequired[str]
    asks: NotRequired[bool]
    sleeps: NotRequired[float]
    done: NotRequired[int]
    agreed: NotRequired[bool]


class Deletion(TypedDict):
    """Delete a file, if a person confirms."""

    filename: str
    confirmed: NotRequired[bool]


class Inputs(TypedDict):
    """Ask two questions at once."""

    name: str
    answers: NotRequired[Annotated[list[str], append]]


class Job(TypedDict):
    """Fail."""

    name: NotRequired[str]


def greet() -> StateGraph[Greeting]:
    graph = StateGraph(Greeting, name="greet")

    @graph.node
    def greet(state: Greeting) -> dict[str, Any]:
        return {"text": f"Hello, {state['name']}!"}

    return graph.add_edges(START, "greet", END)


def work() -> StateGraph[Work]:
    graph = StateGraph(Work, name="work")

    def step(state: Work, part: str) -> dict[str, Any]:
        if path := state.get("notes"):
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(f"{part} {state.get('done', 0)}\n")
        time.sleep(0.05)
        return {"done": state.get("done", 0) + 1}

    @graph.node
    def first(state: Work) -> dict[str, Any]:
        return step(state, "first")

    @graph.node
    def ask(state: Work) -> dict[str, Any]:
        return {"agreed": not state.get("asks") or interrupt("Go on?", answer=bool)}

    @graph.node
    def sleep(state: Work, ctx: Context) -> dict[str, Any]:
        if seconds := state.get("sleeps"):
            ctx.sleep(seconds)
        return {}

    @graph.node
    def second(state: Work) -> dict[str, Any]:
        return step(state, "second")

    def half(state: Work) -> bool:
        return state.get("done", 0) * 0.05 < state["seconds"] / 2

    def whole(state: Work) -> bool:
        return state.get("done", 0) * 0.05 < state["seconds"]

    graph.add_edge(START, "first")
    graph.add_conditional_edges("first", lambda state: "first" if half(state) else "ask")
    graph.add_edges("ask", "sleep", "second")
    graph.add_conditional_edges("second", lambda state: "second" if whole(state) else END)
    return graph.with_default_config(ExecutionConfig(max_steps=None))


def confirm_delete() -> StateGraph[Deletion]:
    graph = StateGraph(Deletion, name="confirm_delete")

    @graph.node
    def ask(state: Deletion) -> dict[str, Any]:
        return {"confirmed": interrupt(f"Delete {state['filename']}?", answer=bool)}

    return graph.add_edges(START, "ask", END)


def multi_input() -> StateGraph[Inputs]:
    graph = StateGraph(Inputs, name="multi_input")

    @graph.node
    def one(state: Inputs) -> dict[str, Any]:
        return {"answers": [interrupt("one?", answer=str)]}

    @graph.node
    def two(state: Inputs) -> dict[str, Any]:
        return {"answers": [interrupt("two?", answer=str)]}

    for name in ("one", "two"):
        graph.add_edges(START, name, END)
    return graph


def failing_job() -> StateGraph[Job]:
    graph = StateGraph(Job, name="failing_job")

    @graph.node
    def fail(state: Job) -> dict[str, Any]:
        time.sleep(0.7)
        raise RuntimeError("it cannot be done")

    return graph.add_edges(START, "fail", END)


graphs = [greet(), work(), confirm_delete(), multi_input(), failing_job()]
