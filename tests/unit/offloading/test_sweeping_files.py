"""Files and the sweep, step by step: what stays, what is removed, and what is stored again."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import msgspec.structs
import pytest

from milecastle.codec.envelope import (
    FILES,
    frame,
    frame_files,
    names_files,
    seal,
    unframe_files,
    unseal,
)
from milecastle.errors import CodecError, Corrupted, InvalidRequest, Unavailable
from milecastle.model.file import File, FilePlace
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import files as files_module
from milecastle.stores.offloading import offload
from milecastle.stores.offloading import store as store_module
from milecastle.stores.offloading.files import TenantFiles, files_at
from milecastle.stores.offloading.folder import ObjectFolder
from milecastle.stores.offloading.store import OffloadingStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import a_key, an_entry
from tests.unit.offloading.test_sweeping import (
    KEY,
    ROOT,
    Hour,
    a_storage,
    forgetful,
    nothing_but,
    paths,
    swept,
    write,
)

CONTENT = os.urandom(45)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "CHUNK", 10)


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> Hour:
    return Hour(monkeypatch)


@pytest.fixture
def store(hour: Hour) -> OffloadingStore:
    return offload(MemoryStore(), a_storage())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(CONTENT)
    return found


def files_of(store: OffloadingStore) -> TenantFiles:
    return store.files(KEY.tenant, sealed=False)


def naming(file: File) -> bytes:
    return frame_files([file.digest], seal(b"\x90"))


def content(store: OffloadingStore, file: File) -> bytes:
    with files_of(store).open(file) as opened:
        return opened.read()


def test_named_file_stays_until_nobody_names_it(
    store: OffloadingStore, hour: Hour, path: Path
) -> None:
    """Fails if the mark does not read which files a payload names, or a part of one is left."""
    file = files_of(store).store(path)
    write(store, payload=naming(file))
    for _ in range(4):
        hour.passes()
        assert swept(store) == nothing_but(named=1)
    store.delete(KEY)
    assert swept(store) == nothing_but(condemned=1)
    assert content(store, file) == CONTENT
    hour.passes()
    size = sum(one.size for one in store.objects.folder.list(f"{ROOT}files/"))
    assert swept(store, dry_run=True) == nothing_but(removed=1, removed_bytes=size)
    assert swept(store) == nothing_but(removed=1, removed_bytes=size)
    assert paths(store) == []


def test_file_is_named_by_results_and_inputs(
    store: OffloadingStore, hour: Hour, path: Path
) -> None:
    file = files_of(store).store(path)
    small = store.offloaded_message(KEY, naming(file))
    assert small == naming(file)
    assert len(paths(store, "threads/")) == 1


def test_file_that_was_condemned_before_it_was_named_is_stored_again(
    store: OffloadingStore, hour: Hour, path: Path
) -> None:
    """A node that ran for days. Fails if what is condemned is named: it would be removed."""
    file = files_of(store).store(path)
    hour.passes()
    assert swept(store).condemned == 1
    assert content(forgetful(store), file) == CONTENT  # whose pointer is gone
    write(forgetful(store), payload=naming(file))
    assert len(paths(store, f"files/{file.digest}/")) == 12
    for _ in range(3):
        hour.passes()
        assert swept(store).removed == 0
    assert content(store, file) == CONTENT
    store.delete(KEY)
    for _ in range(2):
        hour.passes()
        swept(store)
    assert paths(store) == []


def test_file_that_was_removed_is_not_named(store: OffloadingStore, hour: Hour, path: Path) -> None:
    """Fails if a checkpoint may name a file that is gone."""
    file = files_of(store).store(path)
    for _ in range(2):
        hour.passes()
        swept(store)
    with pytest.raises(Corrupted, match="not in the object storage"):
        write(forgetful(store), payload=naming(file))
    assert store.inner.head(KEY) is None


def test_upload_that_was_killed_is_continued(
    store: OffloadingStore, hour: Hour, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the index is put first, or if what is there is put again."""
    create = ObjectFolder.create
    stored: list[str] = []

    def is_fourth(path: str) -> bool:
        return path.endswith("/00000003")

    def killed(folder: ObjectFolder, path: str, data: bytes) -> bool:
        if is_fourth(path) and not any(map(is_fourth, stored)):
            stored.append(path)
            raise Unavailable("it was killed here")
        stored.append(path)
        return create(folder, path, data)

    monkeypatch.setattr(ObjectFolder, "create", killed)
    with pytest.raises(Unavailable, match="killed here"):
        files_of(store).store(path)
    assert [one.rpartition("/")[2] for one in paths(store, "files/")] == [
        "00000000",
        "00000001",
        "00000002",
    ]
    stored.clear()
    stored.append("/00000003")
    file = files_of(forgetful(store)).store(path)
    assert [one.rpartition("/")[2] for one in stored[1:]] == ["00000003", "00000004", "index"]
    assert content(store, file) == CONTENT


def test_upload_that_was_killed_is_garbage(store: OffloadingStore, hour: Hour, path: Path) -> None:
    """Fails if only files with an index are swept, or if they are removed without a note."""
    files_of(store).store(path)
    (index,) = [one for one in paths(store, "files/") if one.endswith("index")]
    store.objects.folder.remove(index)
    hour.passes()
    assert swept(store).condemned == 1
    hour.passes()
    assert swept(store).removed == 1
    assert paths(store) == []


def test_upload_that_goes_on_is_not_judged(store: OffloadingStore, hour: Hour, path: Path) -> None:
    """Fails if the age of a file is that of its first chunk."""
    files_of(store).store(path)
    (index,) = [one for one in paths(store, "files/") if one.endswith("index")]
    data = store.objects.folder.read(index)
    assert data is not None
    store.objects.folder.remove(index)
    hour.passes()
    store.objects.folder.create(index, data)
    assert swept(store) == nothing_but(waiting=1)


