"""Writing by a caller's own connection to the database, in its transaction.

Rules:

- A call's statements are between a savepoint and its release: a refused call leaves the caller's
  transaction as it was.
- The connection must be to this server and schema: what identifies them is read on both sides.
- Nothing is sent again: an error is the caller's, whose transaction it is.
- No bell rings: a NOTIFY would be committed with the transaction, under a cluster-wide lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import psycopg
from psycopg import errors
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from milecastle.errors import InvalidRequest, StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports import mailbox
from milecastle.ports.mailbox import Debounce, Sent, refuse_full, refuse_no_thread
from milecastle.ports.store import Batch
from milecastle.stores.postgres import rows, writing
from milecastle.stores.postgres.committing import Commits
from milecastle.stores.postgres.libpq import Write
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost, Taken, translate

_IDENTITY: Final = (
    b"SELECT pg_postmaster_start_time()::text, "
    b"(SELECT oid::text FROM pg_database WHERE datname = current_database()), "
    b"to_regclass(%(table)s)::oid::text"
)
_TENANT: Final = b"SELECT set_config('milecastle.tenant', %(tenant)s, true)"
_DONE: Final = (int(ExecStatus.COMMAND_OK), int(ExecStatus.TUPLES_OK))


class JoinedSchema:
    def __init__(
        self,
        joined: JoinedConnection,
        commits: Commits,
        statements: Statements,
        thread: Callable[[ThreadKey], ThreadInfo | None],
    ) -> None:
        self._joined = joined
        self._commits = commits
        self._sql = statements
        self._thread = thread

    def commit(self, batch: Batch) -> None:
        self._commits.joined(batch, self._joined.write)

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        debounce: Debounce | None = None,
    ) -> Sent:
        most = mailbox.MOST_UNREAD
        values = writing.send_values(key, topic, mark, payload, most, graph, debounce)
        try:
            try:
                (result,) = self._joined.write([(self._sql.send, values)])
            except Taken as error:
                if not isinstance(error.__cause__, errors.UniqueViolation):
                    raise
                # another sender of the same mark has committed: this statement sees it
                (result,) = self._joined.write([(self._sql.send, values)])
        except Taken:
            if self._thread(key) is None:
                refuse_no_thread(key)
            refuse_full(key)
        number, reused, status, _ = rows.sent_from(result)
        return Sent(number=number, reused=reused, status=status)


class JoinedConnection:
    def __init__(
        self,
        connection: Any,
        pool: Pool,
        key: ThreadKey,
        elsewhere: Callable[[ThreadKey], StoreError | None],
    ) -> None:
        self._connection = _checked(connection)
        self._pool = pool
        self._key = key
        self._elsewhere = elsewhere

    def write(self, writes: Sequence[Write]) -> list[PGresult]:
        """Run statements, all or none; ``Taken`` if the first writes nothing."""
        connection, results = self._connection, list[PGresult]()
        try:
            self._check_place()
            with connection.transaction():
                if self._pool.address.rls:
                    self._run(_TENANT, {"tenant": self._key.tenant})
                for statement, values in writes:
                    formats, binary = statement.formats, int(Format.BINARY)
                    with connection.lock:
                        result = connection.pgconn.exec_params(
                            statement.text, values, statement.types, formats, binary
                        )
                    if result.status not in _DONE:
                        raise error_from_result(result)
                    results.append(result)
                if not results[0].command_tuples:
                    raise Taken("the statement wrote nothing")
        except (errors.UniqueViolation, errors.DivisionByZero) as error:
            raise Taken(str(error)) from error
        except (errors.SerializationFailure, errors.DeadlockDetected) as error:
            raise Unavailable(
                f"another writer of thread '{self._key.thread}' made the caller's transaction "
                f"fail ({type(error).__name__}): roll it back, and try it again"
            ) from error
        except Lost as lost:  # of the store's own connection
            raise Unavailable(
                f"PostgreSQL did not respond: {lost}; nothing was added to the caller's "
                "transaction: try this call again"
            ) from lost
        except psycopg.Error as error:
            raise translate(error) from error
        return results

    def _check_place(self) -> None:
        table = {"table": f'"{self._pool.address.schema}".entries'}
        there, here = self._run(_IDENTITY, table), self._pool.run(_IDENTITY, table, "")
        if there != here:
            raise InvalidRequest(
                f"the connection is to another database than schema "
                f"'{self._pool.address.schema}' of the store, in which thread "
                f"'{self._key.thread}' is: one transaction needs one database"
            )
        if (found := self._elsewhere(self._key)) is not None:
            raise found

    def _run(self, query: bytes, given: dict[str, Any]) -> list[Any]:
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        return cursor.execute(query, given, prepare=False, binary=True).fetchall()


def _checked(connection: Any) -> psycopg.Connection[Any]:
    if isinstance(connection, psycopg.AsyncConnection):
        raise InvalidRequest(
            "connection= takes a psycopg.Connection, not an AsyncConnection: open a blocking one "
            "for this transaction, off the event loop"
        )
    if not isinstance(connection, psycopg.Connection):
        raise InvalidRequest(
            "connection= takes a psycopg.Connection to the store's database, not "
            f"{type(connection).__module__}.{type(connection).__qualname__}"
        )
    found: psycopg.Connection[Any] = cast("Any", connection)
    status = found.info.transaction_status
    if found.closed or status == TransactionStatus.UNKNOWN:
        raise InvalidRequest("the connection is closed: open one, and begin the transaction again")
    if status == TransactionStatus.INERROR:
        raise InvalidRequest("the connection's transaction has failed: roll it back first")
    if found.autocommit and status == TransactionStatus.IDLE:
        raise InvalidRequest(
            "the connection is in autocommit, so there is no transaction to be part of: submit "
            "inside `with connection.transaction():`"
        )
    if found.pgconn.pipeline_status != PipelineStatus.OFF:
        raise InvalidRequest("the connection is in a pipeline: leave it before this call")
    return found
