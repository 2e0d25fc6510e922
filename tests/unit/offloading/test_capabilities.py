"""An offloading store offers what the store inside offers, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from milecastle.errors import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.claims import ClaimStore
from milecastle.ports.feed import Feed
from milecastle.ports.notifying import Listen
from milecastle.ports.store import (
    Batch,
    CommitMany,
    PartOf,
    Store,
    Transact,
)
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import SharedObjects, offload
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import Writer, a_key, a_result, an_entry

PORTS: tuple[type, ...] = (ClaimStore,)
VALUE = b"large " * 10


class Ringing(MemoryStore):
    """With a bell and a feed, as PostgreSQL has them."""

    @property
    def listen(self) -> Listen:
        def listen(heard: Callable[[], None]) -> Any:
            heard()
            return self

        return listen

    @property
    def feed(self) -> Feed:
        return cast("Feed", self)


def offloading(store: Store) -> Store:
    return offload(store, SharedObjects("memory:///", threshold=20))


@pytest.fixture(params=["memory", "ringing", "jsonl", "sqlite"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    opened: dict[str, Callable[[], Store]] = {
        "memory": MemoryStore,
        "ringing": Ringing,
        "jsonl": lambda: JsonlStore(tmp_path / "store"),
        "sqlite": lambda: SqliteStore(tmp_path / "store.db"),
    }
    return opened[request.param]()


def test_same_ports_are_offered(inner: Store) -> None:
    """Fails if a class is missing in the table, or is combined where it must not be."""
    store = offloading(inner)
    for port in PORTS:
        assert isinstance(store, port) == isinstance(inner, port), port
    for name in (
        "commit_many",
        "feed",
        "listen",
        "maintenance",
        "part_of",
        "read_many",
        "tags",
        "transact",
    ):
        assert (getattr(store, name) is None) == (getattr(inner, name) is None), name
    assert store.blocking
    assert store.rollup_after == inner.rollup_after
    store.close()


def test_maintenance_is_that_of_the_store_inside(tmp_path: Path) -> None:
    store = offloading(SqliteStore(tmp_path / "store.db"))
    kept = store.maintenance
    assert kept is not None
    Writer(a_key("t", "tenant")).begin(store)
    assert [found.thread for found in kept.verify("tenant", ["t"])] == ["t"]
    assert list(kept.repair("tenant")) == []
    pending = kept.pending_migrations()
    assert pending is not None
    assert pending.version == pending.latest
    assert kept.migrate() == ""
    assert list(kept.examine()) == []
    store.close()


def test_bell_and_feed_are_those_of_the_store_inside() -> None:
    inner = Ringing()
    store = offloading(inner)
    assert store.listen is not None
    heard: list[str] = []
    listening: object = store.listen(lambda: heard.append("ding"))
    feed: object = store.feed
    assert heard == ["ding"]
    assert listening is feed is inner


class Transacting(MemoryStore):
    """Calls the work and commits its batch."""

    @property
    def transact(self) -> Transact:
        def transact(key: ThreadKey, work: Callable[[Any], Batch]) -> bool:
            self.commit(work("connection"))
            return True

        return transact


def test_results_of_a_transaction_are_offloaded() -> None:
    inner = Transacting()
    store = offloading(inner)
    assert store.transact is not None
    key = a_key()
    store.commit(Batch(key=key, head=0, entries=(an_entry(1, next=("task",)),)))
    batch = Batch(key=key, head=1, results=(a_result(1, payload=VALUE),))
    store.transact(key, lambda connection: batch)
    assert inner.results(key)[0].payload != VALUE
    assert store.results(key)[0].payload == VALUE


def test_value_that_a_chain_repeats_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if each entry of a chain fetches its objects by itself."""
    store = offload(MemoryStore(), SharedObjects("memory:///", threshold=20))
    writer = Writer().begin(store)
    for _ in range(3):
        writer.append(store, payload=VALUE)
    reads: list[str] = []
    read = store.objects.folder.read

    def counted(path: str) -> bytes | None:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(store.objects.folder, "read", counted)
    chain = store.read(writer.key)
    assert chain is not None
    assert [entry.payload for entry in chain.entries[1:]] == [VALUE] * 3
    assert len(reads) == 1
    state = store.read_state(writer.key)
    assert state is not None
    assert state.entries == chain.entries
    assert store.read(a_key("none")) is None


class Parted(MemoryStore):
    """A store that is its only part."""

    @property
    def commit_many(self) -> CommitMany:
        return self._commit_many

    def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        for batch in batches:
            self.commit(batch)
        return [None] * len(batches)

    @property
    def part_of(self) -> PartOf:
        return lambda key: self


def test_large_values_of_a_part_are_offloaded() -> None:
    """Fails if a part writes around the object storage, or is another object each time."""
    inner = Parted()
    store = offloading(inner)
    assert store.part_of is not None
    part = store.part_of(a_key())
    assert part is store.part_of(a_key())
    batch = Batch(key=a_key(), head=0, entries=(an_entry(1, payload=VALUE),))
    assert part.commit_many is not None
    assert list(part.commit_many([batch])) == [None]
    assert inner.entries(a_key())[0].payload != VALUE
    assert store.entries(a_key())[0].payload == VALUE
