"""Durations in fixed buckets, for Prometheus: any thread may add one.

Labels have few values, chosen by us: never the name of a thread, a tenant or a graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Final

from milecastle.fleet.prometheus import Labels, head, sample

QUICK: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG: Final = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""Upper bounds, in seconds: of what a caller waits for, and of work."""


class Histogram:
    """Durations by their labels. Without labels there is one series from the start."""

    def __init__(
        self, name: str, help: str, bounds: Sequence[float], labels: Sequence[str] = ()
    ) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        self._bounds = tuple(bounds)
        self._lock = Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        if not labels:
            self._counts[()], self._sums[()] = self._empty(), 0.0

    def observe(self, seconds: float, *values: str) -> None:
        """Add a duration; one value for each label. A negative one is 0: clocks differ."""
        seconds = max(0.0, seconds)
        with self._lock:
            counts = self._counts.setdefault(values, self._empty())
            counts[bisect_left(self._bounds, seconds)] += 1
            self._sums[values] = self._sums.get(values, 0.0) + seconds

    def lines(self) -> Iterator[str]:
        yield from head(self.name, "histogram", self.help)
        with self._lock:
            found = [(values, list(counts)) for values, counts in sorted(self._counts.items())]
            sums = dict(self._sums)
        for values, counts in found:
            labels: Labels = tuple(zip(self.labels, values, strict=True))
            total = 0
            for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
                total += count
                shown = "+Inf" if bound == float("inf") else repr(bound)
                yield sample(f"{self.name}_bucket", (*labels, ("le", shown)), total)
            yield sample(f"{self.name}_sum", labels, sums[values])
            yield sample(f"{self.name}_count", labels, total)

    def _empty(self) -> list[int]:
        return [0] * (len(self._bounds) + 1)
