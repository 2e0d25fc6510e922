"""A map's databases, without opening the store: migrating, checking and initialising them.

``initialise`` writes into each database which map it belongs to and which shards it has. Nothing
else does, and an opened store compares it: a database at a changed URL does not join by
itself. It may be run again: if it was interrupted, it does the rest; in a map in use it
adds databases with no shards yet, and no others.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import msgspec.structs

from milecastle.errors import StoreError, Unavailable
from milecastle.ports.maintenance import Check, CheckVerdict, Pending
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.migrating import (
    LATEST,
    Connection,
    PostgresServer,
    check_server,
    connect,
    update,
)
from milecastle.stores.postgres.placements import (
    Membership,
    complete,
    join,
    membership_of,
    shards_here,
)
from milecastle.stores.postgres.statements import compose, file_text
from milecastle.stores.sharded.map import ShardMap

_VERDICTS: Sequence[CheckVerdict] = ("ok", "warning", "failed")


@contextmanager
def connected(name: str, url: str) -> Generator[Connection]:
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(connect(parse(url)))
        except Unavailable as error:
            raise Unavailable(f"database '{name}' of the map: {error.message}") from error
        yield connection


class MapServers:
    def __init__(self, shards: ShardMap) -> None:
        self.map = shards
        self._servers = {name: PostgresServer(url) for name, url in sorted(shards.urls.items())}

    def pending_migrations(self) -> Pending:
        found = {name: server.pending_migrations() for name, server in self._servers.items()}
        sql = [f"-- database {name}\n{one.sql}" for name, one in found.items() if one.sql]
        lowest = min(one.version for one in found.values())
        return Pending(version=lowest, latest=LATEST, sql="".join(sql))

    def migrate(self) -> str:
        done = {name: server.migrate() for name, server in self._servers.items()}
        return "".join(f"-- database {name}\n{sql}" for name, sql in done.items() if sql)

    def examine(self) -> tuple[Check, ...]:
        checks: dict[str, list[tuple[str, Check]]] = {}
        for name, server in self._servers.items():
            for check in server.examine():
                checks.setdefault(check.name, []).append((name, check))
        return tuple(_together(each) for each in checks.values())


def _together(each: Sequence[tuple[str, Check]]) -> Check:
    worst = max((check for _, check in each), key=lambda check: _VERDICTS.index(check.verdict))
    found = "; ".join(f"{name}: {check.found}" for name, check in each)
    return msgspec.structs.replace(worst, found=found)


def initialise(shards: ShardMap) -> Sequence[str]:
    """Write a map's placements into its databases; return the written ones' names."""
    found = {name: _prepared(shards, name) for name in shards.urls}
    known = {name: member for name, member in found.items() if member is not None}
    ids = {member.id for member in known.values()} or {str(uuid4())}
    if len(ids) > 1:
        raise StoreError(
            f"the databases of {shards.file} belong to {len(ids)} different maps: check their URLs"
        )
    in_use = any(member.is_complete for member in known.values())
    missing = [name for name in shards.urls if name not in known]
    for name in missing:
        if in_use and shards.shards_of(name):
            raise StoreError(
                f"database '{name}' belongs to no map, but the map is in use and gives it shards: "
                "its URL names another database than before. A database that is added has no "
                "shards at first"
            )
    (id,) = ids
    for name in missing:
        _join(shards, name, Membership(id, name, shards.version, False))
        if known:
            _copy_limits(shards, min(known), name)
    for name in shards.urls:
        _complete(shards, name)
    return missing


def _prepared(shards: ShardMap, name: str) -> Membership | None:
    address = parse(shards.urls[name])
    with connected(name, shards.urls[name]) as connection:
        check_server(connection, address)
        update(connection, address.schema)
        member = membership_of(connection, address.schema)
        if member is None:
            return None
        if member.name != name:
            raise StoreError(f"database '{name}' is '{member.name}' of a map: check its URL")
        is_newer = member.version > shards.version  # shards were moved since
        if not is_newer and shards_here(connection, address.schema) != shards.shards_of(name):
            raise StoreError(
                f"database '{name}' has other shards than {shards.file} says: take the file that "
                "it was initialised with"
            )
        return member


def _join(shards: ShardMap, name: str, member: Membership) -> None:
    address = parse(shards.urls[name])
    with connected(name, shards.urls[name]) as connection:
        join(connection, address.schema, member, sorted(shards.shards_of(name)))


def _copy_limits(shards: ShardMap, known: str, name: str) -> None:
    here, there = parse(shards.urls[known]), parse(shards.urls[name])
    with connected(known, shards.urls[known]) as old, connected(name, shards.urls[name]) as new:
        for row in old.execute(compose(file_text("all_limits"), schema=here.schema)).fetchall():
            new.execute(compose(file_text("add_limit"), schema=there.schema), row)


def _complete(shards: ShardMap, name: str) -> None:
    address = parse(shards.urls[name])
    with connected(name, shards.urls[name]) as connection:
        complete(connection, address.schema)
