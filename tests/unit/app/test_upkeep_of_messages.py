"""Messages in copies, retention and verification."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from milecastle import InvalidRequest, Retention, Store, copy_threads
from milecastle.app.upkeep.retention import apply_retention
from milecastle.app.upkeep.verifying import verify_thread
from milecastle.codec.deltas import LogCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import WrappedStore
from milecastle.testing.contract_mailbox import mailbox_of, running, send, suspended, unread
from milecastle.testing.entries import Writer
from tests.every_store import POSTGRES, Stores

KINDS = ["memory", "sqlite", pytest.param("postgres", marks=[POSTGRES])]
NOW = 2**52


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


def with_messages(store: Store, thread: str = "a") -> Writer:
    """A thread with two unread messages, one consumed and one discarded."""
    writer = running(store, thread)
    for number in range(1, 5):
        send(store, writer, f"m{number}")
    writer.append(store, SNAPSHOT, consumes=(1,))
    assert mailbox_of(store).discard(writer.key, 4)
    writer.append(store, SNAPSHOT, thread=suspended(writer, waiting_topics=(("go", 3),)))
    return writer


def mailbox_at(store: Store, key: ThreadKey) -> tuple[Any, ...]:
    return list(mailbox_of(store).unread(key)), mailbox_of(store).marks(key)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_has_unread_messages_and_the_marks_of_consumed_ones(
    stores: Stores, kind: str
) -> None:
    """Fails if messages are sent to the copy: their numbers, which the index row names, differ."""
    source, target = stores.open("memory"), stores.open(kind, "target")
    writer = with_messages(source)
    assert copy_threads(source, target, "tenant").changed == 1
    assert copy_threads(source, target, "tenant").changed == 0
    assert mailbox_at(target, writer.key) == mailbox_at(source, writer.key)
    assert target.thread(writer.key) == source.thread(writer.key)
    assert mailbox_of(target).send(writer.key, "go", "m1", b"x").reused
    assert mailbox_of(target).send(writer.key, "go", "m5", b"x").number == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_copy_consumes_what_was_consumed(stores: Stores, kind: str) -> None:
    """Fails if messages stay unread in the copy: its run would receive them again. Also fails if
    the index row is written before that: then it is due for one of them."""
    source, target = stores.open("memory"), stores.open(kind, "target")
    writer = with_messages(source)
    copy_threads(source, target, "tenant")
    assert unread(target, writer.key) == [2, 3]
    row = suspended(writer, waiting_topics=(("go", 0),))
    writer.append(source, SNAPSHOT, thread=row, consumes=(2, 3))
    send(source, writer, "m5", "other")
    copy_threads(source, target, "tenant")
    assert mailbox_at(target, writer.key) == mailbox_at(source, writer.key)
    assert unread(target, writer.key) == [5]
    assert target.thread(writer.key) == row
    assert mailbox_of(target).send(writer.key, "go", "m3", b"x").reused


def test_a_message_consumed_while_its_thread_is_copied_is_not_unread_in_the_copy(
    stores: Stores,
) -> None:
    """Fails if the mailbox is read before the head is compared again."""
    source, target = stores.open("memory"), stores.open("memory")
    writer = with_messages(source)

    class Racing(WrappedStore):
        def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
            if unread(source, key) == [2, 3]:
                writer.append(source, consumes=(2,))
            return super().runs(key, limit=limit)

    copy_threads(Racing(source), target, "tenant")
    assert unread(target, writer.key) == [3]
    assert next(entry.seq for entry in target.history(writer.key)) == writer.head


def test_a_copy_to_a_store_without_mailboxes_is_refused_if_messages_are_unread(
    stores: Stores,
) -> None:
    """Fails if they are lost without a word."""

    class Without(WrappedStore):
        @property
        def mailbox(self) -> None:
            return None

    source = stores.open("memory")
    writer = with_messages(source)
    with pytest.raises(InvalidRequest, match="2 unread messages"):
        copy_threads(source, Without(stores.open("memory")), "tenant")
    for number in (2, 3):
        mailbox_of(source).discard(writer.key, number)
    assert copy_threads(source, Without(stores.open("memory")), "tenant").changed == 1


@pytest.mark.parametrize("kind", KINDS)
def test_retention_keeps_a_thread_that_a_message_made_due(stores: Stores, kind: str) -> None:
    """Fails if a due thread is tried to be deleted. Unread messages alone keep no thread."""
    store = stores.open(kind)
    for number, name in enumerate(("due", "unread"), 1):
        writer = running(store, name, number)
        send(store, writer, "m", "go" if name == "due" else "other")
        ended = suspended(writer, status="completed")
        writer.append(store, next=(), thread=ended)
    codec = LogCodec(ValueCodec(TypeRegistry()))
    rules = Retention(older_than=timedelta(days=1))
    report = apply_retention(store, codec, "tenant", rules, now=NOW)
    assert (report.deleted, report.busy) == (("unread",), ())
    assert [info.key.thread for info in store.threads("tenant")] == ["due"]


def test_verification_reads_messages(tmp_path: Path) -> None:
    """Fails if the mailbox is not read: its damage would be found when it is needed."""
    place = tmp_path / "store.db"
    with closing(SqliteStore(place)) as store:
        writer, other = with_messages(store), with_messages(store, "b")
    for damage in ("sum = sum + 1 WHERE number = 2", "mark = 'x' WHERE number = 1"):
        with closing(sqlite3.connect(place)) as database:
            database.execute(
                f"UPDATE mailbox SET {damage} AND thread = 1".replace("number", "id % 4294967296")
            )
            database.commit()
        with closing(SqliteStore(place)) as store:
            places = [found.place for found in verify_thread(store, writer.key).findings]
            assert any("table mailbox, thread 'tenant/a'" in place for place in places)
            places = [found.place for found in verify_thread(store, other.key).findings]
            assert not any("mailbox" in place for place in places)
