"""psycopg's errors, sorted by what they mean for who asked."""

from __future__ import annotations

import psycopg
from psycopg import errors

from milecastle.errors import MilecastleError, StoreError, Unavailable

__all__ = ["Lost", "Taken", "judge"]


class Lost(Exception):
    """No answer came, or one that asks to try again. Whether anything was written is unknown."""


class Taken(Exception):
    """The key was there already: the fence refused. Nothing was written."""


_AGAIN = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.ReadOnlySqlTransaction,  # a primary that became a replica: another host takes writes
)
_FORGOTTEN = (
    # A session that is not the one we prepared our statements in: nothing was run.
    errors.InvalidSqlStatementName,
    errors.DuplicatePreparedStatement,
)
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


def judge(error: psycopg.Error, connection: psycopg.Connection) -> Exception:
    """What to raise in place of ``error``. A connection that is no longer of use is closed."""
    if isinstance(error, errors.UniqueViolation):
        return Taken(_said(error))
    if _gone(error, connection) or isinstance(error, (errors.ReadOnlySqlTransaction, *_FORGOTTEN)):
        connection.close()
        return Lost(_said(error))
    if isinstance(error, _AGAIN):
        return Lost(_said(error))
    return translate(error)


def translate(error: psycopg.Error) -> MilecastleError:
    """The error of ours that says the same."""
    if isinstance(error, _MISSING):
        return StoreError(
            f"the schema is not what this version of milecastle expects ({_said(error)}); "
            "milecastle.stores.postgres.migrate(url) brings it up to date"
        )
    if isinstance(error, psycopg.OperationalError):
        return Unavailable(f"PostgreSQL could not be used: {_said(error)}")
    return StoreError(f"PostgreSQL refused a statement: {_said(error)}")


def _gone(error: psycopg.Error, connection: psycopg.Connection) -> bool:
    fatal = error.diag.severity_nonlocalized in ("FATAL", "PANIC")
    return connection.closed or fatal or (error.sqlstate or "").startswith("08")


def _said(error: psycopg.Error) -> str:
    """The first line of what the server or the driver said, with its code: never a detail."""
    said = error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__
    return f"{said} [{error.sqlstate}]" if error.sqlstate else said
