"""Stores that break a promise on buckets. ``BucketContract`` must catch each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec.structs

from milecastle.ports.buckets import Bucket, BucketLevel, BucketTake, Turn, WaitingTurn
from milecastle.stores.memory.buckets import BucketPlace, MemoryBuckets, StoredBuckets
from tests.broken_stores.store import BrokenStore

__all__ = ["BROKEN_BUCKETS", "BrokenBuckets"]

Known = BucketTake | None
Decided = tuple[BucketLevel, BucketTake]


class BrokenBuckets(BrokenStore):
    """The memory store, with ways round the rules of buckets."""

    Own: ClassVar[type[StoredBuckets]] = StoredBuckets
    Calls: ClassVar[type[MemoryBuckets]] = MemoryBuckets

    def __init__(self, *, now: Callable[[], int] | None = None) -> None:
        super().__init__(now=now)
        self._buckets = self.Own(self._claims.now)

    @property
    def buckets(self) -> MemoryBuckets:
        return self.Calls(self._lock, self._buckets, self._check_open)


class _Takes(StoredBuckets):
    """Takes by another rule."""

    def decide(self, level: BucketLevel, now: int, amount: int, known: Known) -> Decided:
        raise NotImplementedError

    def take(self, place: BucketPlace, amount: int, mark: str) -> Turn:
        now, takes = self.now(), self.takes.setdefault(place, {})
        level = self.levels[place]
        self.levels[place], takes[mark] = self.decide(level, now, amount, takes.get(mark))
        return takes[mark].turn(now)


class WindowByTheMinute(
    BrokenBuckets,
    caught_by=(
        "test_turns_come_in_the_order_of_arrival",
        "test_late_takers_do_not_exceed_the_rate",
    ),
):
    """Counts from the beginning of each period, so that all wait for the same moment."""

    class Own(_Takes):
        def decide(self, level: BucketLevel, now: int, amount: int, known: Known) -> Decided:
            if known is not None and (known.granted_at or now < known.ready_at):
                return level, known
            period = level.bucket.microseconds
            begun = now - now % period
            used = level.granted if level.promised == begun else 0
            if used + amount <= level.bucket.rate:
                changed = msgspec.structs.replace(level, promised=begun, granted=used + amount)
                return changed, BucketTake(amount, now, now)
            return level, BucketTake(amount, begun + period)


class TwoStatements(
    BrokenBuckets,
    caught_by=(
        "test_takers_who_meet_get_different_turns",
        "test_racers_with_one_mark_take_once",
    ),
):
    """Reads the bucket, decides, and writes it: others may have done so between the two."""

    class Calls(MemoryBuckets):
        def take(self, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
            with self._lock:
                place = self._buckets.place(tenant, name)
                if place is None:
                    return None
                takes = self._buckets.takes.setdefault(place, {})
                level, known, now = (
                    self._buckets.levels[place],
                    takes.get(mark),
                    self._buckets.now(),
                )
            time.sleep(0.001)
            with self._lock:
                self._buckets.levels[place], takes[mark] = level.take(now, amount, known)
                return takes[mark].turn(now)


class ForgetsMarks(BrokenBuckets, caught_by=("test_a_mark_takes_once",)):
    """Takes again for a mark that was granted."""

    class Own(_Takes):
        def decide(self, level: BucketLevel, now: int, amount: int, known: Known) -> Decided:
            return level.take(now, amount, None)


class GrantsEarly(BrokenBuckets, caught_by=("test_a_turn_is_granted_when_it_is_ready",)):
    """Grants what it promised to whoever asks again."""

    class Own(_Takes):
        def decide(self, level: BucketLevel, now: int, amount: int, known: Known) -> Decided:
            if known is not None and known.granted_at is None:
                return level, BucketTake(amount, now, now)
            return level.take(now, amount, known)


class GrantsWhatIsLate(
    BrokenBuckets,
    caught_by=(
        "test_late_takers_do_not_exceed_the_rate",
        "test_what_was_taken_more_delays_turns",
        "test_a_held_bucket_grants_nothing_until_its_time",
    ),
):
    """Grants each turn once its time has come, however many come then."""

    class Own(_Takes):
        def decide(self, level: BucketLevel, now: int, amount: int, known: Known) -> Decided:
            if known is not None and known.granted_at is None and known.ready_at <= now:
                return level, BucketTake(amount, now, now)
            return level.take(now, amount, known)


class NoPlaces(BrokenBuckets, caught_by=("test_turns_come_in_the_order_of_arrival",)):
    """Promises the first time at which something is left, to all who wait."""

    class Own(_Takes):
        def decide(self, level: BucketLevel, now: int, amount: int, known: Known) -> Decided:
            changed, take = level.take(now, amount, known)
            return msgspec.structs.replace(changed, promised=0), take


class SettlesAgain(BrokenBuckets, caught_by=("test_a_settled_amount_counts_once",)):
    """Corrects once more for a mark that was settled."""

    class Own(StoredBuckets):
        def settle(self, place: BucketPlace, amount: int, mark: str) -> None:
            self.takes.setdefault(place, {}).pop(mark, None)
            super().settle(place, amount, mark)


class TakesNoMore(BrokenBuckets, caught_by=("test_what_was_taken_more_delays_turns",)):
    """Gives back what was not used, and forgets what was used beyond the estimate."""

    class Own(StoredBuckets):
        def settle(self, place: BucketPlace, amount: int, mark: str) -> None:
            super().settle(place, min(0, amount), mark)


class HoldsOnlyNewcomers(
    BrokenBuckets, caught_by=("test_a_held_bucket_grants_nothing_until_its_time",)
):
    """Moves the turns of those that come after a 429, and not of those that wait."""

    class Calls(MemoryBuckets):
        def hold(self, tenant: str, name: str, until: int | None, seconds: float) -> bool:
            place = self._buckets.place(tenant, name)
            if place is not None:
                level = self._buckets.levels[place]
                end = self._buckets.now() + round(seconds * 1_000_000) if until is None else until
                self._buckets.levels[place] = msgspec.structs.replace(
                    level, promised=max(level.promised, level.held(end).granted)
                )
            return place is not None


class OneForAll(
    BrokenBuckets, caught_by=("test_a_tenant_has_its_own_buckets_and_the_shared_ones",)
):
    """Finds a bucket by its name, whosever it is."""

    class Own(StoredBuckets):
        def place(self, tenant: str, name: str) -> BucketPlace | None:
            return next((place for place in sorted(self.levels) if place[1] == name), None)


class BeginsAnew(BrokenBuckets, caught_by=("test_buckets_are_listed_as_they_were_set",)):
    """Forgets what was taken when a bucket is set again."""

    class Calls(MemoryBuckets):
        def put(self, bucket: Bucket) -> None:
            self._buckets.levels[bucket.tenant, bucket.name] = BucketLevel(bucket)


class KeepsTurns(BrokenBuckets, caught_by=("test_a_removed_bucket_is_forgotten",)):
    """Removes a bucket, but not what was promised from it."""

    class Calls(MemoryBuckets):
        def drop(self, tenant: str, name: str) -> bool:
            return self._buckets.levels.pop((tenant, name), None) is not None


class PromisesForever(BrokenBuckets, caught_by=("test_more_than_the_burst_is_refused",)):
    """Promises a turn for more than the bucket ever holds."""

    class Own(_Takes):
        def decide(self, level: BucketLevel, now: int, amount: int, known: Known) -> Decided:
            if amount > level.bucket.burst:
                return level, BucketTake(amount, now + 1_000_000)
            return level.take(now, amount, known)


class ListsAllWaiting(BrokenBuckets, caught_by=("test_waiting_turns_are_found_by_their_marks",)):
    """Lists the turns of every mark."""

    class Calls(MemoryBuckets):
        def waiting(self, tenant: str, marks: str) -> Sequence[WaitingTurn]:
            return super().waiting(tenant, "")


def _buckets() -> list[type[BrokenBuckets]]:
    known = [store for store in BrokenStore.known if issubclass(store, BrokenBuckets)]
    return sorted(known, key=lambda store: store.__name__)


BROKEN_BUCKETS = _buckets()
