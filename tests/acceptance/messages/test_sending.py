"""Messages are sent to threads at any time, checked, stored in order, listed and discarded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypedDict, cast

import msgspec.structs
import pytest

from milecastle import (
    END,
    START,
    App,
    Context,
    InvalidRequest,
    Keyring,
    StateGraph,
    Store,
    ThreadKey,
    UnserializableState,
    interrupt,
)
from milecastle.errors import Corrupted, EncryptionError
from milecastle.model.message import MAX_MESSAGE_BYTES
from milecastle.model.run import RunRecord
from milecastle.ports.mailbox import Mailbox
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.wrapping import ForwardingStore
from tests.acceptance.running import Runner

KEY = ThreadKey("default", "t")
OLD = b"o" * 32


@dataclasses.dataclass
class Order:
    id: int
    lines: list[str]


class Trip(TypedDict):
    n: int


def asking(store: Store | None, name: str = "trip", **options: Any) -> App[Trip]:
    topics = options.pop("topics", None)
    graph: StateGraph[Trip] = StateGraph(Trip, name=name, topics=topics)
    graph.add_node("ask", lambda state: {"n": interrupt("how many?", answer=int)})
    graph.add_edges(START, "ask", END)
    return graph.compile(store=store, **options)


def mailbox_of(store: Store) -> Mailbox:
    assert store.mailbox is not None
    return store.mailbox


def test_messages_are_listed_in_order_with_their_senders(store: Store, run: Runner) -> None:
    """Fails if a field is lost on its way, or the order is another."""
    app = asking(store)
    app.invoke({"n": 0}, "t")
    for number, topic in enumerate(("a", "b", "a"), 1):
        sent = run.call(app.send, app.asend, "t", {"x": number}, topic, key=f"k{number}", by="ann")
        assert (sent.number, sent.reused, sent.status) == (number, False, "interrupted")
    found = run.call(app.mailbox, app.amailbox, "t")
    assert [(one.number, one.topic, one.value) for one in found] == [
        (1, "a", {"x": 1}),
        (2, "b", {"x": 2}),
        (3, "a", {"x": 3}),
    ]
    assert [(one.key, one.by) for one in found] == [("k1", "ann"), ("k2", "ann"), ("k3", "ann")]
    assert found[0].sent_at.tzinfo is not None
    assert [one.number for one in app.mailbox("t", "b")] == [2]
    assert "'x'" not in repr(found)


@pytest.mark.requirement("M1")
def test_a_key_is_accepted_once_and_messages_without_one_always(store: Store) -> None:
    """Fails if the mark is not made of the key, or two calls without a key share one."""
    app = asking(store)
    app.invoke({"n": 0}, "t")
    assert not app.send("t", 1, key="k").reused
    assert app.send("t", 2, key="k").reused
    assert app.send("t", 2, key="k").number == 1
    assert not app.send("t", 1).reused
    assert not app.send("t", 1).reused
    assert [(one.value, one.key) for one in app.mailbox("t")] == [(1, "k"), (1, None), (1, None)]


def test_a_discarded_message_is_gone_and_its_key_remembered(store: Store, run: Runner) -> None:
    app = asking(store)
    app.invoke({"n": 0}, "t")
    app.send("t", 1, key="k")
    app.send("t", 2)
    assert run.call(app.discard, app.adiscard, "t", 1)
    assert not app.discard("t", 1)
    assert [one.value for one in app.mailbox("t")] == [2]
    assert app.send("t", 1, key="k").reused


def test_a_message_needs_a_thread_of_this_graph(store: Store) -> None:
    """Fails if the graph's name is not compared, or a missing thread is created."""
    app = asking(store)
    with pytest.raises(InvalidRequest, match=r"'t' does not exist.*if_absent"):
        app.send("t", 1)
    assert store.thread(KEY) is None
    asking(store, "other").invoke({"n": 0}, "t")
    with pytest.raises(InvalidRequest, match=r"of the graph 'other'.*this app is of 'trip'"):
        app.send("t", 1)
    asking(store, "other").submit({"n": 0}, "submitted")
    with pytest.raises(InvalidRequest, match="of the graph 'other'"):
        app.send("submitted", 1)
    assert not mailbox_of(store).unread(KEY)


