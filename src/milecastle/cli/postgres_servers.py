"""Looking at a PostgreSQL server without opening it as a store, which would change its tables."""

from __future__ import annotations

import time
from typing import NamedTuple

from milecastle.errors import InvalidRequest

__all__ = ["Server", "look_at", "migrate_postgres"]

_PRIVILEGES = b"""
SELECT count(*) FILTER (WHERE NOT has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(name)s AND c.relkind IN ('r', 'p')
"""


class Server(NamedTuple):
    """What a server says of itself and of our schema."""

    release: str
    schema: str
    version: int
    latest: int
    closed_tables: int
    clock_ahead: float


def _need_driver() -> None:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise InvalidRequest(
            "PostgreSQL needs packages that are not there: pip install milecastle[postgres]"
        )


def migrate_postgres(url: str, *, print_only: bool) -> str:
    """Apply or print what is missing; "" if nothing was."""
    _need_driver()
    from milecastle.stores.postgres import migrate

    return migrate(url, print_only=print_only)


def look_at(url: str) -> Server:
    """Ask a server; ``Unavailable`` if it does not answer."""
    _need_driver()
    from milecastle.stores.postgres.address import parse
    from milecastle.stores.postgres.migrating import LATEST, check_server, connect, version_of

    address = parse(url)
    with connect(address) as connection:
        check_server(connection, address)
        before = time.time()
        row = connection.execute(b"SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        middle = (before + time.time()) / 2
        closed = connection.execute(_PRIVILEGES, {"name": address.schema}).fetchone()
        return Server(
            release=str(connection.info.parameter_status("server_version")),
            schema=address.schema,
            version=version_of(connection, address.schema),
            latest=LATEST,
            closed_tables=int(closed[0]) if closed else 0,
            clock_ahead=float(row[0]) - middle if row else 0.0,
        )
