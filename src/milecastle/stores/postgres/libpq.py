"""Writes going directly to libpq: known types, binary values, no lookups.

psycopg's cursors determine each value's type, which costs as much as a write. Here a
statement has its types with it. It is prepared on a connection when it is first used there, unless
a pooler forbids that; then its text goes along each time. While it waits for the server, libpq does
not look at signals: Ctrl-C takes effect when the answer is there, or the connection times out.

Other threads continue meanwhile. For a single statement psycopg ensures that, but not for the
results of a pipeline: a caller that asked for one too early would stop the process, and forever if
the server in turn waits for a transaction of another thread. So they are waited for here.
"""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from hashlib import blake2b
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, Final

import msgspec
import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from milecastle.stores.postgres.arrays import accept_columns

Values = Sequence[bytes]
"""The parameters of a statement, each in PostgreSQL's binary form."""

_BINARY: Final = int(Format.BINARY)
_WRITTEN: Final = int(ExecStatus.COMMAND_OK)
_ROWS: Final = int(ExecStatus.TUPLES_OK)
_SYNCED: Final = int(ExecStatus.PIPELINE_SYNC)
_SKIPPED: Final = int(ExecStatus.PIPELINE_ABORTED)
_Selector: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""A selector for one socket: one that needs no file descriptor, if available."""


class Libpq(msgspec.Struct, frozen=True, eq=False):
    name: bytes
    text: bytes
    types: tuple[int, ...]
    formats: tuple[int, ...]

    @classmethod
    def of(cls, name: str, text: bytes, types: Sequence[int]) -> Libpq:
        # A pooler may hand over a session in which another schema's was prepared, or a release's.
        digest = blake2b(text + repr(list(types)).encode(), digest_size=8).hexdigest()
        full = f"milecastle_{name}_{digest}".encode()
        return cls(full, text, tuple(types), (_BINARY,) * len(types))


Write = tuple[Libpq, Values]


class TrackedConnection(psycopg.Connection[tuple[Any, ...]]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.prepared: set[bytes] = set()
        accept_columns(self.adapters)


class Lease:
    """A connection from the pool, for one thread at a time.

    If it is dropped before it is returned, because a signal interrupted its user, its connection is
    added to ``lost``: no lock is taken, because this may happen at any moment.
    """

    __slots__ = ("_prepared", "_prepares", "connection", "lost", "pgconn", "uses")

    def __init__(self, connection: TrackedConnection, *, prepares: bool) -> None:
        self.connection = connection
        self.pgconn: PGconn = connection.pgconn
        self.uses = 0
        self._prepares = prepares
        self._prepared = connection.prepared
        self.lost: list[TrackedConnection] | None = None

    def __del__(self) -> None:
        lost = getattr(self, "lost", None)
        if lost is not None:
            lost.append(self.connection)

    def write(self, statement: Libpq, values: Values) -> PGresult:
        if self._prepares:
            if statement.name not in self._prepared:
                self._prepare(statement)
            result = self.pgconn.exec_prepared(statement.name, values, statement.formats, _BINARY)
        else:
            result = self.pgconn.exec_params(
                statement.text, values, statement.types, statement.formats, _BINARY
            )
        if result.status == _WRITTEN or result.status == _ROWS:
            return result
        raise error_from_result(result)

    def write_together(self, writes: Sequence[Write]) -> list[PGresult]:
        if self._prepares:
            for statement, _ in writes:
                if statement.name not in self._prepared:
                    self._prepare(statement)
        self.pgconn.enter_pipeline_mode()
        for statement, values in writes:
            self._send(statement, values)
        self.pgconn.pipeline_sync()
        results = self._results()
        self.pgconn.exit_pipeline_mode()
        for result in results:
            if result.status != _WRITTEN and result.status != _ROWS:
                raise error_from_result(result)
        return results

    def _prepare(self, statement: Libpq) -> None:
        result = self.pgconn.prepare(statement.name, statement.text, statement.types)
        if result.status != _WRITTEN:
            raise error_from_result(result)
        self._prepared.add(statement.name)

    def _send(self, statement: Libpq, values: Values) -> None:
        formats = statement.formats
        if self._prepares:
            self.pgconn.send_query_prepared(statement.name, values, formats, _BINARY)
        else:
            self.pgconn.send_query_params(statement.text, values, statement.types, formats, _BINARY)

    def _results(self) -> list[PGresult]:
        results: list[PGresult] = []
        ended = 0
        while ended < 2:  # two in a row without a result: the connection is gone
            self._await_result()
            result = self.pgconn.get_result()
            if result is None:
                ended += 1
                continue
            ended = 0
            if result.status == _SYNCED:
                return results
            if result.status != _SKIPPED:
                results.append(result)
        raise psycopg.OperationalError("the connection was lost")

    def _await_result(self) -> None:
        pgconn = self.pgconn
        while (unsent := pgconn.flush()) or pgconn.is_busy():
            with _Selector() as selector:
                selector.register(pgconn.socket, EVENT_READ | (EVENT_WRITE if unsent else 0))
                selector.select()
            pgconn.consume_input()
