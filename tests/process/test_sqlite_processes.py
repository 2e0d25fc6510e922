"""Processes that share one SQLite file: openers that create it at once, and forked children."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import Writer, a_key

OPENERS = 4
OPENINGS = 60


def open_each(paths: list[Path], gate: mmap.mmap, number: int) -> None:
    """Open each file when all openers are ready for it."""
    for turn, path in enumerate(paths):
        gate[turn * OPENERS + number] = 1
        until = time.monotonic() + 30
        while not all(gate[turn * OPENERS : (turn + 1) * OPENERS]) and time.monotonic() < until:
            time.sleep(0)
        SqliteStore(path).close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_many_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(OPENINGS)]
    gate = mmap.mmap(-1, OPENERS * OPENINGS)
    children: list[int] = []
    for number in range(OPENERS):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                open_each(paths, gate, number)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    with closing(SqliteStore(paths[0])) as store:
        Writer().begin(store)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_shares_neither_locks_nor_connections(tmp_path: Path) -> None:
    """A fork in the middle of a commit: parent and child both continue, in one file."""
    store = SqliteStore(tmp_path / "store.db")
    ours = Writer(a_key("parent"), 1).begin(store)
    done = threading.Event()
    busy = threading.Thread(target=_write_until, args=(done, store, ours))
    busy.start()
    theirs = [Writer(a_key(f"child {number}"), number) for number in range(2, 12)]
    hung = next((writer.key for writer in theirs if _in_child(store, writer) != 0), None)
    done.set()
    busy.join()
    assert hung is None
    with closing(SqliteStore(tmp_path / "store.db")) as again:
        assert _heads(again, *(writer.key for writer in theirs)) == [5] * 10
        assert _heads(again, ours.key) == _heads(store, ours.key) == [ours.head]
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_threads_that_fork_at_the_same_time_leave_the_store_usable(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a process that waits for too long is killed
        os._exit(_fork_in_two_threads(tmp_path / "store.db"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _fork_in_two_threads(path: Path) -> int:
    """Return the exit code: 0 if, after many forks, the store can still be used."""
    try:
        store = SqliteStore(path, synchronous="normal")
        forking = [threading.Thread(target=_fork_often, args=(10,)) for _ in range(2)]
        for thread in forking:
            thread.start()
        writer = Writer().begin(store)
        while any(thread.is_alive() for thread in forking):
            writer.append(store)
        writer.append(store)
    except BaseException:
        return 1
    return 0


def _fork_often(times: int) -> None:
    for _ in range(times):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


def _write_until(done: threading.Event, store: Store, writer: Writer) -> None:
    while not done.is_set():
        writer.append(store)


def _in_child(store: Store, writer: Writer) -> int:
    """Write in a forked child and return its exit code; one that hangs is killed."""
    child = os.fork()
    if child == 0:
        os._exit(_write_in_child(store, writer))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _write_in_child(store: Store, writer: Writer) -> int:
    """Return the exit code; an exception in a forked child would continue as a second pytest."""
    try:
        writer.begin(store, 5)
        store.close()
    except BaseException:
        return 1
    return 0


def _heads(store: Store, *keys: ThreadKey) -> list[int]:
    chains = [store.read(key) for key in keys]
    return [chain.entries[-1].seq if chain else 0 for chain in chains]
