"""What is lent again: only connections that are fit for it, and never those of a parent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypedDict

import psycopg
import psycopg_pool
import pytest

from milecastle import END, START, Context, StateGraph
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres import pool as pool_module
from milecastle.stores.postgres.libpq import Lease
from milecastle.stores.postgres.pool import Pool
from milecastle.testing.entries import Writer, a_key
from tests.postgres_cluster import (
    fresh_store,
    needs_postgres,
    new_schema,
    pool_of,
    secured_url,
    the_cluster,
)

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
        signal.alarm(60)  # a process that waits for too long is killed
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
            done.wait(60)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hold)
        held.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
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


def test_a_connection_in_the_middle_of_a_pipeline_is_not_lent_again(store: PostgresStore) -> None:
    pool = pool_of(store)
    lease = pool.take()
    lease.pgconn.enter_pipeline_mode()
    pool.give_back(lease)
    assert lease.connection.closed
    Writer().begin(store, 3)


class Alarm(BaseException):
    """What a signal's handler raises."""


@pytest.mark.parametrize("moment", ["_send", "_results"])
def test_a_group_that_a_signal_interrupts_leaves_no_connection_behind(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(secured_url(max_size="1", timeout="2"))
    writer = Writer().begin(store)
    (lease,) = pool_of(store).idle
    real = getattr(Lease, moment)

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        raise Alarm

    with monkeypatch.context() as patched:
        patched.setattr(Lease, moment, interrupted)
        with pytest.raises(Alarm):
            Writer(a_key("another"), 2).begin(store)
    assert lease.connection.closed
    writer.append(store)
    store.close()


def test_a_read_that_a_signal_interrupts_leaves_no_connection_behind(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer().begin(store)
    (lease,) = pool_of(store).idle

    def interrupted(*_: Any, **__: Any) -> None:
        raise Alarm

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "fetchall", interrupted)
        with pytest.raises(Alarm):
            store.read(writer.key)
    assert lease.connection.closed
    assert store.read(writer.key) is not None


def test_an_error_of_a_foreign_transaction_keeps_the_connection(store: PostgresStore) -> None:
    Writer().begin(store)
    (lease,) = pool_of(store).idle

    def refuse(connection: Any) -> Any:
        connection.execute("SELECT 1")
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        pool_of(store).write_within(refuse, "tenant")
    assert pool_of(store).idle == [lease]
    assert not lease.connection.closed


class Raced(list[Lease]):
    """Idle connections: there seems to be one, and then somebody was quicker."""

    def __len__(self) -> int:
        return 1


def test_closing_while_another_takes_the_last_connection_closes_all(store: PostgresStore) -> None:
    pool = pool_of(store)
    lease = pool.take()
    pool.idle = Raced()
    store.close()
    assert vars(pool)["_pool"].closed
    pool.give_back(lease)
    assert lease.connection.closed


def test_what_is_given_back_while_another_closes_is_closed(store: PostgresStore) -> None:
    class Late(list[Lease]):
        def append(self, lease: Lease) -> None:
            store.close()
            super().append(lease)

    pool = pool_of(store)
    lease = pool.take()
    pool.idle = Late()
    pool.give_back(lease)
    assert lease.connection.closed


class Paid(TypedDict):
    paid: int


@pytest.mark.parametrize("max_size", ["1", "2"])
def test_transactions_leave_a_connection_for_everything_else(max_size: str) -> None:
    """Fails if as many transactions as the pool has connections are let in."""
    store = PostgresStore(the_cluster().url_of(new_schema(), max_size=max_size, timeout="3"))
    writer = Writer().begin(store)
    graph = StateGraph(Paid)

    def pay(state: Paid, ctx: Context) -> dict[str, int]:
        def work(connection: Any) -> int:
            connection.execute("SELECT pg_sleep(0.05)")
            assert store.read(writer.key) is not None
            return 1

        return {"paid": ctx.transaction("pay", work)}

    graph.add_node("pay", pay)
    graph.add_edges(START, "pay", END)
    app = graph.compile(store=store)
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(app.invoke, {"paid": 0}, f"t{n}") for n in range(4)]
        assert [run.result()["paid"] for run in runs] == [1] * 4
    store.close()
