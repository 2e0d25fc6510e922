"""Emitted values on their way: numbered, encoded, encrypted, and counted when they are missing."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from threading import Thread, Timer
from time import sleep
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, Event, StateGraph, ThreadKey, append
from milecastle.app import emitting
from milecastle.app.emitting import EmittedQueue, Publisher, feed_of
from milecastle.app.encryption.keyring import Keyring
from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import PayloadPlace
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.fleet.worker import Worker
from milecastle.stores.memory import MemoryStore

KEY = ThreadKey("default", "t")
CODEC = LogCodec(ValueCodec(TypeRegistry.for_annotations([])))


class Trip(TypedDict):
    log: Annotated[list[str], append]


def went(state: Trip) -> dict[str, Any]:
    return {"log": ["gone"]}


class Wire:
    """A feed that collects what is published."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, key: ThreadKey, payload: bytes) -> None:
        assert key == KEY
        self.payloads.append(payload)

    def subscribe(self, key: ThreadKey, heard: Any) -> Any:
        raise AssertionError("nobody subscribes")

    subscribe_soon = subscribe


def emitted(value: Any, **changes: Any) -> Event:
    fields: dict[str, Any] = {"key": KEY, "node": "n", "task": "n", "attempt": 2, "step": 3}
    return Event(type="emit", run_id="r", time=7, update=value, **(fields | changes))


def published(*values: Any, codec: LogCodec = CODEC) -> list[bytes]:
    wire = Wire()
    publisher = Publisher(wire, KEY, codec)
    for value in values:
        publisher.publish(emitted(value))
    return wire.payloads


def read(payloads: list[bytes], codec: LogCodec = CODEC) -> list[Any]:
    """The values, and the numbers of those that are missing."""
    mailbox = EmittedQueue(KEY, codec, lambda: None)
    for payload in payloads:
        mailbox.put(payload)
    return [event.update if event.type == "emit" else dict(event.data) for event in mailbox.take()]


def test_an_event_arrives_as_it_was_emitted() -> None:
    """Fails if a field is left out."""
    mailbox, wire = EmittedQueue(KEY, CODEC, lambda: None), Wire()
    events = [emitted({"token": "a"}), emitted(None, key=ThreadKey("default", "t\x1fsub"))]
    for event in events:
        Publisher(wire, KEY, CODEC).publish(event)
    for payload in wire.payloads:
        mailbox.put(payload)
    assert mailbox.take() == events
    assert mailbox.take() == []


def test_missing_values_are_counted() -> None:
    """Fails if a gap goes unnoticed. What was published before the first one is not missing."""
    payloads = published(*range(10))
    assert read(payloads) == list(range(10))
    assert read(payloads[4:]) == list(range(4, 10))
    assert read([*payloads[:2], *payloads[5:7]]) == [0, 1, {"count": 3}, 5, 6]


def test_a_slow_reader_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if what waits for it is not bounded."""
    monkeypatch.setattr(emitting, "_ROOM", 3)
    mailbox = EmittedQueue(KEY, CODEC, lambda: None)
    payloads = published(*range(10))
    for payload in payloads:
        mailbox.put(payload)
    missed, *others = mailbox.take()
    assert (missed.type, missed["count"]) == ("missed", 7)
    assert [event.update for event in others] == [7, 8, 9]
    assert mailbox.take() == []


def test_runs_of_one_thread_are_counted_separately() -> None:
    """A thread may have another run, or another worker. Fails if one publisher's numbers count."""
    assert read([*published(1, 2, 3), *published(4)]) == [1, 2, 3, 4]


def test_a_value_that_cannot_be_encoded_is_left_out_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if emitting raises. The reader learns that it misses something."""
    payloads = published("before", object(), object(), "after")
    assert read(payloads) == ["before", {"count": 2}, "after"]
    (record,) = caplog.records
    assert "a value of type object was emitted" in record.getMessage()


def test_what_nobody_published_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Anyone who may connect to the database can send. Fails if a reader raises.

    An empty payload is the notice that a run may have stopped.
    """
    caplog.set_level(logging.DEBUG)
    forged = CODEC.seal(CODEC.encode_state({"number": "one"}), PayloadPlace(task="emit"))
    assert read([b"", b"noise", forged, *published("real")]) == ["real"]
    assert len(caplog.records) == 2


