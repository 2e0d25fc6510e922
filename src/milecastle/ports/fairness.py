"""Fairness: sharing a claim among tenants and limit keys, the same for every store, without I/O.

Rules:

- A claim takes one thread from each tenant's lane in turn, until it has enough. So a new tenant
  waits for one thread from each other tenant, and not for all they have queued.
- In one tenant's lane, it takes one for each limit key in turn; those without a key have one turn
  together. In one key, those with the higher priority come first; of these, those due first. A
  priority never puts one tenant before another, nor one key before another.
- Tenants take turns between claims too: a lane is looked at from behind the tenant from which the
  last claim took last, and a tenant's keys from behind the key from which it took last. So do
  lanes: a claim begins with the one behind that from which the last claim took first. Only taken
  threads count. A store opened again begins at the first.
- Threads held back by limits are passed over, also between claims: they hide nobody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import NamedTuple, TypeVar

from milecastle.model.limit_key import NO_KEY
from milecastle.ports.limits import ClaimPlace, Rooms

T = TypeVar("T")

VISITS = 1000
"""How many groups of a lane a claim looks at, at most: some may have nothing that is due."""

_KEY_TURNS = 10_000
"""How many tenants' turns of keys are remembered."""

LanePosition = tuple[str, str]
"""A tenant and a limit key of a lane: what comes behind both is next."""

START: LanePosition = "", ""


class Group(NamedTuple):
    """Threads with one lane, tenant, limit key and rank; ``size`` are due, or are to be taken.

    The rank is the negated priority: groups in ascending order are in the order of claims.
    """

    lane: str
    tenant: str
    limit_key: str
    rank: int
    size: int

    @property
    def place(self) -> ClaimPlace:
        return self[:3]

    @property
    def has_key(self) -> bool:
        return self.limit_key != NO_KEY


class Scan(NamedTuple):
    """One lane's scan, in tenant order.

    ``stop`` is where it gave up, before the lane's end; otherwise it is ``START``.
    """

    groups: Sequence[Group]
    stop: LanePosition = START

    def then(self, more: Scan) -> Scan:
        return Scan(list(dict.fromkeys([*self.groups, *more.groups])), more.stop)


class KeyRange(NamedTuple):
    lane: str
    tenant: str
    after: str
    until: str


