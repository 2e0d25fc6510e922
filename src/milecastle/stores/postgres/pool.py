"""Connections, each lent for one call and no longer.

Rules:

- A connection is lent in autocommit and comes back without any state: what one transaction needs
  is said within it, in the same round trip. So a pooler may stand between.
- A call that got no answer raises ``Lost``; who called knows what to do about it.
- A process that was forked opens connections of its own.

``psycopg_pool`` opens connections, with backoff, and replaces broken ones. What it has handed out
stays here on a stack between two calls: lending from that costs a tenth of a trip to the pool.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, Semaphore
from typing import TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from milecastle.errors import Unavailable
from milecastle.stores.postgres.address import Address
from milecastle.stores.postgres.rows import Numbered, Parameters, Row
from milecastle.stores.postgres.translating import judge

__all__ = ["Lease", "Pool"]

Statement = tuple[bytes, Parameters]
T = TypeVar("T")

_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0
_USES = 10_000
"""After so many calls a connection goes back to the pool, which ends those that are too old."""
_SET_TENANT = b"SELECT set_config('milecastle.tenant', %(tenant)s, true)"


class Lease:
    """A connection out of the pool, and a cursor that numbers its parameters."""

    __slots__ = ("connection", "cursor", "uses")

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.cursor = psycopg.RawCursor(connection)
        self.uses = 0


_left_behind: list[tuple[ConnectionPool[psycopg.Connection], list[Lease]]] = []
"""Connections of a parent process. Letting go of one would end what is not ours."""


class Pool:
    """Runs statements. Thread-safe. ``idle`` are the connections at hand."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._rls = address.rls
        self._closed = False
        self._open()

    def run(self, query: bytes, parameters: Parameters, tenant: str) -> list[Row]:
        """Run one statement in a transaction of its own, in one round trip; its rows."""
        if self._rls:
            return self.run_together([(query, parameters)], tenant)[0]
        return self._lend(lambda lease: lease.connection.execute(query, parameters).fetchall())

    def run_together(self, statements: Sequence[Statement], tenant: str) -> list[list[Row]]:
        """Run statements in one transaction and one round trip; the rows of each."""
        # What follows a statement that fails is skipped, and psycopg would take it for prepared.
        prepare = None if len(statements) == 1 else False

        def work(lease: Lease) -> list[list[Row]]:
            execute = lease.connection.execute
            with lease.connection.pipeline():
                if self._rls:
                    execute(_SET_TENANT, {"tenant": tenant})
                cursors = [execute(*statement, prepare=prepare) for statement in statements]
            return [cursor.fetchall() for cursor in cursors]

        return self._lend(work)

    def count(self, query: bytes, parameters: Parameters | Numbered, tenant: str) -> int:
        """Run one statement like ``run``; how many rows it gave or wrote."""

        def work(lease: Lease) -> int:
            numbered = isinstance(parameters, tuple)
            execute = lease.cursor.execute if numbered else lease.connection.execute
            if not self._rls:
                return execute(query, parameters).rowcount
            with lease.connection.pipeline():
                lease.connection.execute(_SET_TENANT, {"tenant": tenant})
                cursor = execute(query, parameters)
            return cursor.rowcount

        return self._lend(work)

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
                while self.idle:
                    self._pool.putconn(self.idle.pop().connection)
                self._pool.close()
            self._closed = True

    def _lend(self, work: Callable[[Lease], T]) -> T:
        lease = self.take()
        try:
            return work(lease)
        except psycopg.Error as error:
            raise judge(error, lease.connection) from error
        finally:
            self.give_back(lease)

    def take(self) -> Lease:
        """Borrow a connection; ``Unavailable`` if none comes free in time."""
        self.check_open()
        if os.getpid() != self._process:
            self._leave_behind()
        if not self._places.acquire(timeout=self.address.timeout):
            raise self._no_connection()
        try:
            return self.idle.pop()
        except IndexError:
            return self._new_lease()

    def _new_lease(self) -> Lease:
        try:
            return Lease(self._pool.getconn())
        except BaseException as error:
            self._places.release()
            if isinstance(error, PoolClosed):
                raise Unavailable("the PostgreSQL store was closed") from None
            if isinstance(error, PoolTimeout):
                raise self._no_connection() from None
            raise

    def give_back(self, lease: Lease) -> None:
        """Return what was borrowed. What is not fit to be lent again goes back to be replaced."""
        connection = lease.connection
        lease.uses += 1
        status = connection.pgconn.transaction_status
        if status != TransactionStatus.IDLE or lease.uses > _USES or self._closed:
            lease.cursor.close()
            self._pool.putconn(connection)
        else:
            self.idle.append(lease)
        self._places.release()

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
        self._lock = Lock()
        self._places = Semaphore(address.max_size)
        self.idle: list[Lease] = []
        self._process = os.getpid()
        self._pool: ConnectionPool[psycopg.Connection] = ConnectionPool(
            kwargs=settings,
            min_size=address.min_size,
            max_size=address.max_size,
            timeout=address.timeout,
            open=True,
        )

    def _leave_behind(self) -> None:
        # Locks may have been held when the process was forked; new ones cannot have been.
        _left_behind.append((self._pool, self.idle))
        self._open()