def test_sweep_that_is_killed_while_it_removes_leaves_no_index(
    store: OffloadingStore, hour: Hour, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the chunks are removed first: where an index is, all chunks must be."""
    files_of(store).store(path)
    hour.passes()
    swept(store)
    hour.passes()
    remove, removed = ObjectFolder.remove, list[str]()

    def killed(folder: ObjectFolder, path: str) -> None:
        if len(removed) == 2 and "/files/" in path:
            raise Unavailable("it was killed here")
        if "/files/" in path:
            removed.append(path)
        remove(folder, path)

    monkeypatch.setattr(ObjectFolder, "remove", killed)
    with pytest.raises(Unavailable, match="killed here"):
        swept(store)
    assert removed[0].endswith("index")
    monkeypatch.setattr(ObjectFolder, "remove", remove)
    assert swept(store).removed == 1
    assert paths(store) == []


@pytest.mark.parametrize(
    "pattern",
    [
        "files/{stray}",
        "files/{digest}",
        "files/{digest}/{stray}",
        "files/{unit}/{stray}",
        "files/{unit}/index/{stray}",
        "files/files/{unit}/index",
        "objects/{stray}",
        "objects/{stray}/{digest}.{generation}",
        "objects/objects/{digest}.{generation}",
    ],
)
def test_stray_is_counted_and_left_alone(
    store: OffloadingStore, hour: Hour, path: Path, pattern: str
) -> None:
    """Fails if it ends the sweep, is removed, or counts as a part of a file."""
    file = files_of(store).store(path)
    unit = paths(store, "files/")[0].split("/files/")[1].rpartition("/")[0]
    stray = ROOT + pattern.format(
        stray="stray", digest=file.digest, unit=unit, generation=unit.rpartition("/")[2]
    )
    store.objects.folder.create(stray, b"of somebody else")
    write(store, payload=naming(file))
    hour.passes()
    assert swept(store) == nothing_but(named=1, strays=1)
    store.delete(KEY)
    for _ in range(3):
        hour.passes()
        assert swept(store).strays == 1
    assert paths(store) == [stray]


def test_sweep_stops_at_a_payload_whose_files_cannot_be_read(
    store: OffloadingStore, hour: Hour, path: Path
) -> None:
    """Fails if a damaged payload counts as one that names nothing."""
    file = files_of(store).store(path)
    write(store, payload=naming(file))
    inside = store.inner.entries(KEY)[0]
    store.inner.delete(KEY)
    damaged = bytearray(inside.payload)
    damaged[12] ^= 1
    entry = msgspec.structs.replace(inside, payload=bytes(damaged))
    store.inner.commit(Batch(key=KEY, head=0, entries=(entry,)))
    hour.passes()
    with pytest.raises(Corrupted, match="thread 'thread', seq 1"):
        swept(store)


def test_payload_that_looks_like_one_with_files_is_restored(store: OffloadingStore) -> None:
    """Fails if bytes of somebody else are taken for ours: then no sweep could run."""
    strange = b"\x01\x08 not ours"
    assert names_files(strange)
    write(store, payload=strange)
    assert store.entries(KEY)[0].payload == strange
    assert swept(store) == nothing_but(named=1)


def test_names_of_files_are_strict() -> None:
    """Fails if a payload may have fewer names than it says, or hide that it is encrypted."""
    payload = seal(b"\x90")
    named = frame_files(["ab" * 32, "cd" * 32], payload)
    assert unframe_files(named) == (["ab" * 32, "cd" * 32], payload)
    assert unseal(named) == b"\x90"
    with pytest.raises(CodecError):
        unseal(frame_files(["ab" * 32], named))
    for body in (b"\0\0\0\2" + bytes(40), b"\0\0"):
        with pytest.raises(CodecError):
            unframe_files(frame(FILES, body))
    assert frame_files([], b"\x02\x02")[1] & 2


def test_late_batch_with_files_is_refused(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if only batches with large values are: the sweep may have judged the file."""
    store = offload(SqliteStore(tmp_path / "store.db"), a_storage())
    assert store.commit_many is not None
    file = files_of(store).store(path)
    ticks = count(0.0, 10.0)
    monkeypatch.setattr(store_module, "monotonic", lambda: next(ticks))
    keys = [a_key("named"), a_key("small"), a_key("last")]
    batches = [
        Batch(key=key, head=0, entries=(an_entry(1, payload=payload),))
        for key, payload in zip(keys, [naming(file), b"small", naming(file)], strict=True)
    ]
    first, small, last = store.commit_many(batches)
    assert small is None
    assert isinstance(first, Unavailable)
    assert isinstance(last, Unavailable)
    store.close()


def test_input_with_a_file_that_took_too_long_is_refused(
    store: OffloadingStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files_of(store).store(path)
    times = iter([0.0, 26.0])
    monkeypatch.setattr(store_module, "monotonic", lambda: next(times))
    with pytest.raises(Unavailable, match="longer than 25 seconds"):
        store.offloaded_message(KEY, naming(file))


def test_files_are_found_from_their_place(tmp_path: Path, path: Path) -> None:
    place = FilePlace(f"file://{tmp_path}/objects", 900.0, "tenant", True)
    there = files_at(place)
    assert there.place == place
    with there.open(there.store(path)) as opened:
        assert opened.read() == CONTENT
    with pytest.raises(InvalidRequest, match="run_on="):
        files_at(FilePlace("memory:///", 900.0, "tenant", False))


def test_copy_needs_object_storage_on_both_sides(store: OffloadingStore) -> None:
    with pytest.raises(InvalidRequest, match="object storage only"):
        store.copy_file(KEY.tenant, "ab" * 32, MemoryStore())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
