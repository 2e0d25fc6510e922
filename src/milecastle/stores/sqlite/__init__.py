"""The SQLite store: one file, many processes, no server."""

from milecastle.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
