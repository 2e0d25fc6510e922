"""O1: what every event carries; items of fan-outs; which checkpoint an event belongs to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Context,
    Event,
    ExecutionError,
    Retry,
    Send,
    StateGraph,
    append,
    interrupt,
)
from milecastle.app.runs.streams import StreamMode
from milecastle.stores.memory import MemoryStore
from tests.acceptance.running import Recorder, Runner, Wrap

MODES: tuple[StreamMode, ...] = ("updates", "state", "events")


class Trip(TypedDict):
    n: int
    log: Annotated[list[str], append]
    item: NotRequired[int]


def note(state: Trip, name: str) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": [name]}


def fan(items: int, work: Any, **options: Any) -> StateGraph[Trip]:
    """``split`` sends ``items`` tasks to ``work``."""
    graph: StateGraph[Trip] = StateGraph(Trip)

    def split(state: Trip) -> None:
        return None

    def spread(state: Trip) -> list[Send]:
        return [Send("work", {"item": number}) for number in range(items)]

    graph.add_node("split", split)
    graph.add_node("work", work, **options)
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", spread, ["work"])
    graph.add_edge("work", END)
    return graph


def only(events: list[Event], *types: str) -> list[Event]:
    return [event for event in events if event.type in types]


def everything(wrap: Wrap, run: Runner) -> Iterator[list[Event]]:
    """Runs that together have every kind of event."""
    seen = Recorder()
    failed: list[int] = []

    def flaky(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.emit("working")
        if len(failed) < 1:
            failed.append(1)
            raise OSError
        return {"log": ["flaky"]}

    def ask(state: Trip) -> dict[str, Any]:
        return {"log": [interrupt("q", answer=str)]}

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("flaky", wrap(flaky), retry=Retry(attempts=2, delay=0))
    graph.add_node("ask", wrap(ask))
    graph.add_node("again", wrap(note))
    graph.add_edges(START, "flaky", "ask", "again")
    graph.add_edge("again", END, when=lambda state: state["n"] > 1)
    graph.add_edge("again", "again")
    app = graph.compile(store=MemoryStore(), observers=[seen])
    run.invoke(app, {"n": 0}, "t")
    app.resume("t", "yes")
    yield seen.events

    seen = Recorder()

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [str(state.get("item"))]}

    run.invoke(fan(3, wrap(item)).compile(store=MemoryStore(), observers=[seen]), {"n": 0}, "t")
    yield seen.events


OF_TASKS = {
    *("state_copied", "node_start", "node_complete", "node_failed", "item_complete", "retry"),
    "emit",
}

PAYLOADS = {
    "graph_start": {"graph"},
    "graph_complete": {"iterations", "nodes"},
    "state_created": {"keys"},
    "state_copied": {"keys"},
    "node_start": {"iteration"},
    "node_complete": {"iteration"},
    "node_failed": {"iteration", "error"},
    "item_complete": {"index", "done", "total"},
    "edge_evaluate": {"target", "taken"},
    "edge_transition": {"target"},
    "cycle": {"visits", "iteration", "path_length"},
    "checkpoint_save": {"id", "source", "nodes"},
    "checkpoint_load": {"id", "nodes"},
    "checkpoint_resume": {"next", "nodes"},
    "retry": {"error"},
}


@pytest.mark.requirement("O1", api="Event")
def test_every_event_says_when_and_where(run: Runner, wrap: Wrap) -> None:
    """Time, run and thread on each; task and attempt on what happens to a task; what else its
    type promises. Fails if ``Teller.event`` leaves the time out, if ``node_start`` does not hand
    on the attempt, or if a payload of the table is missing."""
    began = datetime.now(UTC)
    seen: set[str] = set()
    for events in everything(wrap, run):
        run_id = events[0].run_id
        times = [event.timestamp for event in events if event.type != "emit"]
        assert times == sorted(times)
        for event in events:
            assert began <= event.timestamp <= datetime.now(UTC)
            assert event.run_id == run_id
            assert event.key is not None
            assert event.key.thread == "t"
            assert (event.task is not None) == (event.type in OF_TASKS), event.type
            assert (event.attempt is not None) == (event.type in OF_TASKS), event.type
            assert PAYLOADS.get(event.type, set()) <= event.data.keys(), event.type
            assert event.node is not None or event.type in ("graph_start", "state_created", "state")
            seen.add(event.type)
    assert PAYLOADS.keys() <= seen


@pytest.mark.requirement("O1", api="Event")
def test_events_of_checkpoints_name_the_node_that_made_them(run: Runner, wrap: Wrap) -> None:
    """A revisit has its number, the iteration and the length of the path; an attempt its number.

    Fails if ``_of_entry`` leaves the node out, or ``_revisited`` the counts.
    """
    events = next(everything(wrap, run))
    saves = [event.node for event in only(events, "checkpoint_save")]
    assert saves == [START, "flaky", "flaky", "flaky", "ask", "again", "again"]
    (load,), (resume,) = only(events, "checkpoint_load"), only(events, "checkpoint_resume")
    assert (load.node, resume.node, resume["next"]) == ("flaky", "flaky", ("ask",))
    (cycle,) = only(events, "cycle")
    assert (cycle.node, cycle.step, cycle["visits"]) == ("again", 4, 2)
    assert (cycle["iteration"], cycle["path_length"]) == (3, 3)
    attempts = [(event.type, event.attempt) for event in events if event.node == "flaky"]
    assert [
        found for found in attempts if found[0] in ("node_start", "retry", "node_complete")
    ] == [
        ("node_start", 1),
        ("retry", 2),
        ("node_start", 2),
        ("node_complete", 2),
    ]
    (complete,) = only(events, "graph_complete")
    assert (complete.node, complete["iterations"]) == ("again", 3)


@pytest.mark.requirement("O1", api="Event")
def test_failed_run_says_with_what_and_after_how_many_steps(run: Runner, wrap: Wrap) -> None:
    """Fails if ``graph_failed`` leaves out the error, or the count."""
    seen = Recorder()

    def bad(state: Trip) -> None:
        raise ValueError

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", wrap(note))
    graph.add_node("bad", wrap(bad))
    graph.add_edges(START, "a", "bad", END)
    with pytest.raises(ExecutionError):
        run.invoke(graph.compile(observers=[seen]), {"n": 0})
    (failed,) = only(seen.events, "graph_failed")
    assert (failed.node, failed.step) == ("bad", 1)
    assert failed.data == {"error": "ExecutionError", "iterations": 2}


def edges(events: list[Event]) -> list[tuple[str | None, str, bool]]:
    return [
        (event.node, event["target"], event["taken"]) for event in only(events, "edge_evaluate")
    ]


@pytest.mark.requirement("O1", api="Event")
def test_edges_that_are_evaluated_again_are_events(run: Runner, wrap: Wrap) -> None:
    """After a router that raised. Fails if a resumed run is silent about where it goes."""
    seen, broken = Recorder(), [True]

    def router(state: Trip) -> str:
        if broken:
            raise ValueError
        return "b"

    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("a", wrap(note))
    graph.add_node("b", wrap(note))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", router, ["b"])
    graph.add_edge("b", END)
    app = graph.compile(store=MemoryStore(), observers=[seen])
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    broken.clear()
    seen.events.clear()
    run.resume(app, "t")
    assert edges(seen.events) == [("a", "b", True), ("b", END, True)]
    assert [event.step for event in only(seen.events, "state")] == [1, 2]


@pytest.mark.requirement("O1", api="Event")
def test_edge_to_a_map_over_nothing_is_an_event(run: Runner, wrap: Wrap) -> None:
    """And so is the edge behind it. Fails if only the second is."""
    seen = Recorder()
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("work", wrap(note))
    graph.map(START, "work", over="log", item="item")
    graph.add_edge("work", END)
    assert run.invoke(graph.compile(observers=[seen]), {"n": 0, "log": []})["n"] == 0
    assert edges(seen.events) == [(START, "work", True), ("work", END, True)]


@pytest.mark.requirement("O1", api="Event")
def test_no_event_is_made_when_nobody_listens(
    run: Runner, wrap: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the engine makes a teller without a listener."""
    from milecastle.engine import run_events as telling

    def refuse(**fields: Any) -> Any:
        raise AssertionError("an event was made")

    monkeypatch.setattr(telling, "Event", refuse)

    def item(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.emit("working")
        return {"log": ["item"]}

    result = run.invoke(fan(3, wrap(item)).compile(store=MemoryStore()), {"n": 0}, "t")
    assert result["log"] == ["item"] * 3


# ---- the checkpoint of an event


def branching(wrap: Wrap, store: Any) -> App[Trip]:
    """One node, then two at once, then a question."""
    graph: StateGraph[Trip] = StateGraph(Trip)

    def add(state: Trip, name: str) -> dict[str, Any]:
        return {"log": [name]}

    def ask(state: Trip) -> dict[str, Any]:
        return {"log": [interrupt("q", answer=str)]}

    for name in ("a", "b", "c"):
        graph.add_node(name, wrap(add))
    graph.add_node("ask", wrap(ask))
    graph.add_edge(START, "a")
    for name in ("b", "c"):
        graph.add_edges("a", name, "ask")
    graph.add_edge("ask", END)
    return graph.compile(store=store)


@pytest.mark.requirement("G9", "O1", api="App.stream")
@pytest.mark.parametrize("mode", MODES)
def test_stream_events_carry_the_seq_of_their_checkpoint(
    run: Runner, wrap: Wrap, mode: StreamMode
) -> None:
    """In every mode, and what is read is committed: a reader that stops has lost nothing.

    Fails if an ``update`` is handed on when its node completes and not when it is committed,
    and if ``moved`` leaves the seq out.
    """
    store = MemoryStore()
    app = branching(wrap, store)
    seen: list[tuple[str, int | None, int]] = []

    def stop(event: Event) -> bool:
        assert event.key is not None
        head = next(store.history(event.key, limit=1), None)
        seen.append((event.type, event.seq, head.seq if head else 0))
        return False

    events = run.stream(app, {"n": 0}, "t", mode=mode, until=stop)
    carried = ("update", "state", "interrupt", "checkpoint_save", "edge_transition")
    for kind, seq, head in seen:
        assert seq is None or seq <= head
        assert seq is not None or kind not in carried, kind
    if mode == "updates":
        assert [(event.type, event.node) for event in events[:1]] == [("update", "a")]
        assert sorted(event.node or "" for event in events[1:3]) == ["b", "c"]
        assert [events[0].seq, events[-1].seq] == [2, 4]
    else:
        states = only(events, "state")
        assert [(event.step, event.seq) for event in states] == [(0, 1), (1, 2), (2, 3)]
    waiting = run.stream(app, {"n": 0}, "t", mode=mode)
    assert [(event.type, event.seq) for event in waiting] == [("interrupt", 4)]
    assert waiting[0].timestamp > datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.requirement("C3", "O1", api="App.stream")
@pytest.mark.parametrize("interval", [0, 1, 3])
def test_an_event_of_a_step_that_is_not_saved_has_no_seq(
    run: Runner, wrap: Wrap, interval: int
) -> None:
    """Every update is still read, each once. Fails if updates wait for a commit only."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    for name in "abcd":
        graph.add_node(name, wrap(note))
    graph.add_edges(START, *"abcd", END)
    checkpoint = CheckpointConfig(store=MemoryStore(), interval=interval)
    events = run.stream(graph.compile(checkpoint=checkpoint), {"n": 0}, "t")
    assert [event.node for event in events] == list("abcd")
    expected = {0: [None] * 4, 1: [2, 3, 4, 5], 3: [None, None, 2, 3]}
    assert [event.seq for event in events] == expected[interval]


@pytest.mark.requirement("G7", "O1", api="App.stream")
@pytest.mark.parametrize("stored", [True, False])
def test_updates_of_a_fan_out_are_read_while_others_run(
    run: Runner, wrap: Wrap, stored: bool
) -> None:
    """Each once its result is committed. Fails if updates wait for the end of the step."""

    began: list[int] = []
    read: list[int] = []

    def item(state: Trip) -> dict[str, Any]:
        began.append(1)
        return {"log": [str(state.get("item"))]}

    def until(event: Event) -> bool:
        if event.node == "work":
            read.append(len(began))
        return len(read) == 3

    app = fan(6, wrap(item), limit=1).compile(store=MemoryStore() if stored else None)
    run.stream(app, {"n": 0}, "t", until=until)
    assert read[0] < 6
    if stored:
        assert run.resume(app, "t")["log"] == [str(number) for number in range(6)]


# ---- items


@pytest.mark.requirement("O1", api="Event")
@pytest.mark.parametrize("stored", [True, False])
def test_each_finished_item_of_a_fan_out_is_an_event(run: Runner, wrap: Wrap, stored: bool) -> None:
    """How many are finished, and of how many; which item it was. Other nodes have no items.

    Fails if ``_settle`` reports no items, and if the count is not kept per node.
    """
    seen = Recorder()

    def item(state: Trip) -> dict[str, Any]:
        return {"log": [str(state.get("item"))]}

    store = MemoryStore() if stored else None
    run.invoke(fan(20, wrap(item)).compile(store=store, observers=[seen]), {"n": 0}, "t")
    items = only(seen.events, "item_complete")
    assert [event["done"] for event in items] == list(range(1, 21))
    assert {(event.node, event["total"]) for event in items} == {("work", 20)}
    assert sorted(event["index"] for event in items) == list(range(20))
    assert all(event.task == f"work#{event['index']}" for event in items)
    starts = [event for event in only(seen.events, "node_start") if event.node == "work"]
    assert {event["total"] for event in starts} == {20}


@pytest.mark.requirement("O1", "R2", api="Event")
def test_items_that_were_finished_before_a_failure_count(run: Runner, wrap: Wrap) -> None:
    """And one that a fallback takes over is finished. Fails if the count begins at zero."""
    seen, broken = Recorder(), [True]

    def item(state: Trip) -> dict[str, Any]:
        if state.get("item") == 3 and broken[0]:
            raise ValueError
        return {"log": [str(state.get("item"))]}

    app = fan(5, wrap(item)).compile(store=MemoryStore(), observers=[seen])
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    assert [event["done"] for event in only(seen.events, "item_complete")] == [1, 2, 3, 4]
    broken[0] = False
    seen.events.clear()
    run.resume(app, "t")
    (last,) = only(seen.events, "item_complete")
    assert (last["index"], last["done"], last["total"]) == (3, 5, 5)

    seen.events.clear()
    broken[0] = True
    graph = fan(5, wrap(item), on_error="rescue")

    def rescue(state: Trip) -> None:
        return None

    graph.add_node("rescue", rescue)
    graph.add_edge("rescue", END)
    run.invoke(graph.compile(store=MemoryStore(), observers=[seen]), {"n": 0}, "t")
    assert [event["done"] for event in only(seen.events, "item_complete")] == [1, 2, 3, 4, 5]


@pytest.mark.requirement("O1", api="Event")
def test_a_followed_thread_has_times(run: Runner, wrap: Wrap) -> None:
    """Fails if the follower leaves the time of the entry out."""
    app = branching(wrap, MemoryStore())
    before = time.time()
    run.invoke(app, {"n": 0}, "t")
    assert all(before - 1 < event.timestamp.timestamp() for event in app.follow("t"))
