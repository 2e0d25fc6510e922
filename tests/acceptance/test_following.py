"""Following a thread: replay from a seq, then what is still to come. Histories with subgraphs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, StateGraph, Store, ThreadKey, append
from milecastle.app.threads import reading
from milecastle.model.checkpoint import Entry
from milecastle.stores.memory import MemoryStore
from tests.every_store import EVERY_KIND, Stores


class Trip(TypedDict):
    log: Annotated[list[str], append]


@pytest.fixture(name="store", params=EVERY_KIND)
def a_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    stores = Stores(tmp_path)
    yield stores.open(request.param)
    stores.close()


def line(store: Store | None, *names: str, gate: threading.Event | None = None) -> App[Trip]:
    """Nodes one after the other; the last one waits at the gate."""
    graph: StateGraph[Trip] = StateGraph(Trip)

    def note(state: Trip, name: str) -> dict[str, Any]:
        if gate is not None and name == names[-1]:
            assert gate.wait(30)
        return {"log": [name]}

    for name in names:
        graph.add_node(name, note)
    graph.add_edges(START, *names, END)
    return graph.compile(store=store)


def test_later_reader_sees_the_thread_from_a_seq(store: Store) -> None:
    app = line(store, "a", "b", "c")
    app.invoke({"log": []}, "t")
    seen = [(event.seq, event.state["log"]) for event in app.follow("t", after=2)]
    assert seen == [(3, ["a", "b"]), (4, ["a", "b", "c"])]


def test_states_that_were_handed_out_stay_as_they_were(store: Store) -> None:
    app = line(store, *"abcdef")
    app.invoke({"log": []}, "t")
    states = [event.state for event in app.follow("t")]
    assert [len(state["log"]) for state in states] == [0, 1, 2, 3, 4, 5, 6]


def test_follower_sees_new_checkpoints_and_stops_when_the_thread_stops(store: Store) -> None:
    gate = threading.Event()
    app = line(store, "a", "b", gate=gate)
    runner = threading.Thread(target=app.invoke, args=({"log": []}, "t"))
    runner.start()
    try:
        while not list(store.history(ThreadKey("default", "t"), limit=1)):
            pass
        seen: list[int | None] = []
        for event in app.follow("t", poll=0.01):
            seen.append(event.seq)
            if event.state["log"] == ["a"]:
                gate.set()
    finally:
        gate.set()
        runner.join()
    assert seen == [1, 2, 3]


def test_what_is_appended_while_it_looks_does_not_end_it() -> None:
    """Seen to fail: the head that was read first was compared with what was read after it."""
    apps: list[App[Any]] = []

    class Late(MemoryStore):
        def head(self, key: ThreadKey) -> Entry | None:
            found = super().head(key)
            if apps and found is not None:
                apps.pop().update_state("t", {"log": ["later"]})
            return found

    app = line(Late(), "a")
    app.invoke({"log": []}, "t")
    apps.append(app)
    follower = vars(reading)["_Follower"](app.runner.threads, ThreadKey("default", "t"), 0, 1.0)
    assert [event.seq for event in follower.look()] == [1, 2, 3]
    assert not follower.is_gone
    assert follower.look() == []
    assert follower.is_over


def test_it_works_on_an_event_loop(store: Store) -> None:
    app = line(store, "a")
    app.invoke({"log": []}, "t")

    async def follow() -> list[int | None]:
        return [event.seq async for event in app.afollow("t")]

    assert asyncio.run(follow()) == [1, 2]


def test_a_history_may_include_those_of_subgraphs(store: Store) -> None:
    inner = line(None, "x", "y")
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("inner", inner)
    graph.add_edges(START, "inner", END)
    app = graph.compile(store=store)
    assert app.invoke({"log": []}, "t")["log"] == ["x", "y"]
    own = [known.source for known in app.history("t")]
    every = list(app.history("t", subgraphs=True))
    assert own == ["step", "input"]
    assert sorted(known.nodes for known in every) == [(), (), ("inner",), ("x",), ("y",)]
    assert [known.timestamp for known in every] == sorted(
        (known.timestamp for known in every), reverse=True
    )
    assert len(list(app.history("t", 2, subgraphs=True))) == 2
