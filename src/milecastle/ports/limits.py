"""Limits: how many threads per graph, tenant or both may run, without I/O.

Rules:

- A limit covers a graph's threads or every graph's, and a tenant's or every tenant's; covered
  threads count together. All limits covering a thread hold.
- ``concurrency``: so many of them have a worker at most. A lowered limit stops no run.
- ``rate``: so many of them are claimed within a period of ``period`` seconds, at most. A period
  begins with its first claim. Each segment of a run is a claim: also its wake-up and its retry.
- ``paused``: none of them is claimed. They stay due, and are counted as such.
- A claim looks at the limits, and at the store's clock, in its own transaction: claims that
  meet do not exceed them. A changed limit holds for every claim beginning afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey

_SECOND = 1_000_000
_MOST = 2**31 - 1


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Limit for a graph and a tenant together; empty names mean all."""

    graph: str = ""
    tenant: str = ""
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


class Meter(msgspec.Struct, frozen=True):
    """A limit with its rate's period: start, and number claimed."""

    limit: Limit
    begun: int = 0
    used: int = 0

    def at(self, now: int) -> Meter:
        """The meter now: in a new period if the last one is over, or began in the future."""
        if self.begun <= now < self.begun + self.limit.microseconds:
            return self
        return Meter(self.limit, now, 0)

    def room(self, running: int) -> int:
        """Claims still allowed."""
        limit = self.limit
        if limit.paused:
            return 0
        by_count = _MOST if limit.concurrency is None else limit.concurrency - running
        return min(by_count, _MOST if limit.rate is None else limit.rate - self.used)


class Rooms:
    """Room the limits leave to one claim."""

    def __init__(
        self, meters: Sequence[Meter] = (), running: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        """``meters`` now; ``running``: claimed threads by lane and tenant."""
        counts = _covered(running or {})
        self._left = {_covers(meter): meter.room(counts[_covers(meter)]) for meter in meters}

    def is_open(self, lane: str, tenant: str) -> bool:
        """True if a thread may be claimed there."""
        return all(self._left[each] > 0 for each in self._covering(lane, tenant))

    def shut(self, lane: str) -> frozenset[str]:
        """Tenants with no room in a lane; "" means all."""
        own = (graph_of(lane), "")
        left = self._left.items()
        return frozenset(tenant for (graph, tenant), room in left if room <= 0 and graph in own)

    def enter(self, lane: str, tenant: str) -> bool:
        """Claim one thread there, if allowed."""
        if not self.is_open(lane, tenant):
            return False
        for each in self._covering(lane, tenant):
            self._left[each] -= 1
        return True

    def _covering(self, lane: str, tenant: str) -> Iterable[tuple[str, str]]:
        return self._left.keys() & set(_scopes(lane, tenant)) if self._left else ()


def charged(meters: Iterable[Meter], claimed: Mapping[tuple[str, str], int]) -> list[Meter]:
    """Rate meters after claiming this many threads by lane and tenant."""
    counts = _covered(claimed)
    return [
        msgspec.structs.replace(meter, used=meter.used + counts[_covers(meter)])
        for meter in meters
        if meter.limit.rate is not None and counts[_covers(meter)]
    ]


def graph_of(lane: str) -> str:
    return lane.rpartition("@")[0] or lane


def _covers(meter: Meter) -> tuple[str, str]:
    return meter.limit.graph, meter.limit.tenant


def _scopes(lane: str, tenant: str) -> Iterable[tuple[str, str]]:
    return product((graph_of(lane), ""), (tenant, ""))


def _covered(counts: Mapping[tuple[str, str], int]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for (lane, tenant), count in counts.items():
        for scope in _scopes(lane, tenant):
            found[scope] += count
    return found
