"""What tests of moves ask of the databases of a map."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from milecastle.model.checkpoint import SNAPSHOT, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.tags import TagChange
from milecastle.ports.store import Batch
from milecastle.stores.postgres.address import parse
from milecastle.stores.sharded import ShardedStore, read_map
from milecastle.testing.contract_claims import a_line, queued
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.contract_inputs import enqueued
from milecastle.testing.entries import Writer

TABLES = ("entries", "threads", "runs", "results", "tags", "mailbox")


def execute(path: Path, database: str, query: str) -> list[tuple[Any, ...]]:
    url = read_map(path).urls[database]
    with psycopg.connect(**parse(url).connect, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def rows_of(path: Path, database: str) -> int:
    """How many rows of threads a database has."""
    return sum(
        execute(path, database, f"SELECT count(*) FROM milecastle.{table}")[0][0]
        for table in TABLES
    )


def states(path: Path, shard: int) -> dict[str, str]:
    """What each database says of a shard."""
    query = f"SELECT state FROM milecastle.placements WHERE shard = {shard}"
    found = {name: execute(path, name, query) for name in read_map(path).urls}
    return {name: rows[0][0] for name, rows in found.items() if rows}


def same_shard(count: int, database: str, path: Path) -> list[ThreadKey]:
    """Threads of one shard of a database."""
    shards = read_map(path).shards_of(database)
    by_shard: dict[int, list[ThreadKey]] = {}
    for number in range(200_000):
        key = ThreadKey("tenant", f"thread {number}")
        own = by_shard.setdefault(key.shard, [])
        own.append(key)
        if len(own) == count and key.shard in shards:
            return own
    raise AssertionError("there are not enough")


def full(store: ShardedStore, keys: list[ThreadKey]) -> list[Writer]:
    """Threads with everything that a thread can have."""
    writers: list[Writer] = []
    for number, key in enumerate(keys, 1):
        writer = queued(store, key.thread, number, due_at=number)
        writer.append(store, SNAPSHOT)
        result = TaskResult(seq=writer.head, task="task", payload=b"x")
        tags = TagChange(add=("blue",))
        line = a_line(writer, due_at=number)
        store.commit(writer.batch(results=(result,), manifest=(f"{number:032}", b"m")))
        store.commit(writer.batch(thread=line, tags=tags))
        enqueued(store, writer, 100 + number)
        for mark in ("first", "second"):
            store.mailbox.send(key, "topic", mark, b"message")
        store.mailbox.discard(key, 2)  # 1 is the input
        writers.append(writer)
    return writers


def content(store: ShardedStore, writer: Writer, number: int) -> object:
    key = writer.key
    return (
        everything_of(store, key),
        list(store.mailbox.unread(key)),
        store.mailbox.marks(key),
        store.tags.of("tenant", [key.thread]),
        store.manifest(key, f"{number:032}"),
    )


def results(writer: Writer) -> Batch:
    result = TaskResult(seq=writer.head, task="more", payload=b"x")
    return writer.batch(results=(result,))


def interrupt(step: str) -> Callable[[str], None]:
    def die(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    return die
