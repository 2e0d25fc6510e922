"""Writers and sweeps of objects, step by step: what is shared, what is removed, and when."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

from milecastle.errors import Corrupted, InvalidRequest, StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import ClaimStore, waiting_inputs
from milecastle.ports.mailbox import INPUTS, NewRun
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import SharedObjects, SweepReport, offload, sweep
from milecastle.stores.offloading import objects as objects_module
from milecastle.stores.offloading import store as store_module
from milecastle.stores.offloading.folder import ObjectFolder, Stored
from milecastle.stores.offloading.objects import object_path, pins_of, root_of
from milecastle.stores.offloading.payloads import ObjectReference, references
from milecastle.stores.offloading.store import OffloadingStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_mailbox import mailbox_of, running
from milecastle.testing.entries import a_key, a_result, a_run, an_entry

KEY = a_key()
ROOT = root_of(KEY.tenant)
VALUE = b"large " * 10


class Hour:
    """The time of an object storage whose clock stands still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._written: dict[tuple[int, str], float] = {}
        create, find, listed = ObjectFolder.create, ObjectFolder.find, ObjectFolder.list

        def dated_create(folder: ObjectFolder, path: str, data: bytes) -> bool:
            done = create(folder, path, data)
            if done:
                self._written[id(folder), path] = self.now
            return done

        def at(folder: ObjectFolder, found: Stored) -> Stored:
            return found._replace(modified=self._written[id(folder), found.path])

        def dated_find(folder: ObjectFolder, path: str) -> Stored | None:
            found = find(folder, path)
            return at(folder, found) if found else None

        def dated_list(folder: ObjectFolder, prefix: str) -> Iterator[Stored]:
            return (at(folder, one) for one in listed(folder, prefix))

        monkeypatch.setattr(ObjectFolder, "create", dated_create)
        monkeypatch.setattr(ObjectFolder, "find", dated_find)
        monkeypatch.setattr(ObjectFolder, "list", dated_list)

    def passes(self, seconds: float = 101.0) -> None:
        self.now += seconds


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> Hour:
    return Hour(monkeypatch)


def a_storage() -> SharedObjects:
    return SharedObjects("memory:///", threshold=20, patience=25.0)


@pytest.fixture
def store(hour: Hour) -> OffloadingStore:
    return offload(MemoryStore(), a_storage())


def write(
    store: OffloadingStore, key: ThreadKey = KEY, payload: bytes = VALUE, seq: int = 1
) -> None:
    store.commit(Batch(key=key, head=seq - 1, entries=(an_entry(seq, payload=payload),)))


def forgetful(store: OffloadingStore) -> OffloadingStore:
    """The same store as another process has it, which remembers nothing."""
    other = a_storage()
    other.folder = store.objects.folder
    return offload(store.inner, other)


def swept(store: OffloadingStore, *, grace: float = 100.0, dry_run: bool = False) -> SweepReport:
    return sweep(store, KEY.tenant, grace=grace, dry_run=dry_run)


def paths(store: OffloadingStore, folder: str = "") -> list[str]:
    """What is there, besides the object that says to which store all this belongs."""
    found = sorted(one.path for one in store.objects.folder.list(f"{ROOT}{folder}"))
    return [path for path in found if path != f"{ROOT}store"]


def nothing(folder: ObjectFolder, path: str) -> None:
    """What is found if everything is gone."""


def nothing_but(**counts: int) -> SweepReport:
    zero = {"named": 0, "waiting": 0, "condemned": 0, "removed": 0, "removed_bytes": 0}
    return SweepReport(**zero | counts)


def test_named_objects_stay(store: OffloadingStore, hour: Hour) -> None:
    """Fails if the mark does not read entries."""
    write(store)
    for _ in range(4):
        hour.passes()
        assert swept(store) == nothing_but(named=1)
    assert store.entries(KEY)[0].payload == VALUE


def test_objects_of_results_and_waiting_inputs_stay(store: OffloadingStore, hour: Hour) -> None:
    """Fails if the mark reads only entries."""
    assert isinstance(store, ClaimStore)
    run = a_run(KEY)
    line = msgspec.structs.replace(ThreadInfo.of(run), lane="lane")
    store.commit(
        Batch(key=KEY, head=0, entries=(an_entry(1, next=("a",)),), runs=(run,), thread=line)
    )
    store.commit(Batch(key=KEY, head=1, results=(a_result(1, payload=VALUE),)))
    new = NewRun(record=a_run(KEY, 2, status="queued"))
    mailbox_of(store).send(KEY, INPUTS, "mark", VALUE + b"input", run=new)
    for _ in range(4):
        hour.passes()
        assert swept(store) == nothing_but(named=2)
    assert store.results(KEY)[0].payload == VALUE
    assert waiting_inputs(store, KEY)[0].payload == VALUE + b"input"


