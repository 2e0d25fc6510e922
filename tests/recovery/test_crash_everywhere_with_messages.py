"""No crash loses a message, or applies one twice; the controls show that this would be found."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, Context, Send, StateGraph, Store, append, interrupt
from milecastle.app.runs import starting
from milecastle.engine.received import Received
from milecastle.model.message import Message
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import CrashMismatch, crash_everywhere


class Trip(TypedDict):
    log: Annotated[list[Any], append]


def orders(store: Store) -> App[Trip]:
    """Receives twice in one node, once with a question, and once in vain."""
    graph: StateGraph[Trip] = StateGraph(Trip, name="orders")

    @graph.node
    def two(state: Trip, ctx: Context) -> dict[str, Any]:
        first = ctx.receive("go")
        return {"log": [first, ctx.receive("go")]}

    @graph.node
    def asks(state: Trip, ctx: Context) -> dict[str, Any]:
        found = ctx.receive(("go", "stop"))
        ctx.once("mail", lambda: None)
        return {"log": [found.value, interrupt("well?")]}

    @graph.node
    def waits(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("never", timeout=3600, default="none")]}

    graph.add_edges(START, "two", "asks", "waits", END)
    return graph.compile(store=store)


def parallel(store: Store) -> App[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip, name="parallel")

    @graph.node
    def work(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.receive("go")
        return {}

    @graph.node
    def last(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.receive("go")]}

    graph.add_conditional_edges(START, lambda state: [Send("work", {})] * 3, ["work"])
    graph.add_edges("work", "last", END)
    return graph.compile(store=store)


def sender(at_once: int) -> Callable[[tuple[str, ...]], Iterable[tuple[str, Any]]]:
    """Numbers what it sends: a message that is sent in place of a lost one is another."""
    count = itertools.count()

    def send(topics: tuple[str, ...]) -> Iterable[tuple[str, Any]]:
        if "go" not in topics:
            return []
        return [("go", next(count)) for _ in range(at_once)]

    return send


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Store]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    yield store
    store.close()


def same_order(old: Any, new: Any) -> bool:
    """The numbers go on from one course to the next: their distances are the same."""

    def distances(state: Any) -> list[Any]:
        log = [one for one in state["log"] if isinstance(one, int)]
        return [b - a for a, b in itertools.pairwise(log)]

    return len(old["log"]) == len(new["log"]) and distances(old) == distances(new)


def test_no_crash_loses_or_repeats_a_message(store: Store) -> None:
    report = crash_everywhere(
        orders(store),
        {"log": []},
        answer=lambda question: "yes",
        send=sender(1),
        compare=same_order,
    )
    assert report.crashes > 30


def test_no_crash_mixes_up_messages_of_parallel_tasks(store: Store) -> None:
    """Every message is sent at the first stop: one is left for the last node, whatever crashed."""

    def send(topics: tuple[str, ...]) -> Iterable[tuple[str, Any]]:
        return [("go", 1)] * 5

    for seed in range(2):
        report = crash_everywhere(parallel(store), {"log": []}, send=send, seed=seed)
        assert report.crashes > 10


def test_messages_consumed_on_receipt_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a receive that consumes at once loses the message with the process."""
    store = MemoryStore()
    look: Callable[..., Sequence[Message]] = vars(starting)["look"]

    def consuming(*given: Any) -> Sequence[Message]:
        found = look(*given)[:1]
        for message in found:
            assert store.mailbox is not None
            store.mailbox.discard(given[2], message.number)
        return found

    monkeypatch.setattr(starting, "look", consuming)

    def nothing(self: Received) -> tuple[int, ...]:
        return ()

    monkeypatch.setattr(Received, "take", nothing)
    app = parallel(store)

    def send(topics: tuple[str, ...]) -> Iterable[tuple[str, Any]]:
        return [("go", 1)] * 5

    with pytest.raises(CrashMismatch):
        crash_everywhere(app, {"log": []}, send=send)


def test_messages_left_by_the_commit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a commit that consumes nothing lets the next step receive the same again."""
    calls = itertools.count()

    def forgets_one(self: Received) -> tuple[int, ...]:
        found = taken(self)
        return found[1:] if next(calls) == 20 else found

    taken = Received.take
    monkeypatch.setattr(Received, "take", forgets_one)

    def send(topics: tuple[str, ...]) -> Iterable[tuple[str, Any]]:
        return [("go", 1)] * 5

    with pytest.raises(CrashMismatch) as caught:
        crash_everywhere(parallel(MemoryStore()), {"log": []}, send=send)
    assert "messages were lost, or left unread" in str(caught.value.report.mismatches)