def test_a_thread_of_another_library_gets_no_message(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if only the name is compared: such threads may have the graph's name."""
    app = asking(store)
    app.invoke({"n": 0}, "t")
    foreign = msgspec.structs.replace(store.runs(KEY)[0], fingerprint="")

    def run(key: ThreadKey, run_id: str) -> RunRecord:
        return foreign

    monkeypatch.setattr(store, "run", run)
    with pytest.raises(InvalidRequest, match="would never receive"):
        app.send("t", 1)


def test_a_deleted_thread_has_no_mailbox(store: Store) -> None:
    app = asking(store)
    app.invoke({"n": 0}, "t")
    app.send("t", 1)
    app.delete("t", take_over=True)
    with pytest.raises(InvalidRequest, match="does not exist"):
        app.send("t", 1)
    app.invoke({"n": 0}, "t")
    assert not app.mailbox("t")


@pytest.mark.parametrize("topic", ["__children__", "__", "a\0b", "x" * 129])
def test_reserved_and_unstorable_topics_are_refused(store: Store, topic: str) -> None:
    """Fails if a caller can use a topic that the engine reserves for itself."""
    app = asking(store)
    app.invoke({"n": 0}, "t")
    with pytest.raises(InvalidRequest, match="a topic"):
        app.send("t", 1, topic)
    with pytest.raises(InvalidRequest, match="a topic"):
        StateGraph(Trip, topics={topic: int})


@pytest.mark.parametrize("given", [{"key": ""}, {"by": ""}, {"key": "\ud800"}])
def test_empty_and_unstorable_keys_are_refused(store: Store, given: dict[str, Any]) -> None:
    app = asking(store)
    app.invoke({"n": 0}, "t")
    with pytest.raises(InvalidRequest):
        app.send("t", 1, **given)


def test_a_message_has_at_most_a_mebibyte(store: Store) -> None:
    """Fails if the size is not compared before the message is stored."""
    app = asking(store)
    app.invoke({"n": 0}, "t")
    app.send("t", "x" * (MAX_MESSAGE_BYTES - 100))
    with pytest.raises(InvalidRequest, match="at most 1,048,576 bytes"):
        app.send("t", "x" * MAX_MESSAGE_BYTES)
    assert len(app.mailbox("t")) == 1


def test_a_value_that_no_codec_stores_is_refused_without_being_named(store: Store) -> None:
    app = asking(store)
    app.invoke({"n": 0}, "t")
    with pytest.raises(UnserializableState):
        app.send("t", object())
    assert not app.mailbox("t")


@pytest.mark.requirement("M3")
def test_declared_types_are_checked_before_a_message_is_stored(store: Store) -> None:
    """Fails if plain data is stored as it came, or an instance is not looked into."""
    app = asking(store, topics={"orders": Order, "counts": int})
    app.invoke({"n": 0}, "t")
    app.send("t", {"id": 7, "lines": ["a"]}, "orders")
    app.send("t", Order(8, ["b"]), "orders")
    app.send("t", 3, "counts")
    app.send("t", {"anything": 1}, "free")
    values = [one.value for one in app.mailbox("t")]
    assert values == [Order(7, ["a"]), Order(8, ["b"]), 3, {"anything": 1}]
    wrongs: list[Any] = [{"id": "secret"}, Order(cast("Any", "secret"), []), None]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest, match="topic 'orders' is not a valid Order") as caught:
            app.send("t", wrong, "orders")
        assert "secret" not in str(caught.value)
    assert len(app.mailbox("t")) == 4


def test_topics_do_not_change_the_fingerprint() -> None:
    """Paused threads continue when a graph declares the types of its messages."""
    assert asking(None).fingerprint == asking(None, topics={"orders": Order}).fingerprint


def test_types_that_cannot_be_checked_are_refused_when_declared() -> None:
    with pytest.raises(TypeError):
        StateGraph(Trip, topics={"orders": 3})
    with pytest.raises(TypeError, match="topics="):
        StateGraph(Trip, topics=cast("Any", ["orders"]))


def test_encrypted_messages_open_in_their_thread_and_topic_only(store: Store) -> None:
    """Fails if the place does not name the topic or the mark, or the codec is not the thread's."""
    keyring = Keyring({"old": OLD}, store=MemoryStore())
    app = asking(store, encryption=keyring)
    for thread in ("t", "u"):
        app.invoke({"n": 0}, thread)
    app.send("t", "amber-room", "a", key="amber-key", by="amber-sender")
    assert [one.value for one in app.mailbox("t")] == ["amber-room"]
    mailbox = mailbox_of(store)
    stored = mailbox.unread(KEY)[0]
    assert b"amber" not in stored.payload + stored.mark.encode()
    mailbox.send(KEY, "b", "other", stored.payload)
    mailbox.send(KEY, "a", stored.mark + "'", stored.payload)
    mailbox.send(ThreadKey("default", "u"), "a", stored.mark, stored.payload)
    mailbox.restore(KEY, [msgspec.structs.replace(stored, topic="d")])
    for thread, topic in (("t", "a"), ("t", "b"), ("t", "d"), ("u", "a")):
        with pytest.raises(EncryptionError):
            app.mailbox(thread, topic)


class NoMailboxes(ForwardingStore):
    @property
    def mailbox(self) -> None:
        return None


def test_a_store_without_mailboxes_refuses_messages() -> None:
    app = asking(NoMailboxes(MemoryStore()))
    app.invoke({"n": 0}, "t")
    with pytest.raises(InvalidRequest, match="NoMailboxes has none"):
        app.send("t", 1)
    with pytest.raises(InvalidRequest, match="NoMailboxes has none"):
        app.mailbox("t")


def test_a_thread_in_a_file_receives_messages(tmp_path: Path) -> None:
    """It has no workers: a caller resumes it. Fails if a line of messages is not read again."""

    def receives(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"n": ctx.receive("go", int)}

    def built() -> App[Trip]:
        graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
        graph.add_node("ask", receives)
        graph.add_edges(START, "ask", END)
        return graph.compile(store=JsonlStore(tmp_path / "log"))

    app, other = built(), built()
    assert app.invoke({"n": 0}, "t").status == "sleeping"
    assert other.send("t", 1, "no", key="k").number == 1
    assert other.send("t", 7, "go").number == 2
    assert app.send("t", 1, "no", key="k").reused
    assert app.resume("t").state["n"] == 7
    assert [message.topic for message in other.mailbox("t")] == ["no"]
    assert app.store.maintenance is not None
    assert [one.findings for one in app.store.maintenance.verify("default")] == [()]
    log = next((tmp_path / "log").rglob("*.jsonl"))
    log.write_bytes(log.read_bytes().replace(b'"topic":"no"', b'"topic":"on"'))
    with pytest.raises(Corrupted):
        built().mailbox("t")
