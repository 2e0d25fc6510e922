"""Archived entries are read like any other, whatever the store inside.

Random threads are written, archived at random cuts and pruned; after each change everything is read
and compared with what was written. Each defect named in a docstring was put in once, and found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

from milecastle.errors import Conflict, Corrupted
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Kind
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import OffloadingStore, SharedObjects, offload, sweep
from milecastle.stores.offloading.archive import spans_in
from milecastle.stores.offloading.objects import object_path
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import Writer, a_key, an_entry, state_of
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster
from tests.seeds import seeds

KINDS: tuple[Kind, ...] = (DELTA, DELTA, DELTA, ROLLUP, SNAPSHOT)


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda place: SqliteStore(place / "runs.db"),
    "jsonl": lambda place: JsonlStore(place / "runs"),
    "postgres": lambda _: PostgresStore(the_cluster().url_of(new_schema())),
}


@pytest.fixture(
    params=["memory", "sqlite", "jsonl", pytest.param("postgres", marks=needs_postgres)]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OffloadingStore]:
    inner = STORES[request.param](tmp_path)
    yield offload(inner, SharedObjects(f"file://{tmp_path}/objects", threshold=200))
    inner.close()


def some_kinds(chosen: random.Random, count: int) -> list[Kind]:
    return [chosen.choice(KINDS) for _ in range(count)]


class Archiving:
    """A writer, and all it has written; ``floor`` is the oldest entry that was not pruned."""

    def __init__(self, store: OffloadingStore, name: str = "thread") -> None:
        self.store = store
        self.writer = Writer(a_key(name))
        self.written: dict[int, Entry] = {}
        self.floor = 1

    def write(self, *kinds: Kind) -> None:
        for kind in kinds:
            parts: dict[str, Any] = {}
            if not self.writer.head:
                parts = {"runs": (self.writer.run,), "source": "input"}
            entry = self.writer.append(self.store, kind, **parts)
            self.written[entry.seq] = entry

    @property
    def highest(self) -> int:
        return self.written[self.writer.head].roll_seq

    def archive(self, cut: int) -> int:
        key, head = self.writer.key, self.writer.head
        rewritten = partial(rewrite, self)
        return self.store.archive.put(key, head=head, cut=cut, rewritten=rewritten)

    def prune(self, cut: int) -> int:
        dropped = self.store.prune(
            self.writer.key, head=self.writer.head, cut=cut, rewritten=rewrite(self, cut)
        )
        self.floor = max(self.floor, cut)
        return dropped

    def check(self) -> None:
        """Compare every read path with what was written."""
        key, store, head = self.writer.key, self.store, self.writer.head
        living = list(range(self.floor, head + 1))
        assert [entry.seq for entry in store.history(key)] == living[::-1]
        assert [entry.id for entry in store.history(key)] == [
            self.written[seq].id for seq in living[::-1]
        ]
        assert [entry.seq for entry in store.entries(key)] == living
        for seq in range(head + 2):
            chain = store.read(key, seq)
            bare = store.read_state(key, seq)
            if seq not in living:
                assert chain is bare is None, seq
                continue
            assert chain
            assert bare
            assert state_of(chain.entries) == self.writer.states[seq]
            assert state_of(bare.entries) == self.writer.states[seq]
            assert chain.entries[-1].id == self.written[seq].id
            assert store.locate(key, self.written[seq].id) == seq
            page = store.entries(key, after=seq - 1, limit=3)
            assert [entry.seq for entry in page] == living[seq - self.floor :][:3]
            shown = store.history(key, before=seq, limit=3)
            assert [entry.seq for entry in shown] == living[: seq - self.floor][::-1][:3]


def segments_of(archiving: Archiving) -> list[str]:
    """The paths of a thread's segments."""
    oldest = archiving.store.archive.oldest(archiving.writer.key)
    assert oldest is not None
    tenant = archiving.writer.key.tenant
    return [object_path(tenant, span.name) for span in spans_in(oldest.payload)[0]]


def rewrite(archiving: Archiving, cut: int) -> list[Entry]:
    """Snapshots at a cut, as a caller makes them from what it reads."""
    store, key = archiving.store, archiving.writer.key
    kept = [entry for entry in store.history(key) if entry.seq >= cut][::-1]
    if not kept or kept[0].seq != cut:
        return []

    def as_snapshot(entry: Entry) -> Entry:
        state = archiving.writer.states[entry.seq]
        return msgspec.structs.replace(
            entry, kind=SNAPSHOT, base_seq=entry.seq, roll_seq=entry.seq, payload=state
        )

    found = [] if kept[0].kind == SNAPSHOT else [as_snapshot(kept[0])]
    rolled = next((entry for entry in kept[1:] if entry.kind != DELTA), None)
    if rolled is not None and rolled.kind == ROLLUP and kept[0].kind == DELTA:
        found.append(as_snapshot(rolled))
    return found


