"""Claims over several databases: shared among tenants, and within limits, as if it were one.

Rules:

- A claim looks at every database, divides what it saw as ``milecastle.ports.sharing`` says, and
  takes from each its part: of a tenant's lane those that were due first, wherever they are.
- Limits are in every database, so that each says whether there are any. They are counted in the
  first one: a claim under limits locks them there while it counts and takes in the others.
- A database that does not answer is left out. What it has running is counted as it was last seen.
  If the first one does not answer, lanes that no limit covers are claimed, and others are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter, methodcaller

from milecastle.errors import Unavailable
from milecastle.model.keys import SHARDS
from milecastle.model.run import ThreadInfo
from milecastle.ports.limits import Limit, Meter, Rooms, graph_of
from milecastle.ports.sharing import Group, Rotation, Scan, divide
from milecastle.stores.postgres.claiming import scan_from
from milecastle.stores.postgres.placed import PlacedStore
from milecastle.stores.postgres.rows import Row
from milecastle.stores.postgres.values import escape
from milecastle.stores.sharded.databases import Database, Databases

__all__ = ["ShardedClaims"]

_MOST = 2**31 - 1
_LOOKS = 5
"""How often running threads are counted again, because a shard was moved meanwhile."""
_Looks = Mapping[Database, Sequence[Row]]
_Shares = Mapping[Database, Sequence[Group]]
_Name = tuple[str, str, int]


class ShardedClaims:
    """The claims of one map."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._rotation = Rotation()
        self._running: dict[Database, Mapping[tuple[str, str], int]] = {}

    def claim(self, worker: str, lanes: Sequence[str], limit: int) -> list[ThreadInfo]:
        """Give due threads to a worker, shared among tenants, as far as limits allow."""
        name, most = escape(worker), min(limit, _MOST)
        asked = dict(self._rotation.lanes(escape(lane) for lane in lanes))
        if not asked:
            return []
        looks = self._look(asked, most)
        if any(row[5] for rows in looks.values() for row in rows):
            return self._limited(name, asked, most)
        return self._take(name, self._share(asked, looks, most, None))

    def _limited(self, worker: str, asked: Mapping[str, str], limit: int) -> list[ThreadInfo]:
        """Claim while the limits are locked in the first database, and counted there."""
        found: list[ThreadInfo] = []

        def work(meters: Sequence[Meter]) -> Iterable[ThreadInfo]:
            rooms = Rooms(meters, self._count()) if meters else Rooms()
            looks = self._look(asked, limit)
            found[:] = self._take(worker, self._share(asked, looks, limit, rooms))
            return found

        first = self._databases.all[0]
        try:
            first.call(lambda store: store.within_limits(list(asked), work))
        except Unavailable:
            free = self._uncovered(asked) if not found else {}
            if not free:
                raise
            looks = self._look(free, limit)
            return self._take(worker, self._share(free, looks, limit, None))
        return found

    def _uncovered(self, asked: Mapping[str, str]) -> dict[str, str]:
        """The lanes that no limit covers, as the other databases know them."""
        others = self._databases.all[1:]
        known = self._databases.ask(PlacedStore.limits, of=others) if others else {}
        limits: set[Limit] = {limit for some in known.values() for limit in some}
        graphs = {escape(limit.graph) for limit in limits}
        if not known or "" in graphs:
            return {}
        return {lane: after for lane, after in asked.items() if graph_of(lane) not in graphs}

    def _count(self) -> Mapping[tuple[str, str], int]:
        """How many threads have a worker, by lane and tenant; each is counted in one database."""
        marks = self._databases.ask(PlacedStore.mark)
        for _ in range(_LOOKS):
            self._running |= self._databases.ask(PlacedStore.running)
            before, marks = marks, self._databases.ask(PlacedStore.mark)
            everywhere = len(marks) == len(self._databases.all)
            if everywhere and sum(count for _, count in marks.values()) != SHARDS:
                self._databases.settle_all()  # a shard that nobody has is not counted
            elif marks == before:
                break
        counts: Counter[tuple[str, str]] = Counter()
        for running in self._running.values():
            counts.update(running)
        return counts

    def _look(self, asked: Mapping[str, str], limit: int) -> dict[Database, list[Row]]:
        """What is due; where a lane's tenants ended before there were enough, from the first on."""
        looks = self._databases.ask(lambda store: store.look(asked, limit))
        again: dict[Database, Callable[[PlacedStore], list[Row]]] = {}
        for database, rows in looks.items():
            if any(row[4] is not None for row in rows):
                scans = {lane: scan_from(rows, lane) for lane in asked}
                ended = {
                    lane: ""
                    for lane, after in asked.items()
                    if after and not scans[lane].stop and len(scans[lane].groups) <= limit
                }
                if ended:
                    again[database] = methodcaller("look", ended, limit)
        more = self._databases.ask_each(again)
        return {database: [*rows, *more.get(database, ())] for database, rows in looks.items()}

    def _share(
        self, asked: Mapping[str, str], looks: _Looks, limit: int, rooms: Rooms | None
    ) -> _Shares:
        """What a claim takes of each database: as much of each group as is its share."""
        sizes: dict[_Name, dict[Database, int]] = {}
        for database, rows in looks.items():
            for row in rows:
                if row[3]:
                    own = sizes.setdefault((row[0], row[1], row[2]), {})
                    own[database] = max(own.get(database, 0), row[3])
        scans = {lane: _scan(lane, after, sizes, looks) for lane, after in asked.items()}
        taken = divide(limit, [group for scan in scans.values() for group in scan.groups], rooms)
        if sum(sum(own.values()) for own in sizes.values()) > limit:
            for lane, scan in scans.items():
                self._rotation.note(lane, scan, limit, taken, rooms)
        return self._parted(taken, sizes)

    def _parted(
        self, taken: Sequence[Group], sizes: Mapping[_Name, Mapping[Database, int]]
    ) -> _Shares:
        """Each group as parts of databases: those that were due first, if not all are taken."""
        shares: dict[Database, list[Group]] = {}
        contested: dict[Database, list[Group]] = {}
        for group in taken:
            own = sizes[group[:3]]
            for database, size in own.items():
                part = group._replace(size=min(size, group.size))
                apart = len(own) > 1 and sum(own.values()) > group.size
                (contested if apart else shares).setdefault(database, []).append(part)
        for database, groups in self._first(contested, taken).items():
            shares.setdefault(database, []).extend(groups)
        return shares

    def _first(self, contested: _Shares, taken: Sequence[Group]) -> _Shares:
        """How many of the threads that were due first are in each database."""
        asked: dict[Database, Callable[[PlacedStore], list[list[int]]]] = {
            database: methodcaller("first_due", groups) for database, groups in contested.items()
        }
        times = self._databases.ask_each(asked)
        by_name: dict[_Name, list[list[tuple[int, Database]]]] = {}
        for database, found in times.items():
            for group, due in zip(contested[database], found, strict=True):
                by_name.setdefault(group[:3], []).append([(one, database) for one in due])
        shares: dict[Database, list[Group]] = {}
        for group in taken:
            dues = by_name.get(group[:3], [])
            chosen = islice(merge(*dues, key=itemgetter(0)), group.size)
            for database, size in Counter(database for _, database in chosen).items():
                shares.setdefault(database, []).append(group._replace(size=size))
        return shares

    def _take(self, worker: str, shares: _Shares) -> list[ThreadInfo]:
        """Give the parts to a worker. What a database gives too late is given back."""

        def unwanted(store: PlacedStore, lines: Sequence[ThreadInfo]) -> None:
            for line in lines:
                store.give_back(line.worker, line.key)

        works: dict[Database, Callable[[PlacedStore], list[ThreadInfo]]] = {
            database: methodcaller("take", worker, groups) for database, groups in shares.items()
        }
        taken = self._databases.ask_each(works, unwanted=unwanted)
        lines = [line for some in taken.values() for line in some]
        return sorted(lines, key=lambda line: (line.due_at, line.key))


def _scan(
    lane: str, after: str, sizes: Mapping[_Name, Mapping[Database, int]], looks: _Looks
) -> Scan:
    """The groups of a lane in the order of tenants, from behind one on and then from the first."""
    stops = [stop for rows in looks.values() if (stop := scan_from(rows, lane).stop)]
    found = [Group(*name, sum(own.values())) for name, own in sizes.items() if name[0] == lane]
    order = sorted(found, key=lambda one: (one.tenant <= after, one.tenant, one.rank))
    return Scan(order, min(stops, default=""))
