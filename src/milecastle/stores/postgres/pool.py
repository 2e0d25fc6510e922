"""Connections, each lent for one call and no longer.

Rules:

- A connection is lent in autocommit and comes back without any state: a transaction's settings are
  made within it, in the same round trip. So a pooler may be in between.
- A call without an answer raises ``Lost``; the caller decides.
- After a call was interrupted by a signal, its progress is unknown: its connection is closed. If it
  was interrupted while it borrowed or returned the connection, that is dropped, and replaced when
  the next one is needed.
- Transactions calling a user's function never have all connections: the function may use the
  store, and so may the run it belongs to. If ``max_size`` is 1, a second one is opened.
- A forked process opens its own connections, once, in whichever thread comes first.

``psycopg_pool`` opens connections, with backoff, and replaces broken ones. Returned connections
stay here on a stack between two calls: lending from that costs almost nothing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import BoundedSemaphore, Condition, Lock
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from milecastle.errors import Unavailable
from milecastle.stores.postgres.address import ServerAddress
from milecastle.stores.postgres.arrays import TEXT
from milecastle.stores.postgres.libpq import Lease, Libpq, TrackedConnection, Values, Write
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.translating import Unreachable, judge
from milecastle.support.forking import watch_forks

Statement = tuple[bytes, Parameters]
Query = Callable[[bytes, Parameters], list[Row]]
T = TypeVar("T")

_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0
_LOOKS = 0.5
"""How often a waiting thread looks for connections whose users were interrupted, in seconds.

A pool that gave up connecting tries again with each look.
"""
_USES = 10_000
"""After so many calls a connection goes back to the pool, which ends those that are too old."""
_IDLE = int(TransactionStatus.IDLE)
_SETTLE = b"SELECT pg_logical_emit_message(true, 'milecastle', '')"
"""A commit that changes nothing: it waits for everything that a commit waits for."""
_SET_TENANT = b"SELECT set_config('milecastle.tenant', %(tenant)s, true)"
_NAME_TENANT = Libpq.of("tenant", b"SELECT set_config('milecastle.tenant', $1, true)", [TEXT])

_left_behind: list[
    tuple[ConnectionPool[TrackedConnection], list[Lease], list[TrackedConnection]]
] = []
"""Connections of a parent process. Closing one would break the parent's session."""


