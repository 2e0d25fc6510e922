"""Moving a shard to another database while its threads run.

There is one commit point, at the source. Rules:

- A move has a number, drawn by chance. The source, which has the shard ('here'), notes the number;
  while its row is locked for that, the destination notes the same number ('arriving'), if its state
  has not changed. So a later move ends an earlier one at both, and no earlier one comes late.
- Rows are written to, and deleted from, the destination only in transactions holding its row and
  find the move's number there. An earlier move's leftovers are deleted first.
- The switch is one transaction at the source. It locks the row, which waits for writers under way
  and lets new ones wait, copies the rest, finds 'arriving' with its number at the destination, and
  sets 'moved'. Until it commits, nothing has happened; if the mover dies, the server ends the
  transaction and the source serves on.
- Whoever has seen 'moved' with a number may turn 'arriving' with that number into 'here'.
- Deleting at the source comes last, in transactions finding 'moved' with the move's number.
- While writers wait, no statement may take longer than ``_PATIENCE``, nor all of them together, nor
  may the mover be silent for longer: then the switch is undone, and tried again.
- A move's commits are on disk before the next step, whatever the server is set to.

Copied again: threads whose newest entry, index row or results the source has written since a moment
before they were read, by the rows' transaction ids. Whatever else changes a thread writes its
line as well; if that was not written, only new entries are copied. At the switch nobody
writes, so nothing is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from secrets import randbelow
from time import monotonic
from typing import Any

import psycopg
from psycopg import errors, sql

from milecastle.errors import InvalidRequest, StoreError, Unavailable
from milecastle.model.keys import SHARDS
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.migrating import LATEST, Connection, check_server, version_of
from milecastle.stores.postgres.placements import Placement, membership_of, placements_of
from milecastle.stores.postgres.security import check_protection
from milecastle.stores.postgres.statements import compose, file_text
from milecastle.stores.sharded.joining import connected
from milecastle.stores.sharded.map import ShardMap

_TABLES = {
    "entries": "move_copy_entries",
    "runs": "move_copy_shard",
    "results": "move_copy_shard",
    "threads": "move_copy_shard",
    "tags": "move_copy",
    "mailbox": "move_copy",
}
"""Of a thread, and the files of the statements that copy them."""
_PAGE = 100
_FEW = 20
"""How many threads a switch copies while writers wait; if there are more, they come first."""
_ROUNDS = 20
_ATTEMPTS = 10
_PATIENCE = 0.6
"""For how many seconds writers wait for a switch. A statement that began in time may take as long,
and then the server a little longer to notice a mover that stopped: two seconds at most."""
_DURABLE = b"SELECT set_config('synchronous_commit', 'on', true)"
_BRIEF = (
    b"SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', '500ms', "
    b"true), set_config('statement_timeout', '600ms', true), "
    b"set_config('idle_in_transaction_session_timeout', '700ms', true)"
)
"""Of transactions that others wait for: the server ends a mover that hangs."""
_WAITED = (errors.LockNotAvailable, errors.QueryCanceled)

MoveStep = Callable[[str], object]
"""Is told which step of a move comes next."""
_Page = Mapping[str, list[Any]]
"""Some threads: tenants, names, and whether they are taken as a whole."""


class Superseded(StoreError):
    pass


class _Slow(Exception):
    pass


class _Side:
    def __init__(self, name: str, url: str, connection: Connection) -> None:
        self.name = name
        self.address = parse(url)
        self.schema = self.address.schema
        self.connection = connection

    def check(self) -> str:
        check_server(self.connection, self.address)
        member = None
        if version_of(self.connection, self.schema) == LATEST:
            member = membership_of(self.connection, self.schema)
        if member is None:
            raise StoreError(
                f"database '{self.name}' belongs to no map: run milecastle shards init"
            )
        if member.name != self.name or not member.is_complete:
            raise StoreError(
                f"database '{self.name}' is '{member.name}' of a map, or shards init was not "
                "completed there: check its URL, and run milecastle shards init"
            )
        check_protection(self.connection, self.schema, wanted=False)
        return member.id

    def run(self, file: str, **given: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(compose(file_text(file), schema=self.schema), given)
        return cursor.fetchall() if cursor.description else []

    def placement(self, shard: int) -> Placement | None:
        return placements_of(self.connection, self.schema).get(shard)


def move_shard(shards: ShardMap, shard: int, to: str, step: MoveStep = lambda name: None) -> bool:
    """Move a shard to the database with this name; ``False`` if it is there already.

    Run again after an interruption, it completes the move, or begins again. A shard that is
    there already stays: a move to elsewhere is ended, and its copy deleted.
    """
    if to not in shards.urls:
        raise InvalidRequest(f"'{to}' is not a database of {shards.file}")
    if not 0 <= shard < SHARDS:
        raise InvalidRequest(f"there is no shard {shard}: they are 0 to {SHARDS - 1}")
    with ExitStack() as stack:
        return _Move(_sides(stack, shards), shard, to, step).run()


def _sides(stack: ExitStack, shards: ShardMap) -> Mapping[str, _Side]:
    sides = {
        name: _Side(name, url, stack.enter_context(connected(name, url)))
        for name, url in shards.urls.items()
    }
    if len({side.check() for side in sides.values()}) > 1:
        raise StoreError(f"the databases of {shards.file} belong to different maps: check the URLs")
    return sides


class _Move:
    def __init__(self, sides: Mapping[str, _Side], shard: int, to: str, step: MoveStep) -> None:
        self._sides = sides
        self._shard = shard
        self._target = sides[to]
        self._step = step
        self._number = 1 + randbelow(2**62)
        self._since = "0"
        self._until: float | None = None
        self._columns: dict[str, sql.Composed] = {}

    def run(self) -> bool:
        source = self._source()
        is_moved = source is not self._target
        if is_moved:
            self._begin(source)
            self._delete(self._target, "arriving")
            self._copy(source)
            self._switch(source)
            self._step("promote")
            self._target.run("promote", shard=self._shard, move=self._number)
        elif not self._noted(source):
            raise self._superseded()
        with suppress(Superseded):  # what is left over is the next move's
            self._clean()
        return is_moved

    def _source(self) -> _Side:
        places = {name: side.placement(self._shard) for name, side in self._sides.items()}
        here = [name for name, place in places.items() if place and place.state == "here"]
        if len(here) > 1:
            raise StoreError(
                f"databases {' and '.join(here)} both have shard {self._shard}: one of them was "
                "restored to a time before a move; its copy is older"
            )
        if here:
            return self._sides[here[0]]
        for place in places.values():
            if place is None or place.state != "moved" or place.destination not in places:
                continue
            arrived = places[place.destination]
            if arrived is not None and (arrived.state, arrived.move) == ("arriving", place.move):
                target = self._sides[place.destination]
                target.run("promote", shard=self._shard, move=place.move)
                return target
        raise StoreError(f"no database of the map has shard {self._shard}: is one missing in it?")

    def _begin(self, source: _Side) -> None:
        self._step("begin")
        before = self._target.placement(self._shard)
        with source.connection.transaction():
            source.connection.execute(_DURABLE)
            found = self._noted(source)
            self._step("expect")
            expected = found and self._target.run(
                "move_expect",
                shard=self._shard,
                move=self._number,
                version=found[0][0] + 1,
                state=before.state if before else "",
                before=before.move if before else None,
            )
            if not expected:
                raise self._superseded()
            self._step("noted")

    def _noted(self, source: _Side) -> Sequence[tuple[Any, ...]]:
        to = self._target.name
        return source.run("move_begin", shard=self._shard, move=self._number, to=to)

    def _superseded(self) -> Superseded:
        return Superseded(
            f"shard {self._shard} is being moved by somebody else: run milecastle shards move "
            "again when that is over"
        )

    @contextmanager
    def _holding(self, side: _Side, state: str) -> Generator[None]:
        with side.connection.transaction():
            side.connection.execute(_DURABLE if self._until is None else _BRIEF)
            self._check_time()
            if not side.run("move_hold", shard=self._shard, state=state, move=self._number):
                raise self._superseded()
            yield

    def _check_time(self) -> None:
        if self._until is not None and monotonic() > self._until:
            raise _Slow

    def _delete(self, side: _Side, state: str) -> None:
        found = side.run("move_threads", shard=self._shard)
        for page in _paged(found):
            self._step(f"delete {state}")
            with self._holding(side, state):
                self._remove(side, page)

    def _remove(self, side: _Side, page: _Page) -> list[int]:
        return [after for (after,) in side.run("move_remove", shard=self._shard, **page)]

    def _copy(self, source: _Side) -> None:
        self._since = _moment(source)
        self._copy_threads(source, source.run("move_threads", shard=self._shard))
        self._catch_up(source)

    def _catch_up(self, source: _Side) -> None:
        for _ in range(_ROUNDS):
            since, self._since = self._since, _moment(source)
            changed = self._changed(source, since)
            self._copy_threads(source, changed)
            if len(changed) <= _FEW:
                break

    def _changed(self, source: _Side, since: str) -> Sequence[tuple[Any, ...]]:
        return source.run("move_changed", shard=self._shard, since=since)

    def _copy_threads(self, source: _Side, threads: Sequence[tuple[Any, ...]]) -> None:
        """Replace these threads at the destination by the source's.

        Unless writers wait, a page is read at one moment.
        """
        for page in _paged(threads):
            self._step("copy")
            with self._holding(self._target, "arriving"):
                asked = {**page, "after": self._remove(self._target, page)}
                if self._until is not None:
                    self._copy_page(source, asked)
                    continue
                with source.connection.transaction():
                    source.connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    self._copy_page(source, asked)

    def _copy_page(self, source: _Side, page: _Page) -> None:
        asked = {"shard": self._shard, **page}
        for table, file in _TABLES.items():
            self._check_time()
            columns = self._columns_of(source, table)
            read = _composed(file, columns=columns, table=sql.Identifier(source.schema, table))
            write = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
                sql.Identifier(self._target.schema, table), columns
            )
            with (
                psycopg.ClientCursor(source.connection) as reading,
                self._target.connection.cursor() as writing,
                reading.copy(read, asked) as rows,
                writing.copy(write) as copied,
            ):
                for data in rows:
                    copied.write(data)
        self._copy_manifests(source, sorted(set(page["tenants"])))

    def _columns_of(self, source: _Side, table: str) -> sql.Composed:
        if table not in self._columns:
            found = source.run("move_columns", schema=source.schema, table=table)
            names = (sql.Identifier(name) for (name,) in found)
            self._columns[table] = sql.SQL(", ").join(names)
        return self._columns[table]

    def _copy_manifests(self, source: _Side, tenants: Sequence[str]) -> None:
        self._check_time()
        known = self._target.run("move_known_manifests", tenants=tenants)
        of, fingerprints = [list(each) for each in zip(*known, strict=True)] or ([], [])
        given = {"of": of, "fingerprints": fingerprints}
        missing = source.run("move_manifests", tenants=tenants, **given)
        if missing:
            names = ("tenants", "fingerprints", "manifests")
            columns = [list(each) for each in zip(*missing, strict=True)]
            self._target.run("move_keep_manifests", **dict(zip(names, columns, strict=True)))

    def _switch(self, source: _Side) -> None:
        for _ in range(_ATTEMPTS):
            try:
                if self._switched(source):
                    return
            except (*_WAITED, _Slow):
                pass
            except errors.IdleInTransactionSessionTimeout:
                raise Unavailable(
                    f"shard {self._shard} was not moved: this process stood still while writers "
                    "waited for it; try again"
                ) from None
            finally:
                self._until = None
            self._catch_up(source)
        raise Unavailable(
            f"shard {self._shard} could not be moved: its threads change faster than they can be "
            "copied, or a transaction holds one for seconds; try again"
        )

    def _switched(self, source: _Side) -> bool:
        self._step("lock")
        with source.connection.transaction():
            source.connection.execute(b"SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            source.connection.execute(_BRIEF)
            if not source.run("move_lock", shard=self._shard, move=self._number):
                raise self._superseded()
            self._until = monotonic() + _PATIENCE
            self._step("locked")
            changed = self._changed(source, self._since)
            if len(changed) > _FEW:
                return False
            self._copy_threads(source, changed)
            with self._holding(self._target, "arriving"):
                self._check_time()
            source.run("move_switch", shard=self._shard, move=self._number)
            self._step("switch")
        return True

    def _clean(self) -> None:
        for side in self._sides.values():
            place = side.placement(self._shard)
            if place is None or place.move is None or place.state == "here":
                continue
            if place.state == "arriving" and not self._ended(side, place.move):
                continue
            self._number = place.move
            self._delete(side, "moved")
            self._step("clean")
            side.run("move_clean", shard=self._shard, move=place.move)

    def _ended(self, side: _Side, move: int) -> bool:
        """End a move to this database, unless it is the last one the source has noted.

        The source is locked meanwhile: it cannot switch, and never will by that move.
        """
        for other in self._sides.values():
            with other.connection.transaction():
                noted = other.run("move_noted", shard=self._shard)
                if noted:
                    return noted[0][0] != move and bool(
                        side.run("move_end", shard=self._shard, move=move)
                    )
        return False


def _moment(source: _Side) -> str:
    row = source.connection.execute(
        b"SELECT pg_snapshot_xmin(pg_current_snapshot())::xid::text"
    ).fetchone()
    return str(row[0]) if row else "0"


def _paged(threads: Sequence[tuple[Any, ...]]) -> Iterable[_Page]:
    for first in range(0, len(threads), _PAGE):
        columns = zip(*threads[first : first + _PAGE], strict=True)
        yield dict(zip(("tenants", "threads", "whole"), map(list, columns), strict=True))


def _composed(file: str, **parts: sql.Composable) -> sql.Composed:
    # The text is one of our own files, as in statements.py.
    return sql.SQL(file_text(file)).format(**parts)  # pyright: ignore[reportArgumentType]