def test_values_of_an_encrypted_thread_are_encrypted() -> None:
    """Fails if the values are sealed by the envelope alone: the text would be in the payload."""
    keyring = Keyring({"a": bytes(32)}, store=MemoryStore())
    codec = LogCodec(ValueCodec(TypeRegistry.for_annotations([])), sealers=keyring)
    payloads = published("a secret", codec=codec.for_thread(KEY, new=True))
    assert b"secret" not in payloads[0]
    assert read(payloads, codec.for_thread(KEY)) == ["a secret"]
    other = Keyring({"a": bytes(32)}, store=MemoryStore())
    stranger = LogCodec(ValueCodec(TypeRegistry.for_annotations([])), sealers=other)
    assert read(payloads, stranger.for_thread(KEY, new=True)) == []
    assert read(payloads) == []
    assert read(published("plain"), codec.for_thread(KEY)) == []


def test_a_store_without_a_feed_has_one_in_this_process() -> None:
    """Fails if a subscription that has ended still hears, or ends another."""
    store, heard = MemoryStore(), list[tuple[int, bytes]]()
    feed = feed_of(store)
    assert feed_of(store) is feed
    assert feed_of(MemoryStore()) is not feed

    def hear(number: int, payload: bytes) -> None:
        heard.append((number, payload))

    ends = [feed.subscribe(KEY, partial(hear, number)) for number in range(2)]
    feed.publish(KEY, b"a")
    feed.publish(ThreadKey("default", "other"), b"b")
    ends[0]()
    feed.publish(KEY, b"c")
    ends[1]()
    ends[1]()
    feed.publish(KEY, b"d")
    assert heard == [(0, b"a"), (1, b"a"), (1, b"c")]


def test_a_reader_waits_for_values_that_come_late_until_the_run_is_said_to_have_stopped() -> None:
    """Fails if a stopped thread gets the same short moment whether or not the hint came."""
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("go", went).add_edges(START, "go", END)
    app = graph.compile(store=MemoryStore())
    app.invoke({"log": []}, "t")
    feed, (first, *others) = feed_of(app.store), published(*range(4))
    reader = iter(app.follow("t", emitted=True))
    found: list[Event[Trip]] = [next(reader)]

    def later() -> None:
        feed.publish(KEY, first)
        sleep(1.0)  # a starved process
        for payload in (*others, b""):
            feed.publish(KEY, payload)

    sender = Thread(target=later)
    sender.start()
    found += reader
    sender.join()
    assert [event.update for event in found if event.type == "emit"] == list(range(4))


class SlowFeed:
    """Carries payloads in their order, each a second late."""

    def __init__(self) -> None:
        self._inner = feed_of(MemoryStore())
        self.subscribe = self._inner.subscribe
        self.subscribe_soon = self._inner.subscribe_soon

    def publish(self, key: ThreadKey, payload: bytes) -> None:
        Timer(1.0, self._inner.publish, (key, payload)).start()


class SlowStore(MemoryStore):
    """A store whose feed is slow."""

    def __init__(self) -> None:
        super().__init__()
        self._slow = SlowFeed()

    @property
    def feed(self) -> SlowFeed:
        return self._slow


def test_a_reader_that_saw_the_run_waits_for_the_hint_that_it_stopped() -> None:
    """Seen to fail: the reader was over before a starved process had sent the first value."""
    store = SlowStore()
    graph: StateGraph[Trip] = StateGraph(Trip)
    graph.add_node("go", went).add_edges(START, "go", END)
    app = graph.compile(store=store)
    app.submit({"log": []}, "t")
    reader = iter(app.follow("t", emitted=True, poll=0.05))
    found: list[Event[Trip]] = [next(reader)]
    asyncio.run(Worker([app]).run_until_idle())
    store.feed.publish(KEY, published("late")[0])
    found += reader
    assert [event.update for event in found if event.type == "emit"] == ["late"]
