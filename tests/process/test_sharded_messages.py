"""Messages that are sent and consumed while their shard moves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import cycle
from pathlib import Path
from threading import Event

import pytest

from milecastle.stores.sharded import ShardedStore, move_shard, read_map
from milecastle.testing.contract_claims import LANE, a_line, names, queued
from milecastle.testing.entries import Writer
from tests.postgres_cluster import needs_postgres
from tests.process.sharded_moves import same_shard

pytestmark = needs_postgres

SENDERS = 4


def during(step: str, work: Callable[[], object]) -> Callable[[str], None]:
    """Do something before a move's step, once."""
    left = [work]

    def told(name: str) -> None:
        if name == step and left:
            left.pop()()

    return told


@pytest.mark.parametrize("step", ["copy", "lock", "clean"])
def test_message_sent_during_a_move_moves_with_its_shard(
    store: ShardedStore, path: Path, step: str
) -> None:
    """Seen to fail: without a copy of ``mailbox``, and of the counter in the row."""
    (key,) = same_shard(1, "a", path)
    writer = queued(store, key.thread, worker="one", status="running")
    row = a_line(writer, status="sleeping", due_at=None, waiting_topics=(("go", 1),))
    writer.append(store, thread=row)
    mailbox = store.mailbox
    mailbox.send(key, "go", "m1", b"1")

    def meanwhile() -> None:
        with closing(ShardedStore(path)) as other:
            assert other.mailbox.send(key, "go", "m2", b"2").number == 2

    assert move_shard(read_map(path), key.shard, "b", during(step, meanwhile))
    assert [(one.number, one.payload) for one in mailbox.unread(key)] == [(1, b"1"), (2, b"2")]
    assert mailbox.send(key, "go", "m2", b"again").reused
    assert mailbox.send(key, "go", "m3", b"3").number == 3
    assert names(store.claim("two", [LANE], limit=9)) == [key.thread]


@pytest.mark.parametrize(
    ("each", "least"), [(50, 4), pytest.param(500, 20, marks=pytest.mark.slow)]
)
def test_messages_sent_while_a_shard_moves_arrive_once_and_in_order(
    store: ShardedStore, path: Path, each: int, least: int
) -> None:
    """Each is sent twice. Seen to fail: when ``send`` did not compare the placement."""
    (key,) = same_shard(1, "a", path)
    writer = queued(store, key.thread, worker="one", status="running")
    sent = Event()

    def send(sender: int) -> None:
        with closing(ShardedStore(path)) as own:
            for number in range(each):
                for _ in range(2):
                    own.mailbox.send(key, f"topic {sender % 2}", f"{sender}-{number}", b"x")

    def move() -> int:
        moves = 0
        for to in cycle("bca"):
            if moves >= least and sent.is_set():
                return moves
            moves += move_shard(read_map(path), key.shard, to)
        return moves

    with ThreadPoolExecutor(SENDERS + 2) as pool:
        moving = pool.submit(move)
        senders = [pool.submit(send, sender) for sender in range(SENDERS)]
        consuming = pool.submit(consume, path, writer, sent)
        for sending in senders:
            sending.result(200)
        sent.set()
        assert moving.result(200) >= least
        received = consuming.result(200)
    assert len(received) == SENDERS * each
    for sender in range(SENDERS):
        own = [mark for mark in received if mark.startswith(f"{sender}-")]
        assert own == [f"{sender}-{number}" for number in range(each)]
    assert list(store.mailbox.unread(key)) == []
    assert store.mailbox.marks(key).last == SENDERS * each


def consume(path: Path, writer: Writer, sent: Event) -> list[str]:
    """The marks of all messages, in the order in which steps consumed them."""
    received: list[str] = []
    with closing(ShardedStore(path)) as own:
        while True:
            was_last = sent.is_set()
            found = own.mailbox.unread(writer.key, limit=7)
            if found:
                writer.append(own, consumes=tuple(one.number for one in found))
                received += [one.mark for one in found]
            elif was_last:
                return received
