"""Buckets: a resource's use by runs per time, such as a model's requests or tokens.

Rules for every store with this port, checked by ``milecastle.testing.BucketContract``:

1. A bucket belongs to a tenant, or is shared by all (the empty tenant). A tenant's own comes before
   a shared one of the same name.
2. ``take`` grants an amount at once, or promises a turn: in the order of arrival, each after those
   promised before. Of takers who meet, each gets another place.
3. What is granted within any time is at most ``rate`` for that time, and ``burst``. Only the
   store's clock counts.
4. A ``mark`` takes once: again, it gets what it got. A promise is granted to a ``take`` that comes
   when it is ready. If what was left is gone (others were late, too), it is promised another turn.
5. ``settle`` corrects what was granted: a negative amount is given back to those who come next, a
   positive one is taken from them. It does so once for each mark.
6. ``hold`` empties a bucket until a time: a provider said when it answers again.
7. A changed rate holds for every call after it. A removed bucket is forgotten with its turns.
8. Marks are remembered for ``KEPT`` after their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeGuard

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.model.keys import SUBGRAPH, ThreadKey, check_name

KEPT: Final = 86_400_000_000
"""For how long after its turn a mark is remembered: a day, in microseconds."""
MOST: Final = 2**31 - 1
YEAR: Final = 365 * 86_400_000_000
_SECOND: Final = 1_000_000
_MAX_NAME_BYTES: Final = 128


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """``rate`` units per ``period`` seconds, and ``burst`` of them at once; for all if no tenant.

    Without ``burst``, a tenth of the rate may be taken at once.
    """

    name: str
    tenant: str = ""
    rate: int
    period: float = 1.0
    burst: int = 0

    def __post_init__(self) -> None:
        check_bucket(self.name)
        if self.tenant:
            ThreadKey(self.tenant, "thread")
        if not _is_whole(self.rate) or not 1 <= self.rate <= MOST:
            raise InvalidRequest(f"a rate must be a whole number of at least 1, not {self.rate}")
        if not 0.001 <= self.period <= 86_400:
            raise InvalidRequest(
                f"a period must be between 0.001 and 86400 seconds, not {self.period}"
            )
        if not self.burst:
            msgspec.structs.force_setattr(self, "burst", max(1, self.rate // 10))
        is_number = _is_whole(self.burst) and 1 <= self.burst <= MOST
        if not is_number or self.time_of(self.burst) == YEAR:
            raise InvalidRequest(
                "a burst must be a whole number of at least 1 and come back within a year, not "
                f"{self.burst}"
            )

    @property
    def microseconds(self) -> int:
        """The period, as stored."""
        return round(self.period * _SECOND)

    def time_of(self, amount: int) -> int:
        """How long an amount takes to come back, in microseconds."""
        return min(-(-amount * self.microseconds // self.rate), YEAR)


class BucketTake(msgspec.Struct, frozen=True):
    """A mark's turn: when it is ready, and when it was granted."""

    amount: int
    ready_at: int
    granted_at: int | None = None

    def turn(self, now: int) -> Turn:
        """The turn as its taker sees it."""
        wait = 0.0 if self.granted_at is not None else max(1, self.ready_at - now) / _SECOND
        return Turn(self.ready_at, wait)


class Turn(NamedTuple):
    """When a taker's turn is, and in how many seconds; 0 if the amount was granted."""

    ready_at: int
    wait: float


class WaitingTurn(NamedTuple):
    """A turn promised and not granted yet, and in how many seconds it is."""

    bucket: str
    wait: float


