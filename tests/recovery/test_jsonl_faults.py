"""The disk says no: nothing acknowledged is lost, nothing is silent, nothing half done stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from milecastle.disk import files, locking
from milecastle.errors import Unavailable
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.entries import Writer, a_key, a_run

CALLS = ("write", "fdatasync", "fsync", "ftruncate", "open", "close", "lstat", "fstat", "pread")


class Faults:
    """Lets the n-th call of some functions of ``os`` fail, or write too little."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.countdown = -1
        self.error = errno.EIO
        self.short = False
        self.hit = ""
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(Path, "replace", self._wrapped("replace", Path.replace))

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            if self.countdown >= 0:
                self.countdown -= 1
                if self.countdown < 0:
                    self.hit = name
                    if name == "write" and self.short:
                        call(args[0], args[1][: len(args[1]) // 2])
                    if name == "close":
                        call(*args)
                    raise OSError(self.error, os.strerror(self.error))
            return call(*args, **options)

        return wrapper


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def script(store: JsonlStore, writer: Writer) -> None:
    """Begin a thread, append, prune, end the run."""
    writer.begin(store, 2)
    writer.append(store, SNAPSHOT)
    writer.prune(store, 3)
    writer.append(store, runs=(a_run(writer.key, 1, status="completed"),))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("short", [False, True])
def test_a_fault_at_any_call_loses_nothing(
    tmp_path: Path, faults: Faults, error: int, short: bool
) -> None:
    faults.error, faults.short = error, short
    hit: set[str] = set()
    for number in range(400):
        folder = tmp_path / str(number)
        store, writer = JsonlStore(folder), Writer(a_key())
        faults.countdown, faults.hit = number, ""
        with suppress(Unavailable):
            script(store, writer)
        faults.countdown = -1
        if not faults.hit:
            break
        hit.add(faults.hit)
        check_nothing_lost(folder, writer, number)
    else:
        pytest.fail("the script never ended")
    assert {"write", "fdatasync", "fsync", "open", "replace"} <= hit


def check_nothing_lost(folder: Path, writer: Writer, number: int) -> None:
    """Whatever was acknowledged is there; at most the one entry in doubt is there too."""
    again = JsonlStore(folder)
    found = {entry.seq: entry for entry in everything_of(again, writer.key)["history"]}
    head = max(found, default=0)
    assert head in (writer.head, writer.head + 1), f"fault {number}"
    for seq, entry in writer.entries.items():
        if seq in found:
            assert found[seq].id == entry.id
        else:
            assert seq < 3, f"fault {number}: seq {seq} is gone"
    again.close()


def fail_once(
    monkeypatch: pytest.MonkeyPatch, name: str, error: int = errno.EIO
) -> Callable[[], bool]:
    """Let the next call fail; the answer says whether it came."""
    original, calls = getattr(os, name), [0]

    def wrapper(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(error, os.strerror(error))
        return original(*args, **options)

    monkeypatch.setattr(os, name, wrapper)
    return lambda: calls[0] > 0


def test_failed_sync_poisons_the_thread_until_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JsonlStore(tmp_path, open_files=1)
    writer = Writer().begin(store, 2)
    other = Writer(a_key("other"), 2).begin(store)
    came = fail_once(monkeypatch, "fdatasync")
    with pytest.raises(Unavailable, match="Input/output error"):
        writer.append(store)
    assert came()
    for attempt in (writer.append, writer.append):
        with pytest.raises(Unavailable, match="reopen the store"):
            attempt(store)
    other.append(store)
    with pytest.raises(Unavailable, match="reopen the store"):
        store.delete(writer.key)
    with pytest.raises(Unavailable, match="reopen the store"):
        writer.append(store)
    again = JsonlStore(tmp_path)
    assert [entry.seq for entry in again.history(writer.key)] == [2, 1]
    writer.append(again)
    assert [entry.seq for entry in again.history(writer.key)] == [3, 2, 1]


def test_pruning_that_failed_poisons_the_thread_only_if_its_file_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a new name that may not be on disk is written to, or an old file is refused."""
    store = JsonlStore(tmp_path)
    writer = Writer(a_key()).begin(store, 2)
    writer.append(store, SNAPSHOT)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("sync", "sync_folder"):
        with monkeypatch.context() as patched:
            patched.setattr(files, name, refuse)
            with pytest.raises(Unavailable):
                store.prune(writer.key, head=writer.head, cut=3, rewritten=())
        if name == "sync":
            writer.append(store)
    with pytest.raises(Unavailable, match="reopen the store"):
        writer.append(store)
    again = JsonlStore(tmp_path)
    writer.append(again)
    assert [entry.seq for entry in again.history(writer.key)] == [5, 4, 3]


def test_a_write_that_failed_is_taken_back_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 2)
    path = store.path_of(writer.key)
    before = path.read_bytes()
    write = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:-50])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(Unavailable, match="No space left"):
            writer.append(store)
    assert path.read_bytes() == before
    writer.append(store)
    assert [entry.seq for entry in store.history(writer.key)] == [3, 2, 1]


def test_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def seven(fd: int, data: bytes) -> int:
        return write(fd, data[:7])

    monkeypatch.setattr(os, "write", seven)
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 2)
    assert JsonlStore(tmp_path).read(writer.key) == store.read(writer.key)


def test_short_read_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread

    def seven(fd: int, size: int, offset: int) -> bytes:
        return read(fd, min(size, 7), offset)

    monkeypatch.setattr(os, "pread", seven)
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 3)
    writer.append(JsonlStore(tmp_path))
    assert [entry.seq for entry in store.history(writer.key)] == [4, 3, 2, 1]


def test_what_can_be_neither_written_nor_taken_back_poisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 2)
    with monkeypatch.context() as patched:
        fail_once(patched, "write")
        fail_once(patched, "ftruncate")
        with pytest.raises(Unavailable):
            writer.append(store)
    with pytest.raises(Unavailable, match="reopen the store"):
        writer.append(store)


def test_a_file_that_others_hold_for_too_long_is_unavailable(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path, lock_timeout=0.05)
    writer = Writer().begin(store)
    fd = files.open_log(store.path_of(writer.key))
    locking.lock(fd, timeout=1)
    with pytest.raises(Unavailable, match=r"locked the thread's file for more than 0\.05 s"):
        writer.append(store)
    locking.unlock(fd)
    os.close(fd)
    writer.append(store)


def test_the_names_are_synced_with_the_first_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync_folder = files.sync_folder

    def noting(folder: Path) -> None:
        synced.append(folder)
        sync_folder(folder)

    monkeypatch.setattr(files, "sync_folder", noting)
    root = tmp_path / "made" / "anew"
    store = JsonlStore(root)
    threads = root / "threads"
    writer = Writer()
    writer.append(store)
    made = [tmp_path, tmp_path / "made"]
    assert synced == [*made, threads / "tenant", threads, root, root.parent]
    synced.clear()
    writer.append(store)
    assert synced == []
    writer.append(JsonlStore(root))
    assert synced == [threads / "tenant", threads, root, root.parent]


def test_unreadable_folder_above_the_root_is_not_an_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_folder = files.sync_folder

    def refusing(folder: Path) -> None:
        if folder == tmp_path:
            raise PermissionError(errno.EACCES, "not yours")
        sync_folder(folder)

    (tmp_path / "root").mkdir()
    monkeypatch.setattr(files, "sync_folder", refusing)
    store, writer = JsonlStore(tmp_path / "root"), Writer()
    writer.append(store)
    assert store.read(writer.key) is not None
