from __future__ import annotations

import psycopg
from psycopg import errors

from milecastle.errors import MilecastleError, StoreError, Unavailable


class Lost(Exception):
    """No answer came, or one asking to retry. The outcome is unknown."""


class Unreachable(Unavailable):
    """The server could not be reached within a call's waiting time."""


class Taken(Exception):
    """The key existed already, or a memory item has another version. Nothing was written."""


_AGAIN = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.ReadOnlySqlTransaction,  # a primary that became a replica: another host accepts writes
)
_FORGOTTEN = (
    # A session that is not the one we prepared our statements in: nothing was run.
    errors.InvalidSqlStatementName,
    errors.DuplicatePreparedStatement,
)
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


def judge(error: psycopg.Error, connection: psycopg.Connection) -> Exception:
    """The error to raise for ``error``. A broken connection is closed."""
    if isinstance(error, errors.UniqueViolation | errors.DivisionByZero):
        return Taken(_said(error))
    if isinstance(error, _FORGOTTEN):
        connection.close()
        return Lost(f"{_said(error)}; with a pooler in between, add prepare=off to the URL")
    if _gone(error, connection) or isinstance(error, errors.ReadOnlySqlTransaction):
        connection.close()
        return Lost(_said(error))
    if isinstance(error, _AGAIN):
        return Lost(_said(error))
    return translate(error)


def is_undone(lost: Lost) -> bool:
    """True if the server has undone the transaction, for another one: it can be sent again."""
    return isinstance(lost.__cause__, errors.DeadlockDetected | errors.SerializationFailure)


def translate(error: psycopg.Error) -> MilecastleError:
    if isinstance(error, _MISSING):
        return StoreError(
            f"the schema is not what this version of milecastle expects ({_said(error)}); "
            "milecastle.stores.postgres.migrate(url) updates it"
        )
    if isinstance(error, errors.QueryCanceled):
        return Unavailable(
            f"PostgreSQL ended a statement: {_said(error)}; try again, or raise statement_timeout "
            "for this role"
        )
    if isinstance(error, psycopg.OperationalError):
        return Unavailable(f"PostgreSQL could not be used: {_said(error)}")
    return StoreError(f"PostgreSQL refused a statement: {_said(error)}")


def _gone(error: psycopg.Error, connection: psycopg.Connection) -> bool:
    fatal = error.diag.severity_nonlocalized in ("FATAL", "PANIC")
    return connection.closed or fatal or (error.sqlstate or "").startswith("08")


def _said(error: psycopg.Error) -> str:
    said = error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__
    return f"{said} [{error.sqlstate}]" if error.sqlstate else said
