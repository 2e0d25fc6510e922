"""Moving a shard to another database while its threads run.

There is one commit point, at the source. Rules:

- A move has a number, drawn by chance. The source, which has the shard ('here'), notes the number;
  while its row is locked for that, the destination notes the same number ('arriving'), if it says
  what it said before. So a later move ends an earlier one at both, and no earlier one comes late.
- Rows are written to, and deleted from, the destination only in transactions that hold its row and
  find the number of the move there. What an earlier move left behind is deleted first.
- The switch is one transaction at the source. It locks the row, which waits for writers under way
  and lets new ones wait, copies what is still missing, finds 'arriving' with its number at the
  destination, and sets 'moved'. Until it commits, nothing has happened; if the mover dies, the
  server ends the transaction and the source serves on.
- Whoever has seen 'moved' with a number may turn 'arriving' with that number into 'here'.
- Deleting at the source comes last, in transactions that find 'moved' with the number of the move.

What is copied again: threads of which the source has written a row since a moment before they were
read, by the transaction ids of their rows; and threads of which source and destination have another
number of rows, because rows were deleted. At the switch nobody writes, so that nothing is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from secrets import randbelow
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors, sql

from milecastle.errors import InvalidRequest, StoreError, Unavailable
from milecastle.model.keys import SHARDS
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.migrating import LATEST, Connection, version_of
from milecastle.stores.postgres.placements import Placement, placements_of
from milecastle.stores.postgres.statements import compose, file_text
from milecastle.stores.sharded.joining import entered
from milecastle.stores.sharded.map import ShardMap

__all__ = ["MoveStep", "PlannedMove", "Superseded", "move_shard", "plan_moves"]

_TABLES = ("entries", "runs", "results", "threads", "inputs", "tags")
_WITHOUT_SHARD = ("inputs", "tags")
_PAGE = 100
_FEW = 20
"""How many threads a switch copies while writers wait; if there are more, they come first."""
_ROUNDS = 20
_ATTEMPTS = 5
_SETTINGS = (
    b"SELECT set_config('lock_timeout', '2s', true), set_config('statement_timeout', '2s', true), "
    b"set_config('idle_in_transaction_session_timeout', '2s', true)"
)
"""Of a switch: a mover that hangs is ended by the server, and writers wait no longer than that."""

MoveStep = Callable[[str], object]
"""Is told which step of a move comes next."""
_Thread = tuple[str, str]
T = TypeVar("T")


class Superseded(StoreError):
    """Another move of the same shard has begun, and this one has ended."""


class _Side:
    """A database that takes part in a move."""

    def __init__(self, name: str, url: str, connection: Connection) -> None:
        self.name = name
        self.schema = parse(url).schema
        self.connection = connection

    def run(self, file: str, **given: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(compose(file_text(file), schema=self.schema), given)
        return cursor.fetchall() if cursor.description else []

    def placement(self, shard: int) -> Placement | None:
        return placements_of(self.connection, self.schema).get(shard)


def move_shard(shards: ShardMap, shard: int, to: str, step: MoveStep = lambda name: None) -> bool:
    """Move a shard to the database of this name; ``False`` if it is there already.

    Run again after it was interrupted, it completes what was made, or begins anew.
    """
    if to not in shards.urls:
        raise InvalidRequest(f"'{to}' is not a database of {shards.file}")
    if not 0 <= shard < SHARDS:
        raise InvalidRequest(f"there is no shard {shard}: they are 0 to {SHARDS - 1}")
    with ExitStack() as stack:
        sides = {
            name: _Side(name, url, entered(stack, name, url)) for name, url in shards.urls.items()
        }
        return _Move(sides, shard, to, step).run()


class _Move:
    def __init__(self, sides: dict[str, _Side], shard: int, to: str, step: MoveStep) -> None:
        self._sides = sides
        self._shard = shard
        self._target = sides[to]
        self._step = step
        self._number = 1 + randbelow(2**62)
        self._since = "0"

    def run(self) -> bool:
        """Move, and clean up; also what an earlier move left to be done."""
        source = self._source()
        is_moved = source is not self._target
        if is_moved:
            self._begin(source)
            self._delete(self._target, "arriving")
            self._copy(source)
            self._switch(source)
            self._step("promote")
            self._target.run("promote", shard=self._shard, move=self._number)
        self._clean()
        return is_moved

    def _source(self) -> _Side:
        """The database that has the shard; a switch that was made is completed."""
        places = {name: side.placement(self._shard) for name, side in self._sides.items()}
        for name, place in places.items():
            if place is not None and place.state == "here":
                return self._sides[name]
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
        """Note the move at both ends; the source is locked until the destination has."""
        self._step("begin")
        before = self._target.placement(self._shard)
        with source.connection.transaction():
            to = self._target.name
            found = source.run("move_begin", shard=self._shard, move=self._number, to=to)
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

    def _superseded(self) -> Superseded:
        return Superseded(
            f"shard {self._shard} is being moved by somebody else: run milecastle shards move "
            "again when that is over"
        )

    def _held(self, side: _Side, state: str) -> None:
        """In a transaction: nobody else moves the shard until its end."""
        if not side.run("move_hold", shard=self._shard, state=state, move=self._number):
            raise self._superseded()

    def _delete(self, side: _Side, state: str) -> None:
        """Delete the shard's threads, where they are left over."""
        found = side.run("move_threads", shard=self._shard)
        for page in _paged(found):
            self._step(f"delete {state}")
            with side.connection.transaction():
                self._held(side, state)
                self._remove(side, page)

    def _remove(self, side: _Side, page: Sequence[_Thread]) -> None:
        tenants, threads = zip(*page, strict=True)
        given = {"tenants": list(tenants), "threads": list(threads)}
        side.run("move_remove", shard=self._shard, **given)

    def _copy(self, source: _Side) -> None:
        """Copy everything, then what has changed meanwhile, until that is little."""
        since = _moment(source)
        self._copy_threads(source, source.run("move_threads", shard=self._shard))
        for _ in range(_ROUNDS):
            self._since, last = _moment(source), since
            changed = self._changed(source, last)
            self._copy_threads(source, sorted(changed))
            since = self._since
            if len(changed) <= _FEW:
                return

    def _changed(self, source: _Side, since: str) -> set[_Thread]:
        """The threads that may differ at the destination."""
        written = source.run("move_changed", shard=self._shard, since=since)
        here, there = (
            {row[:2]: row[2:] for row in side.run("move_counts", shard=self._shard)}
            for side in (source, self._target)
        )
        other = {
            thread for thread in here.keys() | there.keys() if here.get(thread) != there.get(thread)
        }
        return {(tenant, thread) for tenant, thread in written} | other

    def _copy_threads(
        self, source: _Side, threads: Iterable[_Thread], *, locked: bool = False
    ) -> None:
        """Put what the source has of these threads in the place of what the destination has.

        Unless the shard is ``locked``, a page is read as of one moment.
        """
        for page in _paged(list(threads)):
            self._step("copy")
            with self._target.connection.transaction():
                self._held(self._target, "arriving")
                self._remove(self._target, page)
                if locked:
                    self._copy_page(source, page)
                    continue
                with source.connection.transaction():
                    source.connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    self._copy_page(source, page)

    def _copy_page(self, source: _Side, page: Sequence[_Thread]) -> None:
        tenants, threads = (list(names) for names in zip(*page, strict=True))
        asked = {"tenants": tenants, "threads": threads, "shard": self._shard}
        for table in _TABLES:
            found = source.run("move_columns", schema=source.schema, table=table)
            columns = sql.SQL(", ").join(sql.Identifier(name) for (name,) in found)
            file = "move_copy" if table in _WITHOUT_SHARD else "move_copy_shard"
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
        for tenant, fingerprint, body in source.run("move_manifests", tenants=sorted(set(tenants))):
            given = {"tenant": tenant, "fingerprint": fingerprint, "manifest": body}
            self._target.run("move_keep_manifest", **given)

    def _switch(self, source: _Side) -> None:
        """Copy the rest while writers wait, and let the source say that the shard has moved."""
        for _ in range(_ATTEMPTS):
            try:
                if self._switched(source):
                    return
            except (errors.LockNotAvailable, errors.QueryCanceled):
                pass
            except errors.IdleInTransactionSessionTimeout:
                raise Unavailable(
                    f"shard {self._shard} was not moved: this process stood still while writers "
                    "waited for it; try again"
                ) from None
            self._copy(source)
        raise Unavailable(
            f"shard {self._shard} could not be moved: its threads change faster than they can be "
            "copied, or a transaction holds one for seconds; try again"
        )

    def _switched(self, source: _Side) -> bool:
        self._step("lock")
        with source.connection.transaction():
            source.connection.execute(b"SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            source.connection.execute(_SETTINGS)
            if not source.run("move_lock", shard=self._shard, move=self._number):
                raise self._superseded()
            self._step("locked")
            changed = self._changed(source, self._since)
            if len(changed) > _FEW:
                return False
            self._copy_threads(source, sorted(changed), locked=True)
            self._number_inputs()
            source.run("move_switch", shard=self._shard, move=self._number)
            self._step("switch")
        return True

    def _number_inputs(self) -> None:
        """Let inputs that are enqueued at the destination come behind those that were moved."""
        schema = self._target.schema
        with self._target.connection.transaction():
            self._held(self._target, "arriving")
            if self._target.run("move_is_behind", name=schema)[0][0]:
                known = sql.Identifier(schema)
                number = _composed("move_number", schema=known, name=sql.Literal(schema))
                self._target.connection.execute(number)

    def _clean(self) -> None:
        """Delete what is left over where the shard has moved away."""
        for side in self._sides.values():
            place = side.placement(self._shard)
            if place is None or place.state != "moved" or place.move is None:
                continue
            self._number = place.move
            self._delete(side, "moved")
            self._step("clean")
            side.run("move_clean", shard=self._shard, move=place.move)


def _moment(source: _Side) -> str:
    """Before it, everything that is visible was written."""
    row = source.connection.execute(
        b"SELECT pg_snapshot_xmin(pg_current_snapshot())::xid::text"
    ).fetchone()
    return str(row[0]) if row else "0"


def _paged(threads: Sequence[tuple[Any, ...]]) -> Iterable[Sequence[_Thread]]:
    return (
        [(row[0], row[1]) for row in threads[first : first + _PAGE]]
        for first in range(0, len(threads), _PAGE)
    )


def _composed(file: str, **parts: sql.Composable) -> sql.Composed:
    # The text is one of our own files, as in statements.py.
    return sql.SQL(file_text(file)).format(**parts)  # pyright: ignore[reportArgumentType]


class PlannedMove(msgspec.Struct, frozen=True):
    """A move that makes databases more equal: ``entries`` go with it."""

    shard: int
    source: str
    to: str
    entries: int


def plan_moves(shards: ShardMap, most: int = 20) -> list[PlannedMove]:
    """Moves that make the databases of a map about equally large, the largest shards first."""
    sizes: dict[str, dict[int, int]] = {}
    for name, url in shards.urls.items():
        with ExitStack() as stack:
            side = _Side(name, url, entered(stack, name, url))
            if version_of(side.connection, side.schema) < LATEST:
                raise StoreError(f"database '{name}' belongs to no map: run milecastle shards init")
            sizes[name] = {row[0]: row[2] for row in side.run("move_sizes")}
    return _planned(sizes, most)


def _planned(sizes: dict[str, dict[int, int]], most: int) -> list[PlannedMove]:
    totals = {name: sum(own.values()) for name, own in sizes.items()}
    moves: list[PlannedMove] = []
    while len(moves) < most:
        source, to = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
        gap = totals[source] - totals[to]
        fitting = {shard: size for shard, size in sizes[source].items() if 0 < size <= gap // 2}
        if not fitting:
            break
        shard = max(fitting, key=fitting.__getitem__)
        size = sizes[source].pop(shard)
        sizes[to][shard] = size
        totals[source], totals[to] = totals[source] - size, totals[to] + size
        moves.append(PlannedMove(shard, source, to, size))
    return moves