@pytest.mark.parametrize("seed", seeds(3))
def test_archived_threads_read_like_others(store: OffloadingStore, seed: int) -> None:
    """Fails if a segment begins with a delta, a cut row loses its segments, a page from below the
    oldest row skips the archive, or a merged segment is forgotten."""
    chosen = random.Random(seed)
    one = Archiving(store)
    one.write(*some_kinds(chosen, 12))
    for _ in range(10):
        one.write(*some_kinds(chosen, chosen.randrange(5)))
        match chosen.randrange(4):
            case 0:
                one.prune(chosen.randint(one.floor, one.highest))
            case _:
                one.archive(chosen.randint(1, one.highest))
        one.check()
    named = segments_of(one)
    assert all(store.objects.folder.find(path) for path in named)
    assert store.delete(one.writer.key)
    assert store.read(one.writer.key, 1) is None
    assert not list(store.history(one.writer.key))
    assert not any(store.objects.folder.find(path) for path in named)


@pytest.mark.parametrize("seed", seeds(3))
def test_restored_threads_are_whole(store: OffloadingStore, seed: int) -> None:
    """Fails if a restored entry loses its parent or its run, or the rows below stay named."""
    chosen = random.Random(seed)
    one = Archiving(store)
    one.write(*some_kinds(chosen, 12))
    before = list(store.entries(one.writer.key))
    for _ in range(4):
        one.archive(chosen.randint(1, one.highest))
    count = len(before) - len(store.inner.entries(one.writer.key))
    key, head = one.writer.key, one.writer.head
    moved = {entry.seq for entry in store.entries(key) if entry.kind == SNAPSHOT}
    assert store.archive.restore(key, head=head) == count
    assert store.archive.restore(key, head=head) == 0
    after = list(store.inner.entries(key))
    assert len(after) == len(before)
    for was, entry in zip(before, after, strict=True):
        if was.seq not in moved:
            assert entry == was
        assert (entry.id, entry.parent_id, entry.run_id) == (was.id, was.parent_id, was.run_id)
    one.check()
    one.write(DELTA, ROLLUP, DELTA)
    one.check()
    assert one.archive(one.highest)
    with pytest.raises(Conflict):
        store.archive.restore(key, head=head)


def test_what_was_pruned_meanwhile_is_not_archived(store: OffloadingStore) -> None:
    """Fails if the transaction compares the head alone: pruned entries then come back."""
    one = Archiving(store)
    one.write(*(SNAPSHOT,) * 6)
    inner, key = store.inner, one.writer.key

    def prune_first(cut: int) -> list[Entry]:
        inner.prune(key, head=6, cut=3, rewritten=())
        return []

    with pytest.raises(Conflict, match="pruned or archived meanwhile"):
        store.archive.put(key, head=6, cut=5, rewritten=prune_first)
    one.floor = 3
    one.check()


def test_what_was_pruned_in_the_archive_meanwhile_stays_so(store: OffloadingStore) -> None:
    """Fails if the seq of the oldest entry is compared, and not what it names."""
    one = Archiving(store)
    one.write(*(SNAPSHOT,) * 20)
    one.archive(10)

    def prune_first(cut: int) -> list[Entry]:
        one.prune(5)
        return []

    with pytest.raises(Conflict, match="pruned or archived meanwhile"):
        store.archive.put(one.writer.key, head=20, cut=15, rewritten=prune_first)
    one.check()


def test_a_thread_begun_again_meanwhile_is_left_as_it_is(store: OffloadingStore) -> None:
    """Fails if a deleted thread's segment is named by the one that has its name now."""
    one, two = Archiving(store), Archiving(store)
    one.write(*(SNAPSHOT,) * 6)
    two.writer = Writer(one.writer.key, 2)

    def begin_again(cut: int) -> list[Entry]:
        store.delete(one.writer.key)
        two.write(*(DELTA,) * 5, SNAPSHOT)
        return []

    with pytest.raises(Conflict):
        store.archive.put(one.writer.key, head=6, cut=6, rewritten=begin_again)
    two.check()


