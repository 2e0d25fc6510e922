"""A memory store and forks: the child has a whole copy, and nobody waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from typing import Any

import pytest

from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing.entries import Writer, a_key, a_result

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
may_fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Slow(dict[str, Any]):
    """Results that take long to be kept, in the middle of a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def __setitem__(self, task: str, result: Any) -> None:
        self.begun.set()
        time.sleep(0.1)
        super().__setitem__(task, result)


@forks
@may_fork
def test_a_child_forked_in_the_middle_of_a_commit_has_all_of_it() -> None:
    store = MemoryStore()
    writer = Writer().begin(store)
    results = vars(store)["_logs"][writer.key].results = Slow()
    batch = writer.batch(results=(a_result(1, "a"), a_result(1, "b")))
    writing = threading.Thread(target=store.commit, args=(batch,))
    writing.start()
    assert results.begun.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # who waits for too long is killed
        os._exit(_reads_both(store, writer))
    writing.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _reads_both(store: Store, writer: Writer) -> int:
    """Return the exit code of a child: 0 if it finds both results, and can write."""
    try:
        chain = store.read(writer.key)
        Writer(a_key("child"), 2).begin(store, 3)
    except BaseException:
        return 1
    return 0 if chain and len(chain.results) == 2 else 2


@forks
@may_fork
def test_threads_that_fork_at_the_same_time_let_stores_go_on() -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(_fork_in_two_threads())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _fork_in_two_threads() -> int:
    """Return the exit code: 0 if, after many forks, both stores can still be used."""
    try:
        writers = [(Writer().begin(store), store) for store in (MemoryStore(), MemoryStore())]
        forking = [threading.Thread(target=_fork_often, args=(10,)) for _ in range(2)]
        for thread in forking:
            thread.start()
        while any(thread.is_alive() for thread in forking):
            for writer, store in writers:
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


def test_a_store_that_nobody_uses_is_let_go() -> None:
    store = MemoryStore()
    seen = weakref.ref(store)
    del store
    assert seen() is None
