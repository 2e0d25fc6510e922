"""The SQLite store: one file, many processes, no server."""

from milecastle.stores.sqlite.migrating import SqliteFile
from milecastle.stores.sqlite.store import SqliteStore

__all__ = ["SqliteFile", "SqliteStore"]