class Pool:
    """Runs statements. Thread-safe. ``idle`` has the free connections."""

    _count: int

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self._rls = address.rls
        self._closed = False
        self._lock = Lock()
        self._open()
        watch_forks(self)

    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._lock = Lock()

    def run(self, query: bytes, parameters: Parameters, tenant: str) -> list[Row]:
        if self._rls:
            return self.run_together([(query, parameters)], tenant)[0]
        return self._lend(
            lambda lease: lease.connection.execute(query, parameters, binary=True).fetchall()
        )

    def run_together(self, statements: Sequence[Statement], tenant: str) -> list[list[Row]]:
        # What follows a statement that fails is skipped, and psycopg would take it for prepared.
        prepare = None if len(statements) == 1 and not self._rls else False

        def work(lease: Lease) -> list[list[Row]]:
            execute = lease.connection.execute
            with lease.connection.pipeline():
                if self._rls:
                    execute(_SET_TENANT, {"tenant": tenant})
                cursors = [
                    execute(*statement, prepare=prepare, binary=True) for statement in statements
                ]
            return [cursor.fetchall() for cursor in cursors]

        return self._lend(work)

    def write(self, statement: Libpq, values: Values, tenant: str) -> PGresult:
        if self._rls:
            return self.write_together([(tenant, [(statement, values)])])[0]
        lease = self.take()
        try:
            return lease.write(statement, values)
        except psycopg.Error as error:
            raise judge(error, lease.connection) from error
        except BaseException:
            lease.connection.close()
            raise
        finally:
            self.give_back(lease)

    def write_together(self, writes: Sequence[tuple[str, Sequence[Write]]]) -> list[PGresult]:
        """Write for several tenants in one transaction and one round trip; return each result."""
        each: list[Write] = []
        named: set[int] = set()
        for tenant, own in writes:
            if self._rls:
                named.add(len(each))
                each.append((_NAME_TENANT, (tenant.encode(),)))
            each += own
        results = self._lend(lambda lease: lease.write_together(each))
        return [result for place, result in enumerate(results) if place not in named]

    def write_within(self, work: Callable[[Any], Sequence[Write]], tenant: str) -> bool:
        """Call ``work`` in a transaction, and write its result before the commit.

        If the last write is not accepted, everything is undone: ``False``.
        """
        foreign: list[BaseException] = []

        def within(lease: Lease) -> bool:
            connection, is_written = lease.connection, False
            with connection.transaction():
                if self._rls:
                    connection.execute(_SET_TENANT, {"tenant": tenant})
                try:
                    writes = work(connection)
                except BaseException as error:
                    foreign.append(error)
                    raise
                is_written = bool(lease.write_together(writes)[-1].command_tuples)
                if not is_written:
                    raise psycopg.Rollback
            return is_written

        if not self._transactions.acquire(timeout=self.address.timeout):
            raise self._no_connection()
        try:
            if self.address.max_size < 2:
                self._most = 2
                self._pool.resize(self.address.min_size, 2)
            return self._lend(within, foreign)
        except BaseException:
            if foreign:
                raise foreign[0] from None
            raise
        finally:
            self._transactions.release()

    def transact(self, work: Callable[[Query], T]) -> T:
        def within(lease: Lease) -> T:
            execute = lease.connection.execute
            with lease.connection.transaction():
                return work(lambda query, given: execute(query, given, binary=True).fetchall())

        return self._lend(within)

    def settle(self) -> bool:
        """Return, with ``True``, when everything readable now is as durable as a commit.

        A commit interrupted while it waited for a replica can be read before the replica
        has it.
        """
        self.run(_SETTLE, {}, "")
        return True

    def attempts(self) -> Iterator[None]:
        """Count attempts until the time is up, with a pause before each but the first."""
        until = time.monotonic() + self.address.timeout
        pause = _SHORTEST_PAUSE
        yield
        while time.monotonic() < until:
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads out who tries again
            pause = min(2 * pause, _LONGEST_PAUSE)
            yield

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable("the PostgreSQL store was closed")

    def close(self) -> None:
        with self._lock:
            if not self._closed and os.getpid() == self._process:
                self._closed = True
                self._drain()
                self._pool.close()
                with self._freed:
                    self._freed.notify_all()
            self._closed = True

    def _drain(self) -> None:
        with suppress(IndexError):
            while True:
                lease = self.idle.pop()
                lease.lost = None
                self._pool.putconn(lease.connection)
        with suppress(IndexError):
            while True:
                self._pool.putconn(self._lost.pop())

    def _lend(self, work: Callable[[Lease], T], foreign: Sequence[BaseException] = ()) -> T:
        lease = self.take()
        try:
            return work(lease)
        except psycopg.Error as error:
            raise judge(error, lease.connection) from error
        except BaseException as error:
            if error not in foreign:
                lease.connection.close()
            raise
        finally:
            self.give_back(lease)

    def take(self) -> Lease:
        if self._closed:
            self.check_open()
        if os.getpid() != self._process:
            self._leave_behind()
        try:
            return self.idle.pop()
        except IndexError:
            return self._wait_for_lease()

    def _wait_for_lease(self) -> Lease:
        until = time.monotonic() + self.address.timeout
        counted = False
        try:
            with self._freed:
                self._waiting += 1
                try:
                    while True:
                        self.check_open()
                        self._replace_lost()
                        with suppress(IndexError):
                            return self.idle.pop()
                        if self._count < self._most:
                            self._count, counted = self._count + 1, True
                            break
                        left = until - time.monotonic()
                        if not self._freed.wait(min(left, _LOOKS)) and left <= 0:
                            raise self._no_connection()
                finally:
                    self._waiting -= 1
            lease, counted = self._new_lease(until), False
            return lease
        finally:
            if counted:
                self._forget_one()

    def _replace_lost(self) -> None:
        put: Callable[[TrackedConnection], object] = self._pool.putconn
        while self._lost:
            connection = self._lost[0]
            connection.close()
            _, self._count, self._lost[:1] = put(connection), self._count - 1, []

    def _new_lease(self, until: float) -> Lease:
        connection: TrackedConnection | None = None
        lease: Lease | None = None
        try:
            while connection is None:
                left = until - time.monotonic()
                try:
                    connection = self._pool.getconn(max(0.0, min(left, _LOOKS)))
                except PoolTimeout:
                    if left <= _LOOKS:
                        raise
            lease = Lease(connection, prepares=self.address.prepare)
            lease.lost = self._lost
        except BaseException as error:
            if connection is not None:
                connection.close()
                self._pool.putconn(connection)
            if lease is not None:
                lease.lost = None
            if isinstance(error, PoolClosed):
                raise Unavailable("the PostgreSQL store was closed") from None
            if isinstance(error, PoolTimeout):
                raise self._no_connection() from None
            raise
        return lease

    def give_back(self, lease: Lease) -> None:
        lease.uses += 1
        is_idle = lease.pgconn.transaction_status == _IDLE
        is_piping = lease.pgconn.pipeline_status  # an empty pipeline is idle, too
        if not is_idle or is_piping or lease.uses > _USES:
            if is_piping:
                lease.connection.close()
            put: Callable[[TrackedConnection], object] = self._pool.putconn
            with self._freed:
                # One line: no signal is handled in between.
                _, lease.lost, self._count = put(lease.connection), None, self._count - 1
                self._freed.notify()
            return
        self.idle.append(lease)
        if self._closed:  # who closed may have looked before
            self._drain()
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def _forget_one(self) -> None:
        with self._freed:
            self._count -= 1
            self._freed.notify()

    def _no_connection(self) -> Unavailable:
        return Unreachable(
            f"no PostgreSQL connection became available within {self.address.timeout:g} s; "
            "the server is down, or max_size is too small for the load"
        )

    def _open(self) -> None:
        address = self.address
        settings = {
            **address.connect,
            "autocommit": True,
            "prepare_threshold": 5 if address.prepare else None,
        }
        self._freed = Condition()
        self._waiting = 0
        self._count = 0
        self._most = address.max_size
        self._transactions: BoundedSemaphore = BoundedSemaphore(max(1, address.max_size - 1))
        self.idle: list[Lease] = []
        self._lost: list[TrackedConnection] = []
        self._pool: ConnectionPool[TrackedConnection] = ConnectionPool(
            connection_class=TrackedConnection,
            kwargs=settings,
            min_size=address.min_size,
            max_size=address.max_size,
            reconnect_timeout=_LONGEST_PAUSE,  # its pauses double up to this
            open=True,
        )
        self._process = os.getpid()  # last: a reader of this relies on what is set above

    def _leave_behind(self) -> None:
        with self._lock:
            self.check_open()
            if os.getpid() != self._process:
                _left_behind.append((self._pool, self.idle, self._lost))
                self._open()
