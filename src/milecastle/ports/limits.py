"""Limits: how many threads per graph, tenant or both may run, without I/O.

Rules:

- A limit covers a graph's threads or every graph's, and a tenant's or every tenant's; covered
  threads count together. All limits covering a thread hold.
- ``concurrency``: at most so many have a worker. A lowered limit stops no run.
- ``rate``: at most so many are claimed within ``period`` seconds. A period
  begins with its first claim. Each segment is a claim: also its wake-up and its retry.
- ``paused``: none is claimed. They stay due, and are counted as such.
- A limit with a ``key``, as ``customer``, holds for each value by itself: for the threads
  with the limit key ``customer=c7``, those with ``customer=c8``, and so on. It lets at least one
  of each run. A thread that waits (asleep, for an answer, for a retry) takes no place of its key.
- A claim looks at the limits, and at the store's clock, in its own transaction: claims that
  meet do not exceed them. A changed limit holds for every claim beginning afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.limit_key import NO_KEY, check_key_name, name_of
from milecastle.model.run import ThreadInfo

_SECOND = 1_000_000
_MOST = 2**31 - 1

ClaimPlace = tuple[str, str, str]
"""A lane, a tenant, and a limit key: ``NO_KEY`` if there is none."""


def place_of(line: ThreadInfo) -> ClaimPlace:
    return line.lane, line.key.tenant, line.limit_key or NO_KEY


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Limit for a graph and a tenant together; empty names mean all.

    With a ``key``, for each value.
    """

    graph: str = ""
    tenant: str = ""
    key: str = ""
    concurrency: int | None = None
    rate: int | None = None
    period: float = 1.0
    paused: bool = False

    def __post_init__(self) -> None:
        if self.tenant:
            ThreadKey(self.tenant, "thread")
        if self.concurrency is not None and not 0 <= self.concurrency <= _MOST:
            raise InvalidRequest(f"a concurrency must be at least 0, not {self.concurrency}")
        if self.rate is not None and not 1 <= self.rate <= _MOST:
            raise InvalidRequest(f"a rate must be at least 1, not {self.rate}")
        if self.key:
            check_key_name(self.key)
            if self.paused or self.concurrency == 0:
                raise InvalidRequest(
                    "a limit by key lets at least one run of each value: pause the graph, or limit "
                    "its tenant"
                )
        if not 0.001 <= self.period <= _MOST:
            raise InvalidRequest(f"a period must be at least 0.001 seconds, not {self.period}")

    @property
    def is_empty(self) -> bool:
        """True if it limits nothing."""
        return self.concurrency is None and self.rate is None and not self.paused

    @property
    def microseconds(self) -> int:
        """The rate's period, as stored."""
        return round(self.period * _SECOND)


class Scope(NamedTuple):
    """The runs a limit covers; empty: all. ``key`` is a limit key, or a name: any value."""

    graph: str
    tenant: str
    key: str

    @property
    def of_any(self) -> Scope:
        return self._replace(key=name_of(self.key))


class Meter(msgspec.Struct, frozen=True):
    """A limit with its rate's period: start, and number claimed.

    By key, that of the value in ``limit_key``, or without one of all that claimed nothing so far.
    """

    limit: Limit
    begun: int = 0
    used: int = 0
    limit_key: str = ""

    @property
    def scope(self) -> Scope:
        return Scope(self.limit.graph, self.limit.tenant, self.limit_key or self.limit.key)

    @property
    def until(self) -> int:
        return self.begun + self.limit.microseconds

    def at(self, now: int) -> Meter:
        """The meter now: in a new period if the last one is over, or began in the future."""
        if self.begun <= now < self.until:
            return self
        return Meter(self.limit, now, 0, self.limit_key)

    def room(self, running: int) -> int:
        limit = self.limit
        if limit.paused:
            return 0
        by_count = _MOST if limit.concurrency is None else limit.concurrency - running
        return min(by_count, _MOST if limit.rate is None else limit.rate - self.used)


class Rooms:
    """Room the limits leave to one claim."""

    def __init__(
        self,
        meters: Sequence[Meter] = (),
        running: Mapping[ClaimPlace, int] | None = None,
        value: Callable[[Scope], Meter | None] | None = None,
    ) -> None:
        """``meters`` now; ``running``: claimed threads by place.

        ``value`` looks up a limit key's meter that is not among these, when it is needed.
        """
        self._meters = {meter.scope: meter for meter in meters}
        self._counts = _covered(running or {})
        self._value = value
        self._left: dict[Scope, int] = {}

    @property
    def meters(self) -> list[Meter]:
        return [*self._meters.values()]

    def learn(self, meters: Iterable[Meter]) -> None:
        self._meters |= {meter.scope: meter for meter in meters}
        self._left = {}

    def is_open(self, place: ClaimPlace) -> bool:
        return all(left > 0 for left in self._covering(place).values())

    def shut(self, lane: str) -> frozenset[tuple[str, str]]:
        """Tenants and limit keys with no room in a lane; "" means all."""
        own = (graph_of(lane), "")
        each = {**self._meters, **self._counts, **self._left}
        rooms = {scope: self._room(scope) for scope in each if scope.graph in own}
        return frozenset(
            scope[1:] for scope, room in rooms.items() if room is not None and room <= 0
        )

    def enter(self, place: ClaimPlace) -> bool:
        if not self.is_open(place):
            return False
        self._left.update((scope, left - 1) for scope, left in self._covering(place).items())
        return True

    def _covering(self, place: ClaimPlace) -> dict[Scope, int]:
        if not self._meters:
            return {}
        found = ((scope, self._room(scope)) for scope in _scopes(place))
        return {scope: room for scope, room in found if room is not None}

    def _room(self, scope: Scope) -> int | None:
        if scope not in self._left:
            meter = self._meters.get(scope) or self._look_up(scope)
            if meter is None:
                return None
            self._left[scope] = meter.room(self._counts[scope])
        return self._left[scope]

    def _look_up(self, scope: Scope) -> Meter | None:
        of_any = self._meters.get(scope.of_any)
        if of_any is not None and of_any.limit.rate is not None and self._value is not None:
            found = self._value(scope)
            if found is not None:
                self._meters[scope] = found
                return found
        return of_any


def charged(meters: Iterable[Meter], claimed: Mapping[ClaimPlace, int]) -> list[Meter]:
    """Rate meters after claiming this many threads by place."""
    known = {meter.scope: meter for meter in meters if meter.limit.rate is not None}
    if not known:
        return []
    found: list[Meter] = []
    for scope, count in _covered(claimed).items():
        meter = known.get(scope) or known.get(scope.of_any)
        if meter is not None:
            key = scope.key if meter.limit.key else ""
            found.append(msgspec.structs.replace(meter, used=meter.used + count, limit_key=key))
    return found


def graph_of(lane: str) -> str:
    return lane.rpartition("@")[0] or lane


def _scopes(place: ClaimPlace) -> Iterable[Scope]:
    lane, tenant, limit_key = place
    return map(Scope._make, product((graph_of(lane), ""), (tenant, ""), (limit_key, "")))


def _covered(counts: Mapping[ClaimPlace, int]) -> Counter[Scope]:
    found: Counter[Scope] = Counter()
    for place, count in counts.items():
        for scope in _scopes(place):
            found[scope] += count
    return found
