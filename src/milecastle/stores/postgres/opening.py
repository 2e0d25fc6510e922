from __future__ import annotations

from milecastle.stores.postgres.migrating import PostgresServer
from milecastle.stores.postgres.store import PostgresStore


def open_url(url: str) -> PostgresStore:
    return PostgresStore(url)


def unopened(url: str) -> PostgresServer:
    return PostgresServer(url)