def test_objects_of_unread_messages_stay(store: OffloadingStore, hour: Hour) -> None:
    """Fails if the mark does not read mailboxes, or if messages are stored whole."""
    assert isinstance(store, ClaimStore)
    writer, mailbox = running(store, KEY.thread, tenant=KEY.tenant), store.mailbox
    assert mailbox is not None
    assert store.inner.mailbox is not None
    for mark in ("m1", "m2"):
        mailbox.send(KEY, "go", mark, VALUE + mark.encode())
    assert not any(VALUE in one.payload for one in store.inner.mailbox.unread(KEY))
    for _ in range(4):
        hour.passes()
        assert swept(store) == nothing_but(named=2)
    writer.append(store, consumes=(1,))
    for _ in range(2):
        hour.passes()
        swept(store)
    hour.passes()
    assert swept(store) == nothing_but(named=1)
    assert [one.payload for one in mailbox.unread(KEY)] == [VALUE + b"m2"]


def test_garbage_is_removed_by_the_second_sweep(store: OffloadingStore, hour: Hour) -> None:
    """Fails if anything is removed earlier, or if something is left afterwards."""
    write(store)
    store.delete(KEY)
    assert swept(store) == nothing_but(waiting=1)
    hour.passes()
    assert swept(store, dry_run=True) == nothing_but(condemned=1)
    assert swept(store) == nothing_but(condemned=1)
    assert swept(store) == nothing_but(condemned=1)
    hour.passes()
    size = next(store.objects.folder.list(f"{ROOT}objects/")).size
    assert swept(store, dry_run=True) == nothing_but(removed=1, removed_bytes=size)
    assert swept(store) == nothing_but(removed=1, removed_bytes=size)
    assert paths(store) == []


def test_pruned_and_unacknowledged_objects_are_garbage(store: OffloadingStore, hour: Hour) -> None:
    store.objects.put(KEY.tenant, b"of a writer that was killed")
    store.objects.pin(a_key("killed"))
    write(store)
    write(store, payload=VALUE + b"2", seq=2)
    store.prune(KEY, head=2, cut=2, rewritten=[])
    for _ in range(2):
        hour.passes()
        swept(store)
    assert len(paths(store, "objects/")) == 1
    assert store.entries(KEY)[0].payload == VALUE + b"2"


def test_unshared_objects_are_swept_as_well(store: OffloadingStore, hour: Hour) -> None:
    """An encrypted thread whose deletion was killed. Fails if an object without pointer stays."""
    store.objects.put_unshared(KEY.tenant, VALUE)
    assert store.objects.put_unshared(KEY.tenant, VALUE) != store.objects.put(KEY.tenant, VALUE)
    for _ in range(2):
        hour.passes()
        swept(store)
    assert paths(store) == []


def test_writer_does_not_use_what_is_condemned(store: OffloadingStore, hour: Hour) -> None:
    """Fails if the sweep leaves the pointer to an object that it condemns."""
    write(store)
    store.delete(KEY)
    hour.passes()
    swept(store)
    again = forgetful(store)
    write(again, a_key("again"))
    hour.passes()
    assert swept(store).removed == 1
    assert again.entries(a_key("again"))[0].payload == VALUE


