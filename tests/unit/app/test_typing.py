"""What type checkers know of the public face.

mypy and pyright check this file in strict mode, as they check every file; the test below runs
mypy on it, and on the same code with mistakes that it must find.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict, assert_type, cast

from milecastle import (
    END,
    START,
    App,
    Context,
    Event,
    Result,
    Retry,
    Send,
    Snapshot,
    StateGraph,
    append,
    interrupt,
)
from milecastle.records import Interrupt
from tests.docs.typing_check import errors_of, pyright_lines


class Post(TypedDict):
    topic: str
    notes: Annotated[list[str], append]
    approved: NotRequired[bool]


@dataclass
class Point:
    x: int = 0


def declare() -> App[Post]:
    graph = StateGraph(Post)

    @graph.node
    def research(state: Post) -> dict[str, object]:
        return {"notes": [state["topic"]]}

    @graph.node(retry=3, timeout=30, goto=["done"], defer=False, limit=2, version="2")
    def review(state: Post, ctx: Context) -> dict[str, object]:
        approved = interrupt("Publish?", answer=bool)
        assert_type(approved, bool)
        assert_type(ctx.once("count", len, "abc"), int)
        return {"approved": approved}

    @graph.node(name="done", retry=Retry(attempts=2))
    async def finish(state: Post) -> None: ...

    if TYPE_CHECKING:  # what a decorator gives back has the type of what it was given
        post: Post = {"topic": "", "notes": []}
        assert_type(research(state=post), dict[str, object])
        assert_type(review(state=post, ctx=cast("Context", None)), dict[str, object])

    graph.add_node("lambda", lambda state: {"topic": state["topic"].upper()})
    graph.add_node("child", StateGraph(Post).compile, give=lambda state: {"topic": "x"})
    graph.add_edge(START, "research")
    graph.add_edge("research", "review", when=lambda state: state["topic"].isalpha())
    graph.add_edge("research", "lambda")

    def route(state: Post) -> Literal["child", "__end__"]:
        return "child" if state.get("approved") else END

    graph.add_conditional_edges("review", route)
    graph.add_conditional_edges("lambda", lambda state: len(state["notes"]), {0: END, 1: "child"})
    graph.add_conditional_edges(
        START, lambda state: [Send("child", {"topic": n}) for n in state["notes"]]
    )
    graph.map("child", "done", over=lambda state: state["notes"], item="topic")
    graph.set_exit_point("done")
    assert_type(graph, StateGraph[Post])
    return graph.compile(store="memory://")


def use(app: App[Post]) -> None:
    result = app.invoke({"topic": "walls", "notes": []}, thread="a")
    assert_type(result, Result[Post])
    assert_type(result.state, Post)
    assert_type(result.state["notes"], list[str])
    assert_type(result.interrupts, tuple[Interrupt, ...])
    assert_type(dict(result), dict[str, Any])
    assert_type("topic" in result, bool)
    assert_type(list(result), list[str])
    for event in app.stream({"topic": "walls", "notes": []}, mode="state"):
        assert_type(event, Event[Post])
        assert_type(event.state["notes"], list[str])
        assert_type(event.attempt, int | None)
    for followed in app.follow("a"):
        assert_type(followed, Event[Post])
    snapshot = app.state("a")
    assert_type(snapshot, Snapshot[Post])
    assert_type(snapshot.state["topic"], str)
    points = StateGraph(Point).compile()
    assert_type(points.invoke(Point()).state.x, int)


async def use_async(app: App[Post]) -> None:
    assert_type(await app.ainvoke({"topic": "walls"}), Result[Post])
    assert_type(await app.aresume("a", answer=True), Result[Post])
    async for event in app.astream({"topic": "walls"}):
        assert_type(event.state, Post)


class Watcher:
    """An observer need not say of which state its events are."""

    def on_event(self, event: Event) -> None:
        assert_type(event.state, Any)


MISTAKES = """
from typing import TypedDict
from milecastle import END, START, Retry, StateGraph

class Post(TypedDict):
    topic: str

graph = StateGraph(Post)
graph.add_edge(START, "a", when=lambda state: state["topik"])
graph.add_conditional_edges("a", lambda state: state["topik"], [END])
graph.node(retry="3")
graph.add_node("a", lambda state: None, retries=3)
graph.set_finish_point("a")
Retry(max_attempts=3)
app = graph.compile(checkpointer=None)
app.invoke({"topic": "x"}, thread=3)
app.stream({"topic": "x"}, stream_mode="values")
app.get_state("a")
app.invok({"topic": "x"})
app.invoke({"topic": "x"}, mode="clean")
"""


WRONG = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if number > 8 and line]


def test_mypy_accepts_this_file() -> None:
    """Seen to fail with ``@graph.node(...)`` typed as ``Callable[..., Any]``, and with ``Event``
    that has no type of state, or no default for it."""
    assert errors_of(Path(__file__).read_text("utf-8")) == []


def test_mypy_finds_the_mistakes_of_new_users() -> None:
    """Seen to fail with ``when: Callable[[Any], Any]`` and ``App.__getattr__`` in sight of mypy."""
    found = sorted({int(error.split(":")[1]) for error in errors_of(MISTAKES)})
    assert found == WRONG


CALLS_THAT_ARE_NOT_THERE = """
from typing import TypedDict
from milecastle import StateGraph

class Post(TypedDict):
    topic: str

graph = StateGraph(Post)
app = graph.compile()
app.invoke({"topic": "x"})
app.invok({"topic": "x"})
app.get_state("a")
graph.set_finish_point("a")
"""


def test_type_checkers_find_calls_that_are_not_there() -> None:
    """Broken on purpose: ``App.__getattr__`` visible to type checkers, typed ``Any``."""
    assert sorted(set(pyright_lines(CALLS_THAT_ARE_NOT_THERE))) == [11, 12, 13]
    found = [int(error.split(":")[1]) for error in errors_of(CALLS_THAT_ARE_NOT_THERE)]
    assert found == [11, 12, 13]