def test_pruning_beside_an_archiver_keeps_what_it_archived(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a snapshot that pruning writes replaces the row that names the segments."""
    one = Archiving(store)
    one.write(*(DELTA,) * 6, ROLLUP, DELTA, ROLLUP, DELTA)
    prune = type(store.inner).prune

    def archive_first(inner: Store, key: ThreadKey, **options: Any) -> int:
        monkeypatch.undo()
        one.archive(7)
        return prune(inner, key, **options)

    monkeypatch.setattr(type(store.inner), "prune", archive_first)
    with pytest.raises(Conflict):
        one.prune(4)
    one.floor = 1
    one.check()
    one.prune(4)
    one.check()


@pytest.mark.parametrize("read", ["entries", "history", "locate", "read"])
@pytest.mark.parametrize("then", ["restore", "delete"])
def test_reading_beside_another_process_has_no_gap(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch, read: str, then: str
) -> None:
    """Fails if what was moved back, or deleted, between two reads is missing, or damage."""
    one = Archiving(store)
    one.write(*(DELTA,) * 9, SNAPSHOT, DELTA)
    one.archive(10)
    key, inner = one.writer.key, type(store.inner)
    first = getattr(inner, read)

    def move_after(self: Store, *given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        found = first(self, *given, **options)
        found = found if read in ("read", "locate") else list(found)
        if then == "restore":
            store.archive.restore(key, head=11)
        else:
            store.delete(key)
        return found

    monkeypatch.setattr(inner, read, move_after)
    if read == "locate":
        assert store.locate(key, one.written[3].id) == (3 if then == "restore" else None)
    elif read == "read":
        assert (store.read(key, 3) is None) == (then == "delete")
    elif then == "restore":
        expected = list(range(1, 12))
        found = store.entries(key) if read == "entries" else store.history(key)
        assert sorted(entry.seq for entry in found) == expected
    else:
        found = store.entries(key) if read == "entries" else store.history(key)
        assert [entry.seq for entry in found] == ([] if read == "entries" else [11, 10])


def test_a_sweep_beside_a_deletion_finds_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a thread that is deleted while its names are read ends the tenant's sweep."""
    objects = SharedObjects(f"file://{tmp_path}/objects", threshold=200, patience=0.01)
    store = offload(MemoryStore(), objects)
    one = Archiving(store)
    one.write(*(DELTA,) * 9, SNAPSHOT)
    objects.patience = 10.0
    one.archive(10)
    entries = MemoryStore.entries

    def delete_after(inner: MemoryStore, key: ThreadKey, **options: Any) -> Any:
        found = entries(inner, key, **options)
        if options.get("limit") != 1:
            monkeypatch.undo()
            store.delete(key)
        return found

    monkeypatch.setattr(MemoryStore, "entries", delete_after)
    assert sweep(store, one.writer.key.tenant, grace=40.0).named == 0


def test_changed_bytes_of_a_segment_are_named(store: OffloadingStore) -> None:
    """Fails if a block or the directory is not compared with its digest."""
    one = Archiving(store)
    one.write(*(DELTA,) * 20, SNAPSHOT)
    one.archive(one.writer.head)
    (path,) = segments_of(one)
    folder = store.objects.folder
    whole = folder.read(path)
    assert whole is not None
    for at in range(0, len(whole), 7):
        folder.remove(path)
        folder.create(path, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(Corrupted, match="segment of the archive"):
            for _ in store.entries(one.writer.key):
                pass
    folder.remove(path)
    with pytest.raises(Corrupted, match="is missing"):
        store.read(one.writer.key, 3)
    folder.create(path, whole)
    one.check()


def test_large_segments_are_read_in_ranges(tmp_path: Path) -> None:
    """Fails if a state reads a whole segment, or an offset is wrong."""
    store = offload(MemoryStore(), SharedObjects(f"file://{tmp_path}"))
    key = a_key()
    pieces = [random.Random(seq).randbytes(40_000) for seq in range(60)]
    for seq, piece in enumerate(pieces, 1):
        entry = an_entry(seq, payload=piece)
        store.commit(Batch(key=key, head=seq - 1, entries=(entry,)))
    assert store.archive.put(key, head=60, cut=60, rewritten=lambda cut: []) == 59
    read = Counter[str]()
    folder = store.objects.folder
    in_range = folder.read_range

    def counting(path: str, start: int, end: int) -> bytes | None:
        read["bytes"] += end - start
        return in_range(path, start, end)

    folder.read_range = counting  # type: ignore[method-assign]
    chain = store.read(key, 31)
    assert chain
    assert chain.entries[-1].payload == pieces[30]
    assert read["bytes"] < 600_000
    assert [entry.payload for entry in store.entries(key)] == pieces
