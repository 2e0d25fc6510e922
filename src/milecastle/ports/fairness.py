"""Fairness: sharing a claim among tenants, the same for every store, without I/O.

Rules:

- A claim takes one thread of each tenant's lane in turn, until it has enough. So a tenant that has
  just come waits for one thread of each other tenant, and not for all they have queued.
- Of one tenant's lane, those with the higher priority come first; of these, those due
  first. A priority never puts one tenant before another.
- Tenants take turns between claims too: a lane is looked at from behind the tenant from which the
  last claim took last. So do lanes: a claim begins with the one behind that from which the last
  claim took first. Only taken threads count. A store opened again begins at the first.
- Threads held back by limits are passed over, also between claims: they hide nobody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from typing import NamedTuple

from milecastle.ports.limits import Rooms

VISITS = 1000
"""How many groups of a lane a claim looks at, at most: some may have nothing that is due."""


class Group(NamedTuple):
    """Threads with one lane, tenant and rank; ``size`` are due, or are to be taken.

    The rank is the negated priority: groups in ascending order are in the order of claims.
    """

    lane: str
    tenant: str
    rank: int
    size: int


class Scan(NamedTuple):
    """One lane's scan, in tenant order.

    ``stop`` is the tenant at which it gave up, before the lane's end; otherwise it is empty.
    """

    groups: Sequence[Group]
    stop: str = ""

    def then(self, more: Scan) -> Scan:
        """Merge with groups found from the lane's beginning, each once."""
        return Scan(list(dict.fromkeys([*self.groups, *more.groups])), more.stop)


class Rotation:
    """Where the next scan of each lane begins. A hint: if it is lost, a tenant waits longer."""

    def __init__(self) -> None:
        self._after: dict[str, str] = {}
        self._first = ""

    def lanes(self, lanes: Iterable[str]) -> list[tuple[str, str]]:
        """Each lane once, in turn, with the tenant after which to begin."""
        named = sorted({lane for lane in lanes if lane})
        turn = bisect_right(named, self._first)
        return [(lane, self._after.get(lane, "")) for lane in named[turn:] + named[:turn]]

    def note(
        self, scans: Mapping[str, Scan], limit: int, served: Mapping[tuple[str, str], int]
    ) -> None:
        """Record a claim: the lanes scanned, and the threads it got by lane and tenant."""
        for lane, scan in scans.items():
            tenants = dict.fromkeys(group.tenant for group in scan.groups)
            counts = [served.get((lane, tenant), 0) for tenant in tenants]
            most = max(counts, default=0)
            last = [tenant for tenant, count in zip(tenants, counts, strict=True) if count == most]
            if scan.stop and all(counts):
                self._after[lane] = scan.stop
            elif most and last[-1] == scan.groups[-1].tenant and len(scan.groups) <= limit:
                self._after[lane] = ""  # all of them took their turn
            elif most:
                self._after[lane] = last[-1]
        self._begin_behind(scans, served)

    def passed(self, lanes: Iterable[str], served: Collection[tuple[str, str]]) -> None:
        """Record a claim that served each tenant in these lanes once, in order.

        The last served lane may have more tenants; those before it have begun again.
        """
        rest = list(lanes)
        while rest and all(lane != rest[-1] for lane, _ in served):
            rest.pop()
        self._after.update(dict.fromkeys(rest, ""))
        if rest:
            self._after[rest[-1]] = max(tenant for lane, tenant in served if lane == rest[-1])
        self._begin_behind(rest, served)

    def _begin_behind(self, lanes: Iterable[str], served: Collection[tuple[str, str]]) -> None:
        found = {lane for lane, _ in served}
        self._first = next((lane for lane in lanes if lane in found), self._first)


def divide(limit: int, groups: Iterable[Group], rooms: Rooms | None = None) -> list[Group]:
    """Threads a claim takes from each group; first groups first."""
    rooms = rooms or Rooms()
    lines: dict[tuple[str, str], list[Group]] = {}
    for group in {group[:3]: group for group in groups}.values():
        lines.setdefault((group.lane, group.tenant), []).append(group)
    queues = [sorted(line, key=lambda group: group.rank) for line in lines.values()]
    each = _in_turn([map(_each, queue) for queue in queues])
    allowed = (group for group in each if rooms.enter(group.lane, group.tenant))
    taken = Counter(islice(allowed, max(0, limit)))
    return [group._replace(size=size) for group, size in taken.items()]


def sizes(groups: Iterable[Group]) -> Counter[tuple[str, str]]:
    """Threads per lane and tenant in these groups."""
    found: Counter[tuple[str, str]] = Counter()
    for group in groups:
        found[group.lane, group.tenant] += group.size
    return found


def _each(group: Group) -> Iterator[Group]:
    return repeat(group, group.size)


def _in_turn(queues: Sequence[Iterable[Iterator[Group]]]) -> Iterator[Group]:
    left: list[Iterator[Group]] = [chain.from_iterable(queue) for queue in queues]
    while left:
        still: list[Iterator[Group]] = []
        for queue in left:
            group = next(queue, None)
            if group is not None:
                still.append(queue)
                yield group
        left = still
