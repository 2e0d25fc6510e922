"""O: what nodes emit reaches observers too, however much it is, also when nobody reads a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, Context, Event, ExecutionOptions, StateGraph, append
from milecastle.stores.jsonl import JsonlStore
from tests.acceptance.running import Recorder, Runner, always

MANY = 200
"""More than may be emitted ahead of the reader of a stream."""


class Trip(TypedDict):
    log: Annotated[list[str], append]


class Listener(Recorder):
    """Keeps what was emitted, and the threads on which it heard anything."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def on_event(self, event: Event) -> None:
        self.threads.add(threading.get_ident())
        super().on_event(event)

    @property
    def emitted(self) -> list[Any]:
        return [event.update for event in self.events if event.type == "emit"]


def talker(colour: str, heard: Listener, late: list[int]) -> Callable[..., Any]:
    """A node that emits a lot, and notes what the observer had not received when it continued."""

    def note(number: int) -> None:
        if len(heard.emitted) <= number:
            late.append(number)

    def talk(state: Trip, ctx: Context) -> dict[str, Any]:
        for number in range(MANY):
            ctx.emit(number)
            note(number)
        return {"log": ["talk"]}

    async def atalk(state: Trip, ctx: Context) -> dict[str, Any]:
        for number in range(MANY):
            await ctx.aemit(number)
            note(number)
        return {"log": ["talk"]}

    return atalk if colour == "async" else talk


def talking(
    node: Callable[..., Any], heard: Listener, place: str, store: Any, **policy: Any
) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("talk", node, **policy)
    graph.add_edge("talk", END)
    for name in ("a", "b") if place == "after branches" else ():
        graph.add_node(name, always({"log": ["branch"]}))
        graph.add_edge(START, name)
        graph.add_edge(name, "talk")
    if place == "alone":
        graph.add_edge(START, "talk")
    return graph.compile(store=store, observers=[heard])


def within(seconds: float, work: Callable[[], object]) -> None:
    """Do something that must not hang."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"


@pytest.mark.parametrize("store", [None, "memory://", "jsonl"])
@pytest.mark.parametrize("place", ["alone", "after branches"])
@pytest.mark.parametrize("colour", ["sync", "async", "inline"])
@pytest.mark.parametrize("options", [None, ExecutionOptions(timeout=60)])
def test_a_node_may_emit_to_observers_as_much_as_it_likes(
    run: Runner,
    colour: str,
    place: str,
    store: str | None,
    options: ExecutionOptions | None,
    tmp_path: Path,
) -> None:
    """They hear it at once, in order and on one thread."""
    heard, late = Listener(), list[int]()
    policy = {"inline": True} if colour == "inline" else {}
    at = JsonlStore(tmp_path) if store == "jsonl" else store
    app = talking(talker(colour, heard, late), heard, place, at, **policy)
    thread = None if store is None else "t"
    within(15, lambda: run.invoke(app, {"log": []}, thread, options=options))
    assert heard.events[-1].type == "graph_complete"
    assert heard.emitted == list(range(MANY))
    assert len(heard.threads) == 1
    assert late == []


@pytest.mark.parametrize("place", ["alone", "after branches"])
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_reader_of_a_stream_and_an_observer_get_the_same_events(
    run: Runner, colour: str, place: str
) -> None:
    heard = Listener()
    app = talking(talker(colour, heard, []), heard, place, "memory://")
    read: list[Event] = []
    within(15, lambda: read.extend(run.stream(app, {"log": []}, "t", mode="events")))
    assert heard.emitted == list(range(MANY))
    assert [event.update for event in read if event.type == "emit"] == heard.emitted
