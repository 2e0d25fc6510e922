"""Numbered migrations, applied once each, by one process at a time."""

from __future__ import annotations

import psycopg

from milecastle.errors import FormatTooNew, StoreError, Unavailable
from milecastle.stores.postgres.address import Address, parse
from milecastle.stores.postgres.statements import compose, file_text, migrations
from milecastle.stores.postgres.translating import translate

__all__ = ["LATEST", "check_server", "connect", "migrate", "script", "update", "version_of"]

LATEST = migrations()[-1][0]
"""The version that this library reads and writes."""

Connection = psycopg.Connection


def migrate(url: str, *, print_only: bool = False) -> str:
    """Bring the schema of a URL up to date and return the SQL that did; "" if nothing was missing.

    With ``print_only`` nothing is changed: the SQL is for somebody else to run.
    """
    address = parse(url)
    with connect(address) as connection:
        if print_only:
            version = version_of(connection, address.schema)
            return script(address.schema, above=version) if version < LATEST else ""
        return update(connection, address.schema)


def script(schema: str, *, above: int = 0) -> str:
    """The SQL that takes a schema from a version to the latest, as one transaction."""
    return f"BEGIN;\n{_body(schema, above)}COMMIT;\n"


def update(connection: Connection, schema: str) -> str:
    """Apply what is missing, in one transaction under a lock; what was applied."""
    try:
        with connection.transaction():
            connection.execute(compose(file_text("begin_migrating"), schema=schema))
            version = version_of(connection, schema)
            if version == LATEST:
                return ""
            connection.execute(_steps(schema, version).encode())
    except psycopg.Error as error:
        raise translate(error) from error
    return script(schema, above=version)


def version_of(connection: Connection, schema: str) -> int:
    """The version of a schema, 0 if it has none; one above ours is refused."""
    found = connection.execute(file_text("server").encode(), {"name": schema}).fetchone()
    if found is None or not found[3]:
        return 0
    row = connection.execute(compose(file_text("version"), schema=schema)).fetchone()
    version = int(row[0]) if row else 0
    if version > LATEST:
        raise FormatTooNew(found=version, supported=LATEST, place=f"schema '{schema}'")
    return version


def check_server(connection: Connection, address: Address) -> None:
    """Refuse a server that cannot keep what is written."""
    found = connection.execute(file_text("server").encode(), {"name": address.schema}).fetchone()
    encoding, synchronous, fsync, _ = found or ("", "", "", False)
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


def connect(address: Address) -> Connection:
    """One connection outside the pool, to look at the server and to migrate."""
    try:
        return psycopg.connect(**address.connect, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        said = address.masked(str(error)).partition("\n")[0]
    # Raised out here, it does not carry along the driver's error, which may quote the URL.
    raise Unavailable(f"PostgreSQL could not be reached: {said}")


def _body(schema: str, above: int) -> str:
    return compose(file_text("begin_migrating"), schema=schema).decode() + _steps(schema, above)


def _steps(schema: str, above: int) -> str:
    note = "INSERT INTO {schema}.migrations (version) VALUES (%d);\n"
    texts = [text + note % version for version, text in migrations() if version > above]
    return "".join(compose(text, schema=schema).decode() for text in texts)
