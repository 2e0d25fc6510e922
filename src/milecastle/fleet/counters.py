from __future__ import annotations

from collections import defaultdict
from threading import Lock


class Counters:
    """Totals by name, and by label if they have one. Any thread may add."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._totals: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def add(self, name: str, amount: float = 1.0, *, label: str = "") -> None:
        with self._lock:
            totals = self._totals[name]
            totals[label] = totals.get(label, 0.0) + amount

    def totals(self, name: str) -> dict[str, float]:
        with self._lock:
            return dict(self._totals[name])
