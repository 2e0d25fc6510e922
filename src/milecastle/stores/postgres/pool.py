"""Connections, each lent for one call and no longer.

Rules:

- A connection is lent in autocommit and comes back without any state: what one transaction needs
  is said within it, in the same round trip. So a pooler may stand between.
- A call that got no answer raises ``Lost``; who called knows what to do about it.
- What a signal interrupted, nobody knows how far it came: its connection is closed.
- A process that was forked opens connections of its own, once, whichever thread comes first.

``psycopg_pool`` opens connections, with backoff, and replaces broken ones. What it has handed out
stays here on a stack between two calls: lending from that costs next to nothing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Condition, Lock
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from milecastle.errors import Unavailable
from milecastle.stores.postgres.address import Address
from milecastle.stores.postgres.arrays import TEXT
from milecastle.stores.postgres.direct import Direct, Lease, Line, Values, Write
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.translating import judge

__all__ = ["Pool"]

Statement = tuple[bytes, Parameters]
T = TypeVar("T")

_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0
_USES = 10_000
"""After so many calls a connection goes back to the pool, which ends those that are too old."""
_IDLE = int(TransactionStatus.IDLE)
_SETTLE = b"SELECT pg_logical_emit_message(true, 'milecastle', '')"
"""A commit that changes nothing: it waits for whatever a commit has to wait for."""
_SET_TENANT = b"SELECT set_config('milecastle.tenant', %(tenant)s, true)"
_NAME_TENANT = Direct.of("tenant", b"SELECT set_config('milecastle.tenant', $1, true)", [TEXT])

_pools: WeakSet[Pool] = WeakSet()
_left_behind: list[tuple[ConnectionPool[Line], list[Lease]]] = []
"""Connections of a parent process. Letting go of one would end what is not ours."""


class Pool:
    """Runs statements. Thread-safe. ``idle`` are the connections at hand."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._rls = address.rls
        self._closed = False
        self.renew_lock()
        self._open()
        _pools.add(self)

    def renew_lock(self) -> None:
        """In a forked child: who held the lock of opening and closing may be gone."""
        self._lock = Lock()

    def run(self, query: bytes, parameters: Parameters, tenant: str) -> list[Row]:
        """Run one statement in a transaction of its own, in one round trip; its rows."""
        if self._rls:
            return self.run_together([(query, parameters)], tenant)[0]
        return self._lend(
            lambda lease: lease.connection.execute(query, parameters, binary=True).fetchall()
        )

    def run_together(self, statements: Sequence[Statement], tenant: str) -> list[list[Row]]:
        """Run statements in one transaction and one round trip; the rows of each."""
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

    def write(self, statement: Direct, values: Values, tenant: str) -> PGresult:
        """Write with one statement, in a transaction of its own and one round trip."""
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
        """Write for some tenants in one transaction and one round trip; the result of each."""
        each: list[Write] = []
        named: set[int] = set()
        for tenant, own in writes:
            if self._rls:
                named.add(len(each))
                each.append((_NAME_TENANT, (tenant.encode(),)))
            each += own
        results = self._lend(lambda lease: lease.write_together(each))
        return [result for place, result in enumerate(results) if place not in named]

    def write_within(self, work: Callable[[Any], Write], tenant: str) -> PGresult:
        """Call ``work`` in a transaction, and write what it returns before the commit.

        If the write finds its place taken, or was let in nowhere, everything is undone.
        """
        foreign: list[BaseException] = []

        def within(lease: Lease) -> PGresult:
            connection = lease.connection
            with connection.transaction():
                if self._rls:
                    connection.execute(_SET_TENANT, {"tenant": tenant})
                try:
                    write = work(connection)
                except BaseException as error:
                    foreign.append(error)
                    raise
                result = lease.write(*write)
                if not result.command_tuples:
                    raise psycopg.Rollback
            return result

        try:
            return self._lend(within, foreign)
        except BaseException:
            if foreign:
                raise foreign[0] from None
            raise

    def settle(self) -> bool:
        """Return, with ``True``, when all that can be read now is as safe as commits are.

        What was ended while it waited for a replica can be read before the replica has it.
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
        """Raise ``Unavailable`` if the pool was closed."""
        if self._closed:
            raise Unavailable("the PostgreSQL store was closed")

    def close(self) -> None:
        """Close every connection. Closing again does nothing."""
        with self._lock:
            if not self._closed and os.getpid() == self._process:
                self._closed = True
                self._drain()
                self._pool.close()
                with self._freed:
                    self._freed.notify_all()
            self._closed = True

    def _drain(self) -> None:
        """Hand over all that is idle to be closed; others may take or give back meanwhile."""
        with suppress(IndexError):
            while True:
                self._pool.putconn(self.idle.pop().connection)

    def _lend(self, work: Callable[[Lease], T], foreign: Sequence[BaseException] = ()) -> T:
        """Lend a connection for ``work``; errors in ``foreign`` do it no harm."""
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
        """Borrow a connection; ``Unavailable`` if none comes free in time."""
        if self._closed:
            self.check_open()
        if os.getpid() != self._process:
            self._leave_behind()
        try:
            return self.idle.pop()
        except IndexError:
            return self._wait_for_lease()

    def _wait_for_lease(self) -> Lease:
        """A connection that was given back, or a new one as long as there may be more."""
        until = time.monotonic() + self.address.timeout
        with self._freed:
            self._waiting += 1
            try:
                while True:
                    self.check_open()
                    with suppress(IndexError):
                        return self.idle.pop()
                    if self._count < self.address.max_size:
                        self._count += 1
                        break
                    if not self._freed.wait(until - time.monotonic()):
                        raise self._no_connection()
            finally:
                self._waiting -= 1
        return self._new_lease()

    def _new_lease(self) -> Lease:
        try:
            return Lease(self._pool.getconn(), prepares=self.address.prepare)
        except BaseException as error:
            self._forget_one()
            if isinstance(error, PoolClosed):
                raise Unavailable("the PostgreSQL store was closed") from None
            if isinstance(error, PoolTimeout):
                raise self._no_connection() from None
            raise

    def give_back(self, lease: Lease) -> None:
        """Return what was borrowed. What is not fit to be lent again goes back to be replaced."""
        lease.uses += 1
        is_idle = lease.pgconn.transaction_status == _IDLE
        is_piping = lease.pgconn.pipeline_status  # an empty pipeline is idle, too
        if not is_idle or is_piping or lease.uses > _USES:
            if is_piping:
                lease.connection.close()
            self._pool.putconn(lease.connection)
            self._forget_one()
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
        return Unavailable(
            f"PostgreSQL gave no connection within {self.address.timeout:g} s; "
            "the server is down, or max_size is too small for the work"
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
        self.idle: list[Lease] = []
        self._pool: ConnectionPool[Line] = ConnectionPool(
            connection_class=Line,
            kwargs=settings,
            min_size=address.min_size,
            max_size=address.max_size,
            timeout=address.timeout,
            open=True,
        )
        self._process = os.getpid()  # last: whoever sees it takes what is above for its own

    def _leave_behind(self) -> None:
        with self._lock:
            self.check_open()
            if os.getpid() != self._process:
                _left_behind.append((self._pool, self.idle))
                self._open()


def _renew_locks() -> None:
    for pool in list(_pools):
        pool.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