def test_sweep_that_is_killed_while_it_condemns_leaves_no_note(
    store: OffloadingStore, hour: Hour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the note is put first: later sweeps would believe that the pointer is gone."""
    write(store)
    store.delete(KEY)
    hour.passes()
    remove = ObjectFolder.remove

    def killed(folder: ObjectFolder, path: str) -> None:
        if "current/" in path:
            raise Unavailable("it was killed here")
        remove(folder, path)

    monkeypatch.setattr(ObjectFolder, "remove", killed)
    with pytest.raises(Unavailable, match="killed here"):
        swept(store)
    assert paths(store, "condemned/") == []


def test_object_that_was_named_meanwhile_is_released(store: OffloadingStore, hour: Hour) -> None:
    """A writer read the pointer before the sweep removed it. Fails if the note is final."""
    write(store)
    reader = forgetful(store)
    reader.objects.put(KEY.tenant, VALUE)  # it has seen the object, and commits later
    store.delete(KEY)
    hour.passes()
    assert swept(store).condemned == 1
    write(reader, a_key("late"))
    for _ in range(3):
        hour.passes()
        assert swept(store) == nothing_but(named=1)
    assert paths(store, "condemned/") == []
    assert reader.entries(a_key("late"))[0].payload == VALUE


def test_late_sweep_harms_nobody(store: OffloadingStore, hour: Hour) -> None:
    """Fails if a name is used again after its object was removed."""
    write(store)
    (old,) = paths(store, "objects/")
    store.delete(KEY)
    for _ in range(2):
        hour.passes()
        swept(store)
    write(forgetful(store))
    store.objects.folder.remove(old)  # by a sweep that was stopped for days
    assert store.entries(KEY)[0].payload == VALUE


@pytest.mark.parametrize("kept", ["current/", "condemned/", "clock/"])
def test_what_killed_processes_leave_is_tidied(
    store: OffloadingStore, hour: Hour, kept: str
) -> None:
    digest = "a" * 64
    name = f"{digest}.{'0' * 16}" if kept == "condemned/" else digest
    store.objects.folder.create(f"{ROOT}{kept}{name}", b"0" * 16)
    swept(store)
    assert paths(store, kept)
    hour.passes()
    swept(store)
    assert paths(store) == []


def test_one_old_pin_stays_for_a_thread_with_objects(store: OffloadingStore, hour: Hour) -> None:
    """Fails if the last pin is removed: then the next sweep would not read the thread."""
    for seq in (1, 2, 3):
        write(forgetful(store), payload=VALUE + b"%d" % seq, seq=seq)
    assert len(paths(store, "threads/")) == 3
    swept(store)
    assert len(paths(store, "threads/")) == 3
    hour.passes()
    assert swept(store, dry_run=True).named == 3
    assert len(paths(store, "threads/")) == 3
    smallest = paths(store, "threads/")[0]
    assert swept(store).named == 3
    assert paths(store, "threads/") == [smallest]


def test_pins_are_written_once_in_a_while(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store)
    write(store, seq=2)
    assert len(paths(store, "threads/")) == 1
    later = time.monotonic() + 26
    monkeypatch.setattr(objects_module, "monotonic", lambda: later)
    write(store, seq=3)
    assert len(paths(store, "threads/")) == 2
    assert len(paths(store, "objects/")) == 1


def test_no_more_is_remembered_than_needed(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "_REMEMBERED", 3)
    for number in range(10):
        store.objects.put(KEY.tenant, b"%d" % number)
    assert len(vars(store.objects)["_known"]) == 3


def test_grace_shorter_than_writers_need_is_refused(store: OffloadingStore) -> None:
    with pytest.raises(InvalidRequest, match="at least 100 seconds"):
        swept(store, grace=99.0)


def test_sweep_stops_at_damage(store: OffloadingStore, hour: Hour) -> None:
    """Fails if a thread that cannot be read counts as one that names nothing."""
    write(store)
    inside = store.inner.entries(KEY)[0]
    store.inner.delete(KEY)
    damaged = msgspec.structs.replace(inside, payload=inside.payload[:-1] + b"!")
    store.inner.commit(Batch(key=KEY, head=0, entries=(damaged,)))
    hour.passes()
    with pytest.raises(Corrupted, match="thread 'thread', seq 1"):
        swept(store)
    with pytest.raises(Corrupted, match="thread 'thread', seq 1"):
        store.entries(KEY)
    (pin,) = paths(store, "threads/")
    store.objects.folder.remove(pin)
    store.objects.folder.create(pin, b"damaged")
    with pytest.raises(Corrupted, match="pin of a thread"):
        swept(store)


def test_pin_that_another_sweep_removed_is_skipped(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.objects.pin(KEY)
    monkeypatch.setattr(ObjectFolder, "read", nothing)
    assert list(store.objects.pinned(KEY.tenant)) == []


def test_damaged_pointer_and_reference_are_named(store: OffloadingStore) -> None:
    write(store)
    (pointer,) = paths(store, "current/")
    store.objects.folder.remove(pointer)
    store.objects.folder.create(pointer, b"../../else")
    with pytest.raises(Corrupted, match="pointer"):
        write(forgetful(store), a_key("other"))
    with pytest.raises(Corrupted, match="reference"):
        store.objects.fetch(KEY.tenant, ObjectReference("../../else", 3), "here")


def test_second_creator_of_a_pointer_uses_the_first(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the put of the pointer is not conditional: then two objects have one content."""
    other = forgetful(store)
    read = ObjectFolder.read

    def overtaken(folder: ObjectFolder, path: str) -> bytes | None:
        found = read(folder, path)
        if found is None and "current/" in path:
            monkeypatch.setattr(ObjectFolder, "read", read)
            write(other, a_key("first"))
        return found

    monkeypatch.setattr(ObjectFolder, "read", overtaken)
    write(store)
    assert len(paths(store, "objects/")) == 1
    assert store.entries(KEY)[0].payload == VALUE


def test_pointer_that_is_swept_at_once_is_unavailable(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store)
    read = ObjectFolder.read

    def no_pointer(folder: ObjectFolder, path: str) -> bytes | None:
        return None if "current/" in path else read(folder, path)

    monkeypatch.setattr(ObjectFolder, "read", no_pointer)
    with pytest.raises(Unavailable, match="try again"):
        write(forgetful(store), a_key("other"))


def test_commit_that_took_too_long_writes_nothing(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if objects may be named long after they were seen: a sweep may have removed them."""
    times = iter([0.0, 26.0])
    monkeypatch.setattr(store_module, "monotonic", lambda: next(times))
    with pytest.raises(Unavailable, match="longer than 25 seconds"):
        write(store)
    assert store.inner.head(KEY) is None


def test_input_that_took_too_long_does_not_wait(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an input may name objects long after they were seen."""
    assert isinstance(store, ClaimStore)
    run = a_run(KEY)
    line = msgspec.structs.replace(ThreadInfo.of(run), lane="lane")
    store.commit(Batch(key=KEY, head=0, entries=(an_entry(1),), runs=(run,), thread=line))
    times = iter([0.0, 26.0])
    monkeypatch.setattr(store_module, "monotonic", lambda: next(times))
    new = NewRun(record=a_run(KEY, 2, status="queued"))
    with pytest.raises(Unavailable, match="longer than 25 seconds"):
        mailbox_of(store).send(KEY, INPUTS, "mark", VALUE, run=new)
    assert waiting_inputs(store, KEY) == []


def test_batch_that_waited_for_its_group_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if each batch of a group has its own patience: the first would be named too late."""
    store = offload(SqliteStore(tmp_path / "store.db"), a_storage())
    assert store.commit_many is not None
    ticks = count(0.0, 10.0)
    monkeypatch.setattr(store_module, "monotonic", lambda: next(ticks))
    keys = [a_key("large"), a_key("small"), a_key("last")]
    payloads = [VALUE, b"small", VALUE]
    batches = [
        Batch(key=key, head=0, entries=(an_entry(1, payload=payload),))
        for key, payload in zip(keys, payloads, strict=True)
    ]
    first, small, last = store.commit_many(batches)
    assert small is None
    assert isinstance(first, Unavailable)
    assert isinstance(last, Unavailable)
    assert [store.head(key) is None for key in keys] == [True, False, True]
    store.close()


def test_object_is_there_when_its_entry_is_committed(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an entry is committed before its object is stored."""
    commit, found = MemoryStore.commit, list[bool]()

    def looking(inner: MemoryStore, batch: Batch) -> None:
        for reference in [one for entry in batch.entries for one in references(entry.payload)]:
            path = object_path(KEY.tenant, reference.name)
            found.append(store.objects.folder.read(path) is not None)
        commit(inner, batch)

    monkeypatch.setattr(MemoryStore, "commit", looking)
    write(store)
    assert found == [True]


@pytest.mark.skipif(sys.platform == "win32", reason="folders are synced by Windows itself")
def test_what_is_confirmed_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a file or the name of a folder above it is not synced, whoever wrote it."""
    synced: set[int] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    confirmations: list[Callable[[ObjectFolder], object]] = [
        lambda folder: folder.create("a/b/c", b"first"),
        lambda folder: folder.create("a/b/c", b"second"),
        lambda folder: folder.find("a/b/c"),
    ]
    for confirm in confirmations:
        folder = ObjectFolder(f"file://{tmp_path}/objects")
        synced.clear()
        confirm(folder)
        above = [tmp_path / "objects" / name for name in ("a/b/c", "a/b", "a", ".")]
        assert {path.stat().st_ino for path in above} <= synced


def test_file_is_whole_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if an object gets its name before it is on disk, or if what a killed writer left is an
    object: after a power cut, the next writer would take a torn one for its own."""
    synced: dict[int, int] = {}
    fsync, link = os.fsync, os.link

    def noted(fd: int) -> None:
        fsync(fd)
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    def named(staged: Path, file: Path) -> None:
        assert synced[staged.stat().st_ino] == len(b"content")
        if file.name == "second":
            raise KeyboardInterrupt
        link(staged, file)

    def left(path: Path) -> None:
        """As if the writer was killed before."""

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "link", named)
    monkeypatch.setattr(Path, "unlink", left)
    folder = ObjectFolder(f"file://{tmp_path}/objects")
    assert folder.create("a/first", b"content")
    with pytest.raises(KeyboardInterrupt):
        folder.create("a/second", b"content")
    assert [found.path for found in folder.list("a/")] == ["a/first"]
    assert not folder.create("a/first", b"other")
    assert folder.read("a/first") == b"content"


def test_what_a_killed_writer_left_without_its_name_is_removed(tmp_path: Path) -> None:
    """Fails if it stays, if that of a writer that may be alive is removed, or that of a tenant that
    is not swept, or what only looks like it."""
    store = offload(MemoryStore(), SharedObjects(f"file://{tmp_path}", threshold=20))
    write(store)
    (folder,) = tmp_path.glob("*/objects")
    other = tmp_path / root_of("other")
    other.mkdir()
    old, new, foreign = folder / "a#12", folder / "b#34", other / "c#56"
    strange = folder / "notes#1.txt"
    (folder / "folder#7").mkdir()
    for file in (old, new, foreign, strange):
        file.write_bytes(b"half")
    for file in (old, foreign, strange, folder / "folder#7"):
        os.utime(file, (0, 0))
    assert sweep(store, KEY.tenant, grace=3600, dry_run=True).named == 1
    assert old.exists()
    assert sweep(store, KEY.tenant, grace=3600).named == 1
    assert [file.exists() for file in (old, new, foreign, strange)] == [False, True, True, True]
    assert store.entries(KEY)[0].payload == VALUE


def fail(*given: object, **named: object) -> Any:
    from obstore.exceptions import GenericError

    raise GenericError("PUT http://user:pass@host/b?X-Amz-Signature=secret failed\nDebug: secret")


def test_batch_without_its_objects_is_refused_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if one thread's large value stops the commits of all others in the group."""
    import obstore

    store = offload(SqliteStore(tmp_path / "store.db"), a_storage())
    assert store.commit_many is not None
    assert store.writers == 1
    small, large = a_key("small"), a_key("large")
    batches = [
        Batch(key=large, head=0, entries=(an_entry(1, payload=VALUE),)),
        Batch(key=small, head=0, entries=(an_entry(1),)),
    ]
    monkeypatch.setattr(obstore, "put", fail)
    refused, done = store.commit_many(batches)
    assert isinstance(refused, Unavailable)
    assert "secret" not in str(refused)
    assert "pass" not in str(refused)
    assert done is None
    assert store.head(large) is None
    assert store.head(small) is not None
    assert isinstance(store.commit_many(batches[:1])[0], StoreError)
    store.close()


CALLS: dict[str, Callable[[ObjectFolder], object]] = {
    "get": lambda folder: folder.read("a"),
    "head": lambda folder: folder.find("a"),
    "list": lambda folder: list(folder.list("a")),
    "delete": lambda folder: folder.remove("a"),
}


@pytest.mark.parametrize("broken", CALLS)
def test_errors_of_the_library_are_translated(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore

    monkeypatch.setattr(obstore, broken, fail)
    with pytest.raises(Unavailable, match="check that it can be reached"):
        CALLS[broken](ObjectFolder("memory:///"))


def test_what_is_missing_is_not_an_error(tmp_path: Path) -> None:
    for url in ("memory:///", f"file://{tmp_path}/objects"):
        folder = ObjectFolder(url)
        assert folder.read("a/b") is None
        assert folder.find("a/b") is None
        assert list(folder.list("a/")) == []
        folder.remove("a/b")


def test_object_that_is_lost_at_once_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ObjectFolder("memory:///")
    monkeypatch.setattr(ObjectFolder, "find", nothing)
    with pytest.raises(Unavailable, match="lost an object"):
        folder.now("clock")


def test_deletion_works_while_objects_cannot_be_reached(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    write(store)
    write(store, a_key("plain"), b"small")
    assert store.delete(a_key("plain"))
    monkeypatch.setattr(obstore, "list", fail)
    assert store.delete(KEY)
    assert not store.delete(KEY)


def test_names_of_all_kinds_are_separate() -> None:
    assert pins_of(a_key("a")) != pins_of(a_key("b"))
    assert root_of("a") != root_of("A")
    assert object_path("a", "x").startswith(root_of("a"))


def test_references_are_small(store: OffloadingStore) -> None:
    write(store, payload=b"x" * 5_000_000)
    inside = store.inner.entries(KEY)[0].payload
    assert len(inside) < 200
    assert len(references(inside)) == 1
