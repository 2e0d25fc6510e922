"""A memory store and forks: the child has a whole copy, and nobody waits forever."""

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
from milecastle.support import forking
from milecastle.testing.entries import Writer, a_key, a_result

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
may_fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Slow(dict[str, Any]):
    """Results that take long to store, in the middle of a commit."""

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
    assert results.begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a process that waits for too long is killed
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


def test_a_second_fork_does_not_forget_what_the_first_one_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("milecastle.stores.memory.store.PATIENCE", 0.01)
    forks = vars(forking)["_forks"]
    before, after = forks.before, forks.after_in_parent
    store = MemoryStore()
    done = threading.Event()

    def fork_too() -> None:
        before()
        done.set()
        after()

    second = threading.Thread(target=fork_too)
    before()
    second.start()
    done.wait(0.1)
    after()
    second.join(60)
    assert not second.is_alive()
    assert not vars(store)["_lock"].locked()


def test_unused_store_is_released() -> None:
    store = MemoryStore()
    seen = weakref.ref(store)
    del store
    assert seen() is None
