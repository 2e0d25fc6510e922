"""Buckets in memory, under the store's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import msgspec.structs

from milecastle.model.keys import checks_keys
from milecastle.ports.buckets import KEPT, Bucket, BucketLevel, BucketTake, Turn, WaitingTurn

BucketPlace = tuple[str, str]


class StoredBuckets:
    """Levels by tenant and name, and turns by that and mark. The caller holds the lock."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.levels: dict[BucketPlace, BucketLevel] = {}
        self.takes: dict[BucketPlace, dict[str, BucketTake]] = {}

    def place(self, tenant: str, name: str) -> BucketPlace | None:
        own = (tenant, name)
        found = own if own in self.levels else ("", name)
        return found if found in self.levels else None

    def take(self, place: BucketPlace, amount: int, mark: str) -> Turn:
        now, takes = self.now(), self.takes.setdefault(place, {})
        self.levels[place], takes[mark] = self.levels[place].take(now, amount, takes.get(mark))
        for other in [name for name, take in takes.items() if take.ready_at < now - KEPT]:
            del takes[other]
        return takes[mark].turn(now) if mark in takes else Turn(now, 0.0)

    def settle(self, place: BucketPlace, amount: int, mark: str) -> None:
        now, takes = self.now(), self.takes.setdefault(place, {})
        if mark not in takes:
            takes[mark] = BucketTake(amount, now, now)
            self.levels[place] = self.levels[place].settled(now, amount)


@checks_keys
class MemoryBuckets:
    def __init__(self, lock: Lock, buckets: StoredBuckets, check: Callable[[], None]) -> None:
        self._lock = lock
        self._buckets = buckets
        self._check = check

    def put(self, bucket: Bucket) -> None:
        with self._lock:
            self._check()
            place = bucket.tenant, bucket.name
            known = self._buckets.levels.get(place) or BucketLevel(bucket)
            self._buckets.levels[place] = msgspec.structs.replace(known, bucket=bucket)

    def drop(self, tenant: str, name: str) -> bool:
        with self._lock:
            self._check()
            self._buckets.takes.pop((tenant, name), None)
            return self._buckets.levels.pop((tenant, name), None) is not None

    def levels(self) -> Sequence[BucketLevel]:
        with self._lock:
            self._check()
            takes, levels = self._buckets.takes, self._buckets.levels
            return [
                msgspec.structs.replace(
                    levels[place],
                    waiting=sum(take.granted_at is None for take in takes.get(place, {}).values()),
                )
                for place in sorted(levels, key=lambda place: place[::-1])
            ]

    def take(self, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
        with self._lock:
            self._check()
            place = self._buckets.place(tenant, name)
            return None if place is None else self._buckets.take(place, amount, mark)

    def settle(self, tenant: str, name: str, amount: int, mark: str) -> bool:
        with self._lock:
            self._check()
            place = self._buckets.place(tenant, name)
            if place is not None:
                self._buckets.settle(place, amount, mark)
        return place is not None

    def hold(self, tenant: str, name: str, until: int | None, seconds: float) -> bool:
        with self._lock:
            self._check()
            place = self._buckets.place(tenant, name)
            if place is not None:
                end = self._buckets.now() + round(seconds * 1_000_000) if until is None else until
                self._buckets.levels[place] = self._buckets.levels[place].held(end)
        return place is not None

    def waiting(self, tenant: str, marks: str) -> Sequence[WaitingTurn]:
        with self._lock:
            self._check()
            now = self._buckets.now()
            found = [
                (take.ready_at, place[1])
                for place, takes in self._buckets.takes.items()
                if place[0] in (tenant, "")
                for mark, take in takes.items()
                if mark.startswith(marks) and take.granted_at is None
            ]
        return [WaitingTurn(name, max(0, at - now) / 1_000_000) for at, name in sorted(found)]
