"""A map's databases: each is opened when it can be, and named in its errors.

Rules:

- An unreachable database is tried again by the next call, a second later.
  Every other reason not to open it, such as another map, is an error for the whole store.
- The databases say which one has a shard. This process's knowledge may be old: then it is
  refused, and asks them all. If the database is down, it asks the others.
- If two say they have a shard, the one with the lower version was restored from an old backup.
  It is refused, and with it the whole store: its other losses are unknown.
- Calls that concern all databases but can do without some (heartbeats, claims) ask each on
  its own thread, and do not wait for long. One that has not answered is left out until it has.
- A database that this process does not serve is closed after a while without calls, and opened
  again by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import methodcaller
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Generic, TypeVar

from milecastle.errors import InvalidRequest, MilecastleError, ShardMoved, StoreError, Unavailable
from milecastle.model.keys import SHARDS
from milecastle.stores.postgres.placements import Placement
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.postgres.translating import Unreachable
from milecastle.stores.sharded.map import ShardMap
from milecastle.support.printable import printable, quoted

_log = logging.getLogger("milecastle")

_PATIENCE = 2.0
"""How many seconds a call that concerns all databases waits for them."""

_PAUSES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""How many seconds to wait between looks for a shard that is being moved."""

_PATIENCE_AT_FIRST = 15.0
"""How many seconds to wait for the databases when the store is opened."""

_AGAIN = 1.0
"""For how many seconds a database that could not be reached is not asked again."""

_RESTS_AFTER = 30.0
"""After how many seconds without a call a database that is not served is closed."""

T = TypeVar("T")
Unwanted = Callable[[ShardMember, T], object]
"""Gets an answer that came too late."""


class Database:
    def __init__(self, name: str, url: str, check: Callable[[ShardMember], None]) -> None:
        self.name = name
        self.url = url
        self.late: Thread | None = None
        self._check = check
        self._store: ShardMember | None = None
        self._lock = Lock()
        self._closed = False
        self._unreachable: tuple[float, Unavailable] | None = None
        self._is_down = False
        self._held: set[object] = set()
        self._used = monotonic()

    @property
    def opened(self) -> ShardMember | None:
        return self._store

    def _open(self) -> ShardMember:
        with self._lock:
            self._check_reachable()
            if self._store is not None:
                return self._store
            try:
                store = ShardMember(self.url, self.name)
            except Unavailable as error:
                self._unreachable = monotonic(), error
                raise
            try:
                self._check(store)
            except BaseException:
                store.close()
                raise
            self._store = store
            return store

    @contextmanager
    def held(self) -> Generator[None]:
        """Keep the connections: what is read or heard lasts for longer than a call."""
        mark = object()
        self._held.add(mark)
        try:
            yield
        finally:
            self._used = monotonic()
            self._held.discard(mark)

    def rest(self, forget: Callable[[Database], object]) -> None:
        """Close the connections if nothing has used them for a while; the next call opens it."""
        if self.opened is None or monotonic() - self._used < _RESTS_AFTER:
            return
        with self._lock:
            store, self._store = self._store, None
            # A call marks itself before it looks: it is seen here, or finds nothing and opens.
            if store is not None and (self._held or self._closed):
                self._store = store
            elif store is not None:
                forget(self)
                store.close()

    def call(self, work: Callable[[ShardMember], T]) -> T:
        mark = object()
        self._held.add(mark)
        try:
            if self._unreachable is not None:
                self._check_reachable()
            return work(self._store or self._open())
        except ShardMoved:
            raise
        except Unavailable as error:
            if isinstance(error, Unreachable):
                self._unreachable = monotonic(), error
            raise self.named(error) from error
        finally:
            self._used = monotonic()
            self._held.discard(mark)

    def _check_reachable(self) -> None:
        if self._closed:
            raise Unavailable("the store was closed")
        known = self._unreachable
        if known is not None and monotonic() - known[0] < _AGAIN:
            raise Unavailable(known[1].message)
        self._unreachable = None

    def named(self, error: Unavailable) -> Unavailable:
        return Unavailable(f"database '{self.name}' of the map: {error.message}")

    @property
    def is_late(self) -> bool:
        """True if it has not answered for too long; never after a fork."""
        return self.late is not None and self.late.is_alive()

    def note(self, error: StoreError | None) -> None:
        if error is not None and not self._is_down:
            _log.warning("%s; the others are served", error)
        elif error is None and self._is_down:
            _log.warning("database '%s' of the map is back", self.name)
        self._is_down = error is not None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._unreachable = None  # every call says from now on that it is closed
            if self._store is not None:
                self._store.close()


