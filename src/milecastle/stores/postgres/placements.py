"""A database's shards, if it is one of several behind one map.

Rules:

- A database belongs to one map or to none, and knows its own name there. Only ``milecastle shards
  init`` writes that, never an opened store: no empty database joins by a changed URL.
- Each shard is 'here' in one database of the map at most. Every statement that writes compares the
  row of its shard, and holds it until it has committed. If two say so, one was restored from a
  backup that is older than a move: the one with the lower version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from psycopg import sql

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.stores.postgres.migrating import Connection
from milecastle.stores.postgres.statements import compose, file_text
from milecastle.support.printable import quoted

_BATCH = 1000


class Placement(msgspec.Struct, frozen=True):
    """A database's state for a shard: ``here``, ``arriving`` or ``moved``.

    ``move`` is the last move it took part in, ``destination`` where one goes. Each move
    has a higher ``version`` than the shard's moves before.
    """

    shard: int
    state: str
    move: int | None
    destination: str | None
    version: int


class Membership(msgspec.Struct, frozen=True):
    """The map a database belongs to: its id and version, and the database's name in it.

    ``is_complete``: every database of the map was initialised.
    """

    id: str
    name: str
    version: int
    is_complete: bool


def membership_of(connection: Connection, schema: str) -> Membership | None:
    row = connection.execute(compose(file_text("membership"), schema=schema)).fetchone()
    return None if row is None else Membership(*row)


def placements_of(connection: Connection, schema: str) -> dict[int, Placement]:
    found = connection.execute(compose(file_text("placements"), schema=schema)).fetchall()
    return {row[0]: Placement(*row) for row in found}


def shards_here(connection: Connection, schema: str) -> frozenset[int]:
    found = placements_of(connection, schema).values()
    return frozenset(one.shard for one in found if one.state == "here")


def _number_shards(connection: Connection, schema: str) -> Mapping[int, str]:
    listed = compose(file_text("unnumbered"), schema=schema)
    note = compose(file_text("number"), schema=schema)
    while found := connection.execute(listed, {"limit": _BATCH}).fetchall():
        tenants, threads = zip(*found, strict=True)
        shards = [ThreadKey(*key).shard for key in found]
        connection.execute(
            note, {"tenants": list(tenants), "threads": list(threads), "shards": shards}
        )
    rows = connection.execute(compose(file_text("numbered"), schema=schema)).fetchall()
    return dict(rows)


def join(connection: Connection, schema: str, member: Membership, shards: Sequence[int]) -> None:
    with connection.transaction():
        connection.execute(compose(file_text("join"), schema=schema))
        found = _number_shards(connection, schema)
        for shard in sorted(found.keys() - set(shards)):
            raise InvalidRequest(
                f"database '{member.name}' has threads of shard {shard}, which the map gives to "
                f"another database (one is {quoted(found[shard])}): give it all shards, and move "
                "them then"
            )
        connection.execute(compose(file_text("require_shards"), schema=schema))
        connection.execute(
            compose(file_text("place"), schema=schema),
            {**msgspec.structs.asdict(member), "shards": list(shards)},
        )


def complete(connection: Connection, schema: str) -> None:
    connection.execute(
        sql.SQL("UPDATE {} SET is_complete = true").format(sql.Identifier(schema, "membership"))
    )
