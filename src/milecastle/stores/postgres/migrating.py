"""Numbered migrations, applied once each, by one process at a time.

``PostgresServer`` is for callers that must not open the store, which would migrate it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import psycopg

from milecastle.errors import FormatTooNew, StoreError, Unavailable
from milecastle.ports.formats import unreleased
from milecastle.ports.maintenance import Check, Pending
from milecastle.stores.postgres.address import ServerAddress, parse
from milecastle.stores.postgres.lag import seconds_behind
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.statements import compose, file_text, migrations
from milecastle.stores.postgres.translating import translate

_SECONDS_APART = 5.0

LATEST = migrations()[-1][0]
"""The version that this library reads and writes."""

Connection = psycopg.Connection


def migrate(url: str, *, print_only: bool = False) -> str:
    """Migrate a URL's schema and return the SQL; "" if nothing was missing.

    With ``print_only`` nothing is changed: run the SQL yourself.
    """
    server = PostgresServer(url)
    return server.pending_migrations().sql if print_only else server.migrate()


class PostgresServer:
    def __init__(self, url: str) -> None:
        self._address = parse(url)

    def pending_migrations(self) -> Pending:
        schema = self._address.schema
        with connect(self._address) as connection:
            version = version_of(connection, schema)
        sql = script(schema, above=version) if version < LATEST else ""
        return Pending(version=version, latest=LATEST, sql=sql)

    def migrate(self) -> str:
        with connect(self._address) as connection:
            return update(connection, self._address.schema)

    def examine(self) -> tuple[Check, ...]:
        address = self._address
        with connect(address) as connection:
            check_server(connection, address)
            before = time.time()
            now = connection.execute(file_text("clock").encode()).fetchone()
            middle = (before + time.time()) / 2
            closed = connection.execute(
                file_text("closed_tables").encode(), {"name": address.schema}
            ).fetchone()
            release = connection.info.parameter_status("server_version")
            replica = (_replica(connection, address.replica),) if address.replica else ()
        return (
            _permissions(address.schema, int(closed[0]) if closed else 0),
            Check("disk", "ok", "it is on the server: monitor it there"),
            Check("store", "ok", f"PostgreSQL {release}"),
            _clock(abs(float(now[0]) - middle) if now else 0.0),
            *replica,
        )


def _clock(apart: float) -> Check:
    found = f"the clocks of the server and this machine differ by {apart:.1f} s"
    if apart < _SECONDS_APART:
        return Check("clock", "ok", found)
    return Check(
        "clock",
        "warning",
        found,
        "synchronize both with a time server: ages are computed from them",
    )


def _replica(primary: Connection, address: ServerAddress) -> Check:
    try:
        with connect(address) as standby:
            seconds = seconds_behind(partial(_ask, primary), partial(_ask, standby))
    except Unavailable as error:
        advice = "lists are read from the primary until the replica is back"
        return Check("replica", "warning", error.message, advice)
    found = f"{seconds:.1f} s behind" if seconds else "not behind"
    if seconds < _SECONDS_APART:
        return Check("replica", "ok", found)
    return Check("replica", "warning", found, "lists show this older state, and say so")


def _ask(connection: Connection, query: bytes, parameters: Parameters, tenant: str) -> list[Row]:
    return connection.execute(query, parameters).fetchall()


def _permissions(schema: str, closed: int) -> Check:
    if not closed:
        return Check("permissions", "ok", f"this role may use schema {schema}")
    advice = "GRANT SELECT, INSERT, UPDATE, DELETE on them, or open the store as their owner"
    return Check(
        "permissions", "failed", f"{closed} tables are not accessible to this role", advice
    )


def script(schema: str, *, above: int = 0) -> str:
    begin = compose(file_text("begin_migrating"), schema=schema).decode()
    return f"BEGIN;\n{begin}{_steps(schema, above)}COMMIT;\n"


def update(connection: Connection, schema: str) -> str:
    """Apply missing migrations in one locked transaction; return their SQL."""
    version_of(connection, schema)  # before it gets a table, which makes it one of ours
    with connection.transaction():
        connection.execute(compose(file_text("begin_migrating"), schema=schema))
        version = version_of(connection, schema)
        if version == LATEST:
            return ""
        connection.execute(_steps(schema, version).encode())
    return script(schema, above=version)


def version_of(connection: Connection, schema: str) -> int:
    found = connection.execute(file_text("server").encode(), {"name": schema}).fetchone()
    *_, has_version, is_unreleased = found or (False, False)
    if not has_version:
        if is_unreleased:
            raise unreleased(f"schema '{schema}'")
        return 0
    row = connection.execute(compose(file_text("version"), schema=schema)).fetchone()
    version = int(row[0]) if row else 0
    if version > LATEST:
        raise FormatTooNew(found=version, supported=LATEST, place=f"schema '{schema}'")
    return version


def check_server(connection: Connection, address: ServerAddress) -> None:
    found = connection.execute(file_text("server").encode(), {"name": address.schema}).fetchone()
    encoding, synchronous, fsync, *_ = found or ("", "", "")
    if encoding != "UTF8":
        raise StoreError(f"the database is encoded in {encoding}; milecastle needs UTF8")
    if not address.synchronous_commit:
        return
    for name, value in (("synchronous_commit", synchronous), ("fsync", fsync)):
        if value == "off":
            raise StoreError(
                f"{name} is off: a crash of the server would lose what was committed. Turn it on "
                "(ALTER ROLE ... SET synchronous_commit = on), or accept the loss with "
                "?synchronous_commit=off"
            )


@contextmanager
def connect(address: ServerAddress) -> Generator[Connection, None, None]:
    try:
        with _connection(address) as connection:
            yield connection
    except psycopg.Error as error:
        raise translate(error) from error


def _connection(address: ServerAddress) -> Connection:
    try:
        return psycopg.connect(**address.connect, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        said = address.masked(str(error)).partition("\n")[0]
    # Raised here, it does not include the driver's error, which may quote the URL.
    raise Unavailable(f"PostgreSQL could not be reached: {said}")


def _steps(schema: str, above: int) -> str:
    note = "INSERT INTO {schema}.format (version) VALUES (%d);\n"
    texts = [text + note % version for version, text in migrations() if version > above]
    return "".join(compose(text, schema=schema).decode() for text in texts)
