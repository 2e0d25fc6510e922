"""What is lent again: only connections that are fit for it, and never those of a parent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import psycopg_pool
import pytest

from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres import pool as pool_module
from milecastle.stores.postgres.pool import Pool
from milecastle.testing.entries import Writer
from tests.postgres_cluster import fresh_store, needs_postgres, pool_of

pytestmark = needs_postgres
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
may_fork = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    yield from fresh_store()


@forks
@may_fork
def test_the_threads_of_a_forked_child_open_connections_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer().begin(store)
    made: list[object] = []
    real: Any = psycopg_pool.ConnectionPool

    def open_slowly(**options: Any) -> object:
        time.sleep(0.2)
        made.append(real(**options))
        return made[-1]

    monkeypatch.setattr(pool_module, "ConnectionPool", open_slowly)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # who waits for too long is killed
        os._exit(_takes_of_its_own(pool_of(store), made))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _takes_of_its_own(pool: Pool, made: list[object]) -> int:
    """Return the exit code of a child: 0 if its threads share one new pool."""
    try:
        with ThreadPoolExecutor(3) as threads:
            leases = [taken.result() for taken in [threads.submit(pool.take) for _ in range(3)]]
        owners = [vars(lease.connection)["_pool"] for lease in leases]
    except BaseException:
        return 1
    return 0 if owners == made * 3 else 2


@forks
@may_fork
@pytest.mark.parametrize("is_used", [True, False])
def test_a_forked_child_waits_for_no_lock_of_its_parent(
    store: PostgresStore, is_used: bool
) -> None:
    held, done = Event(), Event()

    def hold() -> None:
        with vars(pool_of(store))["_lock"], vars(pool_of(store))["_freed"]:
            held.set()
            done.wait(20)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hold)
        held.wait(20)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(_closes(store, is_used))
        done.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _closes(store: PostgresStore, is_used: bool) -> int:
    """Return the exit code of a child: 0 if it could close the store, perhaps after using it."""
    try:
        if is_used:
            Writer().begin(store)
        store.close()
    except BaseException:
        return 1
    return 0