class BucketLevel(msgspec.Struct, frozen=True):
    """A bucket with what was promised and granted: until when either fills it, in microseconds.

    ``waiting`` turns were promised and not granted yet.
    """

    bucket: Bucket
    promised: int = 0
    granted: int = 0
    waiting: int = 0

    def left(self, now: int) -> int:
        """How much may be granted at once."""
        spent = max(0, self.granted - now) * self.bucket.rate / self.bucket.microseconds
        return max(0, int(self.bucket.burst - spent))

    def backlog(self, now: int) -> float:
        """Seconds until the next taker has a turn for the whole burst."""
        return max(0, max(self.promised, self.granted) - now) / _SECOND

    def take(
        self, now: int, amount: int, known: BucketTake | None
    ) -> tuple[BucketLevel, BucketTake]:
        """Grant an amount, or promise it; ``known`` is the mark's turn, if it has one."""
        if known is not None and (known.granted_at is not None or now < known.ready_at):
            return self, known
        bucket = self.bucket
        if amount > bucket.burst:
            raise too_much(bucket.name, amount, bucket.burst)
        room = bucket.time_of(bucket.burst)
        spent = max(self.granted, now) + bucket.time_of(amount)
        given = max(self.promised, self.granted, now) + bucket.time_of(amount)
        if (given if known is None else spent) - room <= now:
            promised = given if known is None else self.promised
            changed = msgspec.structs.replace(self, promised=promised, granted=spent)
            return changed, BucketTake(amount, now, now)
        return msgspec.structs.replace(self, promised=given), BucketTake(amount, given - room)

    def settled(self, now: int, amount: int) -> BucketLevel:
        """The bucket with so much more granted, or less."""
        if amount > 0:
            spent = max(self.granted, now) + self.bucket.time_of(amount)
            return msgspec.structs.replace(self, granted=spent)
        back = self.bucket.time_of(-amount)
        return msgspec.structs.replace(
            self, promised=max(0, self.promised - back), granted=max(0, self.granted - back)
        )

    def held(self, until: int) -> BucketLevel:
        """The bucket, empty until a time."""
        full = until + self.bucket.time_of(self.bucket.burst)
        return msgspec.structs.replace(self, granted=max(self.granted, full))


class Buckets(Protocol):
    """A store's buckets. ``tenant`` is the caller's, whose own buckets come first."""

    def put(self, bucket: Bucket) -> None:
        """Set a bucket, replacing the one with its name and tenant; what was taken stays taken."""
        ...

    def drop(self, tenant: str, name: str) -> bool:
        """Remove a tenant's bucket, or a shared one; ``False`` if there is none."""
        ...

    def levels(self) -> Sequence[BucketLevel]:
        """All buckets, by name and tenant. With row-level security: those shared by all."""
        ...

    def take(self, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
        """Take an amount, or get a turn; ``None`` without such a bucket.

        ``InvalidRequest`` if it is more than the burst: it could never be granted.
        """
        ...

    def settle(self, tenant: str, name: str, amount: int, mark: str) -> bool:
        """Correct what was taken by an amount; ``False`` without such a bucket."""
        ...

    def hold(self, tenant: str, name: str, until: int | None, seconds: float) -> bool:
        """Grant nothing until a time, in microseconds, or for some seconds."""
        ...

    def waiting(self, tenant: str, marks: str) -> Sequence[WaitingTurn]:
        """Turns not yet granted of marks that begin so, in the order they are ready."""
        ...


class _Offers(Protocol):
    @property
    def buckets(self) -> Buckets | None: ...


def marks_of(key: ThreadKey) -> str:
    """The mark prefix for a thread's turns and its subgraphs'."""
    from hashlib import sha256

    root = key.thread.partition(SUBGRAPH)[0]
    text = f"{len(key.tenant)}:{key.tenant}{root}"
    return sha256(text.encode()).hexdigest()[:24] + "/"


def require_buckets(found: Buckets | None) -> Buckets:
    if found is None:
        raise InvalidRequest(
            "buckets need a store that has them: compile(store='sqlite:///...') or "
            "'postgresql://...'"
        )
    return found


def bucket_levels(store: _Offers) -> Sequence[BucketLevel]:
    return () if store.buckets is None else store.buckets.levels()


def check_bucket(name: object) -> None:
    check_name("bucket", name, _MAX_NAME_BYTES)


def check_amount(amount: object, least: int) -> None:
    if not _is_whole(amount) or not least <= amount <= MOST:
        given = amount if isinstance(amount, int) else type(amount).__name__
        raise InvalidRequest(f"an amount is a whole number from {least}, not {given}")


def _is_whole(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool)


def too_much(name: str, amount: int, burst: int) -> InvalidRequest:
    return InvalidRequest(
        f"bucket '{name}' grants at most {burst} at once, so {amount} would wait forever: take "
        f"less, or raise its burst: milecastle queue bucket '{name}' --burst {amount}"
    )