class _Question(Generic[T]):
    """A call to one database on its own thread. ``unwanted`` gets an answer after ``leave``."""

    def __init__(
        self, database: Database, work: Callable[[ShardMember], T], unwanted: Unwanted[T] | None
    ) -> None:
        self.database = database
        self.answers: list[T] = []
        self.error: BaseException | None = None
        self.is_over = Event()
        self._is_left = False
        self._lock = Lock()
        self._work = work
        self._unwanted = unwanted
        self.thread = Thread(target=self._ask, name="milecastle-shards", daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        try:
            self.answers.append(self.database.call(self._work))
        except BaseException as error:
            self.error = error
        with self._lock:
            self.is_over.set()
            if not self._is_left or self._unwanted is None:
                return
        for answer in self.answers:
            with suppress(MilecastleError):  # it is found as what an interrupted call left behind
                self._unwanted(self.database.opened or self.database.call(_itself), answer)

    def leave(self) -> bool:
        with self._lock:
            self._is_left = not self.is_over.is_set()
            return self._is_left


def _itself(store: ShardMember) -> ShardMember:
    return store


class Databases:
    """All databases in a map, by name. The first one has the limits for claims."""

    def __init__(self, shards: ShardMap) -> None:
        self.map = shards
        self._id: str | None = None
        self._lock = Lock()
        self.all = tuple(
            Database(name, url, self._check) for name, url in sorted(shards.urls.items())
        )
        self._named = {database.name: database for database in self.all}
        self._owners = [self._named[name] for name in shards.owners]
        self._marks: dict[Sequence[Database], list[tuple[int, int]]] = {}
        self._checked: dict[Database, ShardMember] = {}

    def __iter__(self) -> Iterator[Database]:
        return iter(self.all)

    def of(self, shard: int) -> Database:
        return self._owners[shard]

    def routed(self, shard: int, work: Callable[[Database], T]) -> T:
        """A shard's database's answer; if the shard was moved, the new one's.

        ``work`` may be done twice: an answer lost in a database that is down may have moved
        with the shard.
        """
        for pause in _PAUSES:
            try:
                return work(self._owners[shard])
            except ShardMoved:
                sleep(pause)
                self._locate(shard)
            except Unavailable:
                if not self.is_elsewhere(shard):
                    raise
        return work(self._owners[shard])

    def is_elsewhere(self, shard: int) -> bool:
        owner = self._owners[shard]
        with suppress(StoreError):
            self._locate(shard, [other for other in self.all if other is not owner])
        return self._owners[shard] is not owner

    def chosen(self, names: Sequence[str]) -> tuple[Database, ...]:
        unknown = [name for name in names if name not in self._named]
        if unknown:
            raise InvalidRequest(
                f"{printable(self.map.file)} has no database {quoted(*unknown)}, only "
                f"{quoted(*self._named)}"
            )
        return tuple(database for database in self.all if database.name in names)

    def rest(self, served: Sequence[Database]) -> None:
        """Close the other databases. What they said is compared when they are opened again."""
        for database in self.all:
            if database not in served:
                database.rest(lambda one: self._checked.pop(one, None))

    def _locate(self, shard: int, among: Sequence[Database] | None = None) -> None:
        """Ask databases for a shard; complete a move made and not noted."""
        found = self.ask(lambda store: store.placement(shard), of=among)
        self._settle({name: place for name, place in found.items() if place is not None})

    def _settle(self, found: Mapping[Database, Placement]) -> None:
        here = [one for one, placement in found.items() if placement.state == "here"]
        if here:
            newest = max(here, key=lambda one: found[one].version)
            self._owners[found[newest].shard] = newest
            for other in here:
                if other is not newest:  # it may have said so before the move
                    again = other.call(methodcaller("placement", found[newest].shard))
                    _refuse_restored(other, again, newest, found[newest])
            return
        for placement in found.values():
            target = self._named.get(placement.destination or "")
            if placement.state != "moved" or target is None or placement.move is None:
                continue
            arrived = found.get(target)
            if arrived and (arrived.state, arrived.move) == ("arriving", placement.move):
                target.call(methodcaller("promote", placement.shard, placement.move))
                self._owners[placement.shard] = target
                return

    def each(
        self, work: Callable[[ShardMember], T], of: tuple[Database, ...] | None = None
    ) -> list[T]:
        """Each database's answer, in order; the first failing database's error.

        No shard came or left meanwhile, so each thread is in one answer. ``of``: these databases
        only; a shard that is on its way between two of them is in neither.
        """
        asked = self.all if of is None else of
        if len(self.all) == 1:
            return [self.all[0].call(work)]
        before = self._marks.get(asked)
        for pause in (*_PAUSES, 0.0):
            answers = [database.call(work) for database in asked]
            marks = [database.call(ShardMember.mark) for database in asked]
            if len(asked) == len(self.all) and sum(count for _, count in marks) != SHARDS:
                self.settle_all()
            elif before == marks:
                return answers
            before = self._marks[asked] = marks
            sleep(pause)
        raise Unavailable("shards of the map are being moved all the time: try again")

    def settle_all(self) -> None:
        said = {database: database.call(ShardMember.reload) for database in self.all}
        for shard in range(SHARDS):
            self._settle({name: places[shard] for name, places in said.items() if shard in places})

    def ask(
        self,
        work: Callable[[ShardMember], T],
        *,
        of: Sequence[Database] | None = None,
        unwanted: Unwanted[T] | None = None,
    ) -> dict[Database, T]:
        asked = self.all if of is None else of
        return self.ask_each(dict.fromkeys(asked, work), unwanted=unwanted)

    def ask_each(
        self,
        works: Mapping[Database, Callable[[ShardMember], T]],
        *,
        unwanted: Unwanted[T] | None = None,
        tolerated: type[StoreError] = StoreError,
        patience: float = _PATIENCE,
    ) -> dict[Database, T]:
        """Like ``ask``, with one question per database. Other errors are raised."""
        if len(self.all) == 1:
            return {database: database.call(work) for database, work in works.items()}
        errors: dict[Database, StoreError] = {}
        questions: list[_Question[T]] = []
        for database, work in works.items():
            if database.is_late:
                errors[database] = _too_late(database)
            else:
                questions.append(_Question(database, work, unwanted))
        until = monotonic() + patience
        answers: dict[Database, T] = {}
        for question in questions:
            database = question.database
            if not question.is_over.wait(max(0.0, until - monotonic())) and question.leave():
                database.late = question.thread
                errors[database] = _too_late(database)
            elif isinstance(question.error, tolerated):
                errors[database] = question.error
            elif question.error is not None:
                raise question.error
            else:
                answers[database] = question.answers[0]
                database.note(None)
        for database, error in errors.items():
            if not isinstance(error, ShardMoved):
                database.note(error)
        if errors and not answers:
            raise next(iter(errors.values()))
        return answers

    def open(self) -> None:
        each = dict.fromkeys(self.all, _itself)
        self.ask_each(each, tolerated=Unavailable, patience=_PATIENCE_AT_FIRST)

    def _check(self, store: ShardMember) -> None:
        member, shards = store.member, self.map
        if member.name != store.name:
            raise self._other(store, f"it says that it is '{member.name}'")
        if not member.is_complete:
            raise self._other(store, "shards init was not completed: run it again")
        if member.version <= shards.version and store.shards != shards.shards_of(store.name):
            raise self._other(store, "it has other shards than the map says")
        with self._lock:
            if self._id not in (None, member.id):
                raise self._other(store, "it belongs to another map than the other databases")
            self._id = member.id
        self._learn(store)

    def _learn(self, store: ShardMember) -> None:
        own = self._named[store.name]
        with self._lock:
            others = {one: other for one, other in self._checked.items() if one is not own}
            self._checked[own] = store
        for shard, placement in store.placements.items():
            if placement.state == "here":
                self._owners[shard] = own
                for one, other in others.items():
                    theirs = other.placements.get(shard)
                    if theirs is None or theirs.state != "here":
                        continue
                    if theirs.version > placement.version:
                        self._owners[shard] = one
                        _refuse_restored(own, store.placement(shard), one, theirs)
                    else:
                        _refuse_restored(one, other.placement(shard), own, placement)
            elif placement.state == "moved" and self._owners[shard] is own:
                self._owners[shard] = self._named.get(placement.destination or "", own)

    def _other(self, store: ShardMember, why: str) -> StoreError:
        return StoreError(
            f"database '{store.name}' does not fit {self.map.file}, version {self.map.version}: "
            f"{why}; check its URL, and that this is the newest file"
        )

    def close(self) -> None:
        for database in self.all:
            database.close()


def _refuse_restored(
    older: Database, said: Placement | None, newest: Database, placement: Placement
) -> None:
    if said is not None and said.state == "here":
        raise StoreError(
            f"database '{older.name}' of the map was restored from a backup that is too old: it "
            f"says that it has shard {said.shard} (version {said.version}), which database "
            f"'{newest.name}' got since (version {placement.version}). Restore it as it was after "
            "the move, or give the shard up there, as 'Restore a database' in the documentation "
            "of shards says"
        )


def _too_late(database: Database) -> Unavailable:
    return Unavailable(
        f"database '{database.name}' of the map has not answered within {_PATIENCE:g} seconds"
    )
