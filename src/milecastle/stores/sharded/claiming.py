"""Claims over several databases: shared among tenants, and within limits, as if it were one.

Rules:

- A claim scans every database, divides the result as ``milecastle.ports.fairness`` says, and takes
  from each its part: in a tenant's lane those that were due first, wherever they are.
- Limits are in every database, so each says whether there are any. They are counted in the
  first one: a claim under limits keeps others from it while it counts and takes everywhere. If its
  process is suspended for longer than the server waits, it takes nothing.
- A worker may serve some of the databases: it scans and takes there only. Limits count all.
- A database that does not answer is left out. Its running threads are counted as last seen.
  If the first one does not answer, lanes no limit covers are claimed, and others are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter, methodcaller

from milecastle.errors import Unavailable
from milecastle.model.keys import SHARDS
from milecastle.model.limit_key import NO_KEY
from milecastle.model.run import ThreadInfo
from milecastle.ports.fairness import START, Group, LanePosition, Rotation, Scan, divide, sizes
from milecastle.ports.limits import ClaimPlace, Limit, Meter, Rooms, graph_of
from milecastle.stores.postgres.claiming import HELD, Look, MetersOf, Shut, open_lanes
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.postgres.values import escape
from milecastle.stores.sharded.databases import Database, Databases

_MOST = 2**31 - 1
_LOOKS = 5
"""How often running threads are counted again, because a shard was moved meanwhile."""
_HELD = (HELD - 1) * 1_000_000
"""For how many microseconds after it counted a claim may take: less than the server waits."""
_Looks = Mapping[Database, Look]
_Shares = Mapping[Database, Sequence[Group]]
_Name = tuple[str, str, str, int]


class ShardedClaims:
    def __init__(self, databases: Databases, served: tuple[Database, ...] | None = None) -> None:
        self._databases = databases
        self._served = served
        self._rotation = Rotation()
        self._running: dict[Database, tuple[int, Mapping[ClaimPlace, int]]] = {}

    def claim(self, worker: str, lanes: Sequence[str], limit: int) -> list[ThreadInfo]:
        name, most = escape(worker), min(limit, _MOST)
        asked = dict(self._rotation.lanes(escape(lane) for lane in lanes))
        if not asked or most <= 0:
            return []
        looks = self._look(asked, most)
        if any(look.is_limited for look in looks.values()):
            return self._limited(name, asked, most)
        return self._unlimited(name, asked, most, looks)

    def _look(self, asked: Mapping[str, LanePosition], most: int, shut: Shut = ()) -> _Looks:
        return self._databases.ask(
            lambda store: store.look(asked, most, self._rotation, shut), of=self._served
        )

    def _unlimited(
        self, worker: str, asked: Mapping[str, LanePosition], limit: int, looks: _Looks
    ) -> list[ThreadInfo]:
        found = _Found(asked, looks, self._rotation)
        taken = divide(limit, found.groups())
        lines = self._take(worker, self._parted(taken, found.sizes))
        if found.total > limit:
            self._rotation.note(found.scans, limit, _served(lines) or sizes(taken))
        return lines

    def _limited(
        self, worker: str, asked: Mapping[str, LanePosition], limit: int
    ) -> list[ThreadInfo]:
        """Claim while nobody else claims under limits, which are the first database's.

        Threads to be taken are charged to rates beforehand. It is taken only if that is sure to be
        before the server might have let others claim.
        """
        lines: list[ThreadInfo] = []
        first = self._databases.all[0]

        def work(meters: Sequence[Meter], values: MetersOf, check: Callable[[], object]) -> None:
            rooms = Rooms(meters, self._count()) if meters else Rooms()
            until = {database: now + _HELD for database, (now, _) in self._running.items()}
            left, shut = open_lanes(asked, rooms)
            looks = self._look(left, limit, shut)
            found = _Found(asked, looks, self._rotation)
            rooms.learn(values(found.groups()))
            taken = divide(limit, found.groups(), rooms)
            shares = self._parted(taken, found.sizes)
            first.call(lambda store: store.charge(rooms.meters, sizes(taken)))
            check()
            lines[:] = self._take(worker, shares, until if meters else {})
            self._rotation.note(found.scans, limit, _served(lines) or sizes(taken))

        try:
            first.call(lambda store: store.within_limits(list(asked), work))
        except Unavailable:
            free = self._uncovered(asked) if not lines else {}
            if not free and not lines:
                raise
            if free:
                return self._unlimited(worker, free, limit, self._look(free, limit))
        return lines

    def _uncovered(self, asked: Mapping[str, LanePosition]) -> dict[str, LanePosition]:
        others = self._databases.all[1:]
        known = self._databases.ask(ShardMember.limits, of=others) if others else {}
        limits: set[Limit] = {limit for some in known.values() for limit in some}
        graphs = {escape(limit.graph) for limit in limits}
        if not known or "" in graphs:
            return {}
        return {lane: after for lane, after in asked.items() if graph_of(lane) not in graphs}

    def _count(self) -> Mapping[ClaimPlace, int]:
        marks = self._databases.ask(ShardMember.mark)
        for _ in range(_LOOKS):
            self._running |= self._databases.ask(ShardMember.running)
            before, marks = marks, self._databases.ask(ShardMember.mark)
            everywhere = len(marks) == len(self._databases.all)
            if everywhere and sum(count for _, count in marks.values()) != SHARDS:
                self._databases.settle_all()  # a shard that nobody has is not counted
            elif marks == before:
                break
        counts: Counter[ClaimPlace] = Counter()
        for _, running in self._running.values():
            counts.update(running)
        return counts

    def _parted(
        self, taken: Sequence[Group], sizes: Mapping[_Name, Mapping[Database, int]]
    ) -> _Shares:
        shares: dict[Database, list[Group]] = {}
        contested: dict[Database, list[Group]] = {}
        for group in taken:
            own = sizes[group[:4]]
            for database, size in own.items():
                part = group._replace(size=min(size, group.size))
                apart = len(own) > 1 and sum(own.values()) > group.size
                (contested if apart else shares).setdefault(database, []).append(part)
        for database, groups in self._first(contested, taken).items():
            shares.setdefault(database, []).extend(groups)
        return shares

    def _first(self, contested: _Shares, taken: Sequence[Group]) -> _Shares:
        asked: dict[Database, Callable[[ShardMember], list[list[int]]]] = {
            database: methodcaller("first_due", groups) for database, groups in contested.items()
        }
        times = self._databases.ask_each(asked)
        by_name: dict[_Name, list[list[tuple[int, Database]]]] = {}
        for database, found in times.items():
            for group, due in zip(contested[database], found, strict=True):
                by_name.setdefault(group[:4], []).append([(one, database) for one in due])
        shares: dict[Database, list[Group]] = {}
        for group in taken:
            dues = by_name.get(group[:4], [])
            chosen = islice(merge(*dues, key=itemgetter(0)), group.size)
            for database, size in Counter(database for _, database in chosen).items():
                shares.setdefault(database, []).append(group._replace(size=size))
        return shares

    def _take(
        self, worker: str, shares: _Shares, until: Mapping[Database, int] | None = None
    ) -> list[ThreadInfo]:
        def unwanted(store: ShardMember, lines: Sequence[ThreadInfo]) -> None:
            for line in lines:
                store.give_back(line.worker, line.key)

        works: dict[Database, Callable[[ShardMember], list[ThreadInfo]]] = {
            database: methodcaller("take", worker, groups, (until or {}).get(database))
            for database, groups in shares.items()
        }
        taken = self._databases.ask_each(works, unwanted=unwanted)
        lines = [line for some in taken.values() for line in some]
        return sorted(lines, key=lambda line: (line.due_at, line.key))


class _Found:
    def __init__(
        self, asked: Mapping[str, LanePosition], looks: _Looks, rotation: Rotation
    ) -> None:
        self.sizes: dict[_Name, dict[Database, int]] = {}
        for database, look in looks.items():
            for group in look.groups():
                own = self.sizes.setdefault(group[:4], {})
                own[database] = max(own.get(database, 0), group.size)
        self.total = sum(sum(own.values()) for own in self.sizes.values())
        self.scans = {
            lane: rotation.with_keys(lane, self._scan(lane, after, looks), ())
            for lane, after in asked.items()
        }

    def _scan(self, lane: str, after: LanePosition, looks: _Looks) -> Scan:
        stops = [look.scans[lane].stop for look in looks.values() if lane in look.scans]
        own = [Group(*name, sum(s.values())) for name, s in self.sizes.items() if name[0] == lane]
        order = sorted(own, key=lambda one: (one[1:3] <= after, *one[1:4]))
        return Scan(order, min(filter(any, stops), default=START))

    def groups(self) -> list[Group]:
        return [group for scan in self.scans.values() for group in scan.groups]


def _served(lines: Iterable[ThreadInfo]) -> Counter[ClaimPlace]:
    return Counter((escape(line.lane), line.key.tenant, line.limit_key or NO_KEY) for line in lines)
