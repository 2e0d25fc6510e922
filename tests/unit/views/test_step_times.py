"""Task times, read back from a thread's log."""

from __future__ import annotations

import threading
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, Keyring, Retry, StateGraph, ThreadKey, append, interrupt
from milecastle.errors import ExecutionError
from milecastle.model.step_times import PAUSED, StepTimes
from milecastle.stores.memory import MemoryStore
from milecastle.views.step_times import nodes_of_times, read_times

KEY = ThreadKey("default", "t")


class State(TypedDict, total=False):
    items: list[int]
    item: int
    out: Annotated[list[int], append]


def _mapped(work: Any, **options: Any) -> StateGraph[State]:
    graph = StateGraph(State, name="g")
    graph.add_node("work", work, **options)
    graph.add_node("last", lambda state: {})
    graph.map(START, "work", over="items", item="item")
    graph.add_edges("work", "last", END)
    return graph


def _read(app: Any, keyring: Any = lambda: None) -> dict[int, StepTimes]:
    return dict(read_times(app.store, KEY, keyring, 1, 100))


def _plain(state: State) -> Any:
    return {"out": [state.get("item", 0)]}


def test_a_fan_out_has_its_times_and_a_plain_step_none() -> None:
    app = _mapped(_plain).compile(store="memory://")
    app.invoke({"items": [1, 2, 3]}, thread="t")
    times = _read(app)
    assert list(times) == [2]
    assert sorted(one.item for one in times[2].tasks) == [0, 1, 2]
    assert nodes_of_times(app.store.entries(KEY)[1]) == ("work",)


def test_failed_attempts_have_their_types() -> None:
    lock, tried = threading.Lock(), list[int]()

    def flaky(state: State) -> Any:
        with lock:
            tried.append(state.get("item", 0))
            if tried.count(2) == 1 and tried[-1] == 2:
                raise ConnectionError("no")
        return {}

    app = _mapped(flaky, retry=Retry(attempts=3, delay=0)).compile(store="memory://")
    app.invoke({"items": [1, 2]}, thread="t")
    (times,) = _read(app).values()
    assert times.errors == ["ConnectionError"]
    assert sorted((one.item, one.attempt, one.end) for one in times.tasks) == [
        (0, 1, -1),
        (1, 1, 0),
        (1, 2, -1),
    ]


def test_a_step_that_asks_has_times_at_its_question_and_at_its_end() -> None:
    """Fails if a restored outcome is counted, or if the times of the question are read again."""

    def asks(state: State) -> Any:
        return {"out": [interrupt("sure?")]} if state.get("item") == 2 else {}

    app = _mapped(asks).compile(store="memory://")
    app.invoke({"items": [1, 2, 3]}, thread="t")
    app.resume("t", 7)
    entries = {entry.seq: entry for entry in app.store.entries(KEY)}
    times = _read(app)
    found = {
        entries[seq].source: [(one.item, one.end) for one in times[seq].tasks] for seq in times
    }
    assert sorted(found["interrupt"]) == [(0, -1), (1, PAUSED), (2, -1)]
    assert found["step"] == [(1, -1)]
    assert all("work" in nodes_of_times(entries[seq]) for seq in times)


def test_states_forks_and_differences_are_without_times() -> None:
    """Fails if ``split`` leaves the channel: it would be in every state."""
    app = _mapped(_plain).compile(store="memory://")
    app.invoke({"items": [1, 2]}, thread="t")
    app.fork("t", 2, "other")
    assert dict(app.state("t").state).keys() == {"items", "out"}
    assert dict(app.state("other").state).keys() == {"items", "out"}
    assert not read_times(app.store, ThreadKey("default", "other"), lambda: None, 1, 9)


def _again(state: State) -> str:
    return "loop" if len(state.get("out", [])) < 45 else END


def test_a_later_entry_that_repeats_a_step_does_not_repeat_its_times() -> None:
    """Fails without the number of the step: a snapshot repeats the channel."""
    graph = _mapped(_plain)
    graph.add_node("loop", lambda state: {"out": [1], "item": 3})
    graph.add_edges("last", "loop")
    graph.add_conditional_edges("loop", _again, ["loop", END])
    app = graph.compile(store="memory://")
    app.invoke({"items": [1, 2]}, thread="t")
    repeated = [entry.seq for entry in app.store.entries(KEY) if b"__times__" in entry.payload]
    assert len(repeated) > 1
    assert list(_read(app)) == [2]


def test_encrypted_times_need_the_key() -> None:
    ring = Keyring({"main": b"k" * 32}, store=MemoryStore())
    app = _mapped(_plain).compile(store="memory://", encryption=ring)
    app.invoke({"items": [1, 2]}, thread="t")
    assert list(_read(app, lambda: ring)) == [2]
    assert not _read(app)


def test_large_entries_are_not_read_to_the_end() -> None:
    app = _mapped(_plain).compile(store="memory://")
    app.invoke({"items": [1, 2]}, thread="t")
    assert not read_times(app.store, KEY, lambda: None, 2, 9, most=-1)


def test_a_retry_has_the_times_of_what_it_ran() -> None:
    failing = [True]

    def fails_once(state: State) -> Any:
        if state.get("item") == 2 and failing:
            failing.clear()
            raise ValueError("no")
        return {}

    app = _mapped(fails_once).compile(store="memory://")
    with pytest.raises(ExecutionError):
        app.invoke({"items": [1, 2]}, thread="t")
    app.resume("t")
    (times,) = _read(app).values()
    assert [one.item for one in times.tasks] == [1]


def test_subgraphs_beside_each_other_have_their_times() -> None:
    inner = StateGraph(State, name="inner")
    inner.add_node("step", _plain)
    inner.add_edges(START, "step", END)
    graph = StateGraph(State, name="g")
    for name in ("left", "right"):
        graph.add_node(name, inner.compile())
        graph.add_edges(START, name, END)
    app = graph.compile(store="memory://")
    app.invoke({"items": []}, thread="t")
    (entry,) = [entry for entry in app.store.entries(KEY) if entry.source == "step"]
    (times,) = _read(app).values()
    found = {entry.nodes[one.node]: (one.item, one.end) for one in times.tasks}
    assert found == {"left": (-1, -1), "right": (-1, -1)}


def test_a_deferred_node_does_not_move_the_places_of_others() -> None:
    """Fails if the places are those of the nodes that ran: the entry names the deferred one too."""

    def asks(state: State) -> Any:
        interrupt("sure?")
        return {}

    graph = StateGraph(State, name="g")
    graph.add_node("after", _plain, defer=True)
    graph.add_node("asks", asks)
    graph.add_node("plain", _plain)
    for name in ("after", "asks", "plain"):
        graph.add_edges(START, name, END)
    app = graph.compile(store="memory://")
    app.invoke({"items": []}, thread="t")
    entry = app.store.entries(KEY)[-1]
    (times,) = _read(app).values()
    found = {nodes_of_times(entry)[one.node]: one.end for one in times.tasks}
    assert found == {"asks": PAUSED, "plain": -1}
