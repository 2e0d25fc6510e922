"""A store's address: a PostgreSQL URL with our own options.

``postgresql://user@host/db?schema=milecastle&prepare=off``. All other options are PostgreSQL's:
several hosts, TLS, timeouts. Unless the URL says otherwise, connections go to a server that accepts
writes, and detect a dead server.

No error repeats a URL or a part of it: where it is malformed, any part may be the password.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
import msgspec.structs
import psycopg
from psycopg.conninfo import conninfo_to_dict

from milecastle.errors import InvalidRequest

_LONGEST_NAME = 63
_SIDE_BY_SIDE = 4
"""Up to this many commits on separate connections are at least as fast as a group commit."""
_TOLD = ("host", "port", "user", "dbname")
_FORM = (
    "write postgresql://user:password@host:port/database?option=value, and escape "
    "% as %25, @ as %40, : as %3A, / as %2F, ? as %3F, [ as %5B"
)
_PATIENCE = 5.0
"""How many seconds a read waits for a replica, before the primary is read."""
_DEFAULTS: dict[str, Any] = {
    "application_name": "milecastle",
    "client_encoding": "UTF8",
    "connect_timeout": 10,
    "target_session_attrs": "read-write",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL. ``connect`` is psycopg's connection string.

    ``schema``: where the tables are. ``prepare``: whether statements are prepared on the server;
    off for a pooler without support for them. ``rls``: whether row-level security isolates tenants.
    ``migrate``: whether opening migrates the schema. ``min_size`` and ``max_size``: the number of
    connections; ``ctx.transaction`` needs two. ``timeout``: how many seconds a call waits for a
    server to be back. ``synchronous_commit``: ``off`` accepts a server losing commits when it
    crashes. ``replica``: a standby for display.
    """

    connect: dict[str, Any]
    schema: str = "milecastle"
    prepare: bool = True
    rls: bool = False
    migrate: bool = True
    min_size: int = 1
    max_size: int = 10
    timeout: float = 30.0
    synchronous_commit: bool = True
    replica: ServerAddress | None = None

    @property
    def writers(self) -> int:
        return min(_SIDE_BY_SIDE, self.max_size)

    def masked(self, said: str) -> str:
        """Libpq's message without the URL's parts, except host names."""
        for name, value in self.connect.items():
            if isinstance(value, str) and name not in _TOLD:
                said = said.replace(f'"{value}"', '"..."').replace(repr(value), "'...'")
        return said


def parse(url: str) -> ServerAddress:
    start, _, query = url.partition("?")
    options: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _READERS or name == "replica":
            options[name] = value
        else:
            rest.append((name, value))
    given = _given(start, rest)
    if given is None:
        raise InvalidRequest(
            "this is not a PostgreSQL URL, or it has an option unknown to PostgreSQL and "
            f"milecastle ({', '.join(_READERS)}, replica): {_FORM}"
        )
    standby = options.pop("replica", None)
    read = {name: _READERS[name](name, value) for name, value in options.items()}
    address = ServerAddress(connect={**_DEFAULTS, **given}, **read)
    if not 1 <= address.min_size <= address.max_size:
        raise InvalidRequest("min_size must be at least 1 and at most max_size")
    return address if standby is None else _with_replica(address, standby)


def _with_replica(address: ServerAddress, url: str) -> ServerAddress:
    start, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    is_url = start.startswith(("postgresql://", "postgres://"))
    given = _given(start, options) if is_url else None
    if given is None:
        raise InvalidRequest(
            "replica= is not a PostgreSQL URL, or it has an option unknown to PostgreSQL (schema "
            f"and the others of milecastle are the store's): {_FORM}, and & as %26"
        )
    connect = {**_DEFAULTS, "connect_timeout": 3, "target_session_attrs": "prefer-standby", **given}
    timeout = min(address.timeout, _PATIENCE)
    standby = msgspec.structs.replace(address, connect=connect, timeout=timeout)
    return msgspec.structs.replace(address, replica=standby)


def _given(start: str, options: list[tuple[str, str]]) -> dict[str, Any] | None:
    authority, _, path = start.partition("://")[2].partition("/")
    if "\0" in start or "@" in path or authority.count("@") > 1:
        return None
    try:
        query = "?" + urlencode(options, quote_via=quote) if options else ""
        given = conninfo_to_dict(start + query)
    except (psycopg.ProgrammingError, UnicodeEncodeError):
        return None
    ports = [port for port in str(given.get("port", "")).split(",") if port]
    return given if all(len(port) < 6 and port.isdecimal() for port in ports) else None


def _switch(name: str, value: str) -> bool:
    known = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
    if value.lower() not in known:
        raise InvalidRequest(f"{name} must be on or off")
    return known[value.lower()]


def _count(name: str, value: str) -> int:
    if not value.isdecimal():
        raise InvalidRequest(f"{name} must be a whole number")
    return int(value)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InvalidRequest(f"{name} must be a number of seconds")
    return seconds


def _identifier(name: str, value: str) -> str:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= _LONGEST_NAME or "\0" in value or value.startswith("pg_"):
        raise InvalidRequest(
            f"{name} must have 1 to {_LONGEST_NAME} bytes and must not begin with 'pg_'"
        )
    return value


_READERS: dict[str, Any] = {
    "schema": _identifier,
    "prepare": _switch,
    "rls": _switch,
    "migrate": _switch,
    "min_size": _count,
    "max_size": _count,
    "timeout": _seconds,
    "synchronous_commit": _switch,
}