class Rotation:
    """Where the next scan of each lane begins. A hint: if it is lost, a tenant waits longer."""

    def __init__(self) -> None:
        self._after: dict[str, LanePosition] = {}
        self._first = ""
        self._keys: dict[tuple[str, str], str] = {}

    def lanes(self, lanes: Iterable[str]) -> list[tuple[str, LanePosition]]:
        """Each lane once, in turn, with what to begin behind."""
        named = sorted({lane for lane in lanes if lane})
        turn = bisect_right(named, self._first)
        return [(lane, self._after.get(lane, START)) for lane in named[turn:] + named[:turn]]

    def key_ranges(self, scans: Iterable[Scan]) -> list[KeyRange]:
        """Each tenant's keys in these scans, from its turn once around."""
        places = {group[:2] for scan in scans for group in scan.groups if group.has_key}
        found: list[KeyRange] = []
        for lane, tenant in sorted(places):
            after = self._keys.get((lane, tenant), "")
            found.append(KeyRange(lane, tenant, after, NO_KEY))
            if after:
                found.append(KeyRange(lane, tenant, "", after))
        return found

    def with_keys(self, lane: str, scan: Scan, found: Iterable[Group]) -> Scan:
        """A lane's scan with its part of key ranges, each tenant's keys from their turn on."""
        own = [group for group in found if group.lane == lane]
        groups = {group[:4]: group for group in (*scan.groups, *own)}.values()
        order = {
            tenant: turn for turn, tenant in enumerate(dict.fromkeys(g.tenant for g in groups))
        }

        def turn(group: Group) -> tuple[int, bool, str, int]:
            after = self._keys.get(group[:2], "")
            return order[group.tenant], group.limit_key <= after, group.limit_key, group.rank

        return Scan(sorted(groups, key=turn), scan.stop)

    def note(self, scans: Mapping[str, Scan], limit: int, served: Mapping[ClaimPlace, int]) -> None:
        """Record a claim: the lanes scanned, and the threads it got by place."""
        totals: Counter[tuple[str, str]] = Counter()
        for (lane, tenant, _), count in served.items():
            totals[lane, tenant] += count
        for lane, scan in scans.items():
            tenants = dict.fromkeys(group.tenant for group in scan.groups)
            counts = [totals[lane, tenant] for tenant in tenants]
            last = _last_served(tenants, counts)
            if any(scan.stop) and all(counts):
                self._after[lane] = scan.stop
            elif last and last == scan.groups[-1].tenant and _visited(scan) <= limit:
                self._after[lane] = START  # all of them took their turn
            elif last:
                self._after[lane] = last, NO_KEY
            self._note_keys(scan, served)
        self._begin_behind(scans, {lane for lane, _ in totals})

    def passed(self, lanes: Iterable[str], served: Collection[tuple[str, str]]) -> None:
        """Record a claim that served each tenant in these lanes once, in order.

        The last served lane may have more tenants; those before it have begun again.
        """
        rest = list(lanes)
        while rest and all(lane != rest[-1] for lane, _ in served):
            rest.pop()
        self._after.update(dict.fromkeys(rest, START))
        if rest:
            last = max(tenant for lane, tenant in served if lane == rest[-1])
            self._after[rest[-1]] = last, NO_KEY
        self._begin_behind(rest, {lane for lane, _ in served})

    def _note_keys(self, scan: Scan, served: Mapping[ClaimPlace, int]) -> None:
        keys = {group[:2]: dict[str, int]() for group in scan.groups if group.has_key}
        for group in scan.groups:
            if group[:2] in keys:
                keys[group[:2]][group.limit_key] = served.get(group.place, 0)
        for place, counts in keys.items():
            if last := _last_served(counts, list(counts.values())):
                self._keys.pop(place, None)
                self._keys[place] = last
        while len(self._keys) > _KEY_TURNS:
            del self._keys[next(iter(self._keys))]

    def _begin_behind(self, lanes: Iterable[str], found: Collection[str]) -> None:
        self._first = next((lane for lane in lanes if lane in found), self._first)


def divide(limit: int, groups: Iterable[Group], rooms: Rooms | None = None) -> list[Group]:
    """Threads a claim takes from each group; first groups first."""
    rooms = rooms or Rooms()
    queues: dict[tuple[str, str], dict[str, list[Group]]] = {}
    for group in {group[:4]: group for group in groups}.values():
        keys = queues.setdefault((group.lane, group.tenant), {})
        keys.setdefault(group.limit_key, []).append(group)
    each = _in_turn([_in_turn(map(_each, keys.values())) for keys in queues.values()])
    allowed = (group for group in each if rooms.enter(group.place))
    taken = Counter(islice(allowed, max(0, limit)))
    return [group._replace(size=size) for group, size in taken.items()]


def keys_each(limit: int, scans: Iterable[Scan]) -> int:
    """The groups of each key range a claim looks at: more than its tenant's share."""
    return 1 + 4 * limit // max(1, sum(map(_visited, scans)))


def sizes(groups: Iterable[Group]) -> Counter[ClaimPlace]:
    found: Counter[ClaimPlace] = Counter()
    for group in groups:
        found[group.place] += group.size
    return found


def _visited(scan: Scan) -> int:
    return len({group[:2] if group.has_key else group[:4] for group in scan.groups})


def _each(line: list[Group]) -> Iterator[Group]:
    for group in sorted(line, key=lambda group: group.rank):
        yield from repeat(group, group.size)


def _last_served(names: Iterable[str], counts: Sequence[int]) -> str:
    most = max(counts, default=0)
    last = [name for name, count in zip(names, counts, strict=True) if count == most]
    return last[-1] if most else ""


def _in_turn(queues: Iterable[Iterator[T]]) -> Iterator[T]:
    left = list(queues)
    while left:
        still: list[Iterator[T]] = []
        for queue in left:
            for found in islice(queue, 1):
                still.append(queue)
                yield found
        left = still
