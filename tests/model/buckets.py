"""Buckets in histories: what was granted and settled, as the store's own clock shows it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from milecastle.ports.buckets import Bucket, Turn

__all__ = ["BUCKET", "TAKE_ACTS", "NotedBuckets", "random_buckets"]

BUCKET = "calls"
TAKE_ACTS = (
    *("take", "take", "take-fail1", "take-ask", "take-once", "sleep-take", "fail1-take"),
    *("spare", "spare-fail1", "over", "take-spare"),
)
"""``spare`` takes two and gives one back, ``over`` takes one and then one more."""


def random_buckets(random: Random) -> list[Bucket]:
    """A bucket for all, and perhaps one that a tenant has for itself."""
    owners = ("", "tenant0") if random.random() < 0.3 else ("",)
    return [
        Bucket(
            name=BUCKET, tenant=owner, rate=random.choice((1, 2, 5)), burst=random.choice((2, 3))
        )
        for owner in owners
    ]


class NotedBuckets:
    """The buckets of a store; what it answers is noted.

    What is given back is noted before and after: between is when it counts.
    """

    def __init__(
        self, buckets: Any, now: Callable[[], int], note: Callable[[str, str], object]
    ) -> None:
        self._buckets = buckets
        self._now = now
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buckets, name)

    def take(self, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
        found: Turn | None = self._buckets.take(tenant, name, amount, mark)
        if found is not None and not found.wait:
            self._note("granted", f"{mark}={tenant} {amount} {found.ready_at}")
        return found

    def settle(self, tenant: str, name: str, amount: int, mark: str) -> bool:
        self._note("settling", f"{mark}={tenant} {amount} {self._now()}")
        found: bool = self._buckets.settle(tenant, name, amount, mark)
        self._note("settled", f"{mark}={tenant} {amount} {self._now()}")
        return found
