"""Processes that meet on one file: writers race for each seq, and openers for the tables.

`MILECASTLE_RACES` is the number of races.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import Races
from milecastle.testing.entries import Writer, a_key
from tests.process.test_sqlite_kills import start

RACES = int(os.environ.get("MILECASTLE_RACES", "200"))
WRITERS = 2
OPENINGS = max(60, RACES // 10)


def race(path: Path, races: int) -> Races:
    """Have two processes race for each seq of one thread, each race begun together."""
    outcome = Races(a_key(), WRITERS, races, {})
    with ExitStack() as stack:
        processes = [
            stack.enter_context(start("race", str(path), str(number), str(WRITERS)))
            for number in range(WRITERS)
        ]
        assert [answer(process) for process in processes] == ["ready"] * WRITERS
        for seq in range(1, races + 1):
            for process in processes if seq % 2 else reversed(processes):
                tell(process, str(seq))
            for process in processes:
                said = answer(process)
                if said == "refused":
                    outcome.refused += 1
                else:
                    outcome.won.setdefault(seq, []).append(said)
    return outcome


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_two_processes_one_wins_each_seq(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    outcome = race(path, RACES)
    store = SqliteStore(path)
    assert outcome.problems(store) == []
    assert len(outcome.won) == RACES
    store.close()


def test_processes_that_do_not_share_a_fence_are_caught(tmp_path: Path) -> None:
    problems = race(tmp_path / "apart", 5).problems(MemoryStore())
    assert "seq 1 was won by 2 writers" in problems


def test_many_processes_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(start("open")) for _ in range(4)]
        assert [answer(process) for process in processes] == ["ready"] * 4
        for number in range(OPENINGS):
            for process in processes:
                tell(process, str(tmp_path / f"{number}.db"))
            assert [answer(process) for process in processes] == ["opened"] * 4
    store = SqliteStore(tmp_path / "0.db")
    Writer().begin(store)
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_shares_neither_locks_nor_connections(tmp_path: Path) -> None:
    """A fork in the middle of a commit: parent and child both go on, in one file."""
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
def test_threads_that_fork_at_the_same_time_let_the_store_go_on(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # who waits for too long is killed
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
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _write_in_child(store: Store, writer: Writer) -> int:
    """Return the exit code; an exception in a forked child would go on as a second pytest."""
    try:
        writer.begin(store, 5)
        store.close()
    except BaseException:
        return 1
    return 0


def _heads(store: Store, *keys: ThreadKey) -> list[int]:
    chains = [store.read(key) for key in keys]
    return [chain.entries[-1].seq if chain else 0 for chain in chains]
