"""Buckets in SQLite: each call is one transaction, which holds the writers' lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec.structs

from milecastle.model.keys import checks_keys
from milecastle.ports.buckets import KEPT, Bucket, BucketLevel, BucketTake, Turn, WaitingTurn
from milecastle.stores.sqlite.connections import Connections
from milecastle.stores.sqlite.rows import Row, checked, summed
from milecastle.stores.sqlite.transaction import Transaction

_SECOND = 1_000_000


@checks_keys
class SqliteBuckets:
    def __init__(self, connections: Connections, path: str, now: Callable[[], int]) -> None:
        self._connections = connections
        self._path = path
        self._now = now

    def put(self, bucket: Bucket) -> None:
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self._path)
            known = _find(transaction, bucket.tenant, bucket.name)
            if known is None or known.bucket.tenant != bucket.tenant:
                known = BucketLevel(bucket)
            _put(transaction, msgspec.structs.replace(known, bucket=bucket))

    def drop(self, tenant: str, name: str) -> bool:
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self._path)
            transaction.run("drop_bucket_takes", (tenant, name, 2**63 - 1))
            return transaction.one("drop_bucket", (tenant, name)) is not None

    def levels(self) -> Sequence[BucketLevel]:
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self._path)
            with transaction.reading("buckets"):
                found = [_level(row) for row in transaction.all("buckets", ())]
            return [msgspec.structs.replace(one, waiting=_count(transaction, one)) for one in found]

    def take(self, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
        with self._connections.writing() as cursor:
            transaction, now = Transaction(cursor, self._path), self._now()
            level = _find(transaction, tenant, name)
            if level is None:
                return None
            known = _take(transaction, (level.bucket.tenant, name, mark))
            changed, take = level.take(now, amount, known)
            if take != known:
                _put(transaction, changed)
                _put_take(transaction, changed, mark, take)
                own = level.bucket.tenant, name, now - KEPT
                transaction.run("drop_bucket_takes", own)
            return take.turn(now)

    def settle(self, tenant: str, name: str, amount: int, mark: str) -> bool:
        with self._connections.writing() as cursor:
            transaction, now = Transaction(cursor, self._path), self._now()
            level = _find(transaction, tenant, name)
            if level is None:
                return False
            if _take(transaction, (level.bucket.tenant, name, mark)) is None:
                _put(transaction, level.settled(now, amount))
                _put_take(transaction, level, mark, BucketTake(amount, now, now))
            return True

    def hold(self, tenant: str, name: str, until: int | None, seconds: float) -> bool:
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self._path)
            level = _find(transaction, tenant, name)
            if level is not None:
                end = self._now() + round(seconds * _SECOND) if until is None else until
                _put(transaction, level.held(end))
            return level is not None

    def waiting(self, tenant: str, marks: str) -> Sequence[WaitingTurn]:
        asked = tenant, marks, f"{marks}\U0010ffff"
        with self._connections.reading(whole=False) as cursor:
            transaction, now = Transaction(cursor, self._path), self._now()
            with transaction.reading("bucket_takes"):
                found = [checked(row) for row in transaction.all("bucket_waiting", asked)]
        return [WaitingTurn(row[1], max(0, row[4] - now) / _SECOND) for row in found]


def _find(transaction: Transaction, tenant: str, name: str) -> BucketLevel | None:
    with transaction.reading("buckets"):
        row = transaction.one("bucket", (tenant, name))
        return None if row is None else _level(row)


def _level(row: Row) -> BucketLevel:
    tenant, name, rate, period, burst, promised, granted = checked(row)
    bucket = Bucket(tenant=tenant, name=name, rate=rate, period=period / _SECOND, burst=burst)
    return BucketLevel(bucket, promised, granted)


def _put(transaction: Transaction, level: BucketLevel) -> None:
    own = level.bucket
    limits = own.tenant, own.name, own.rate, own.microseconds, own.burst
    transaction.run("put_bucket", summed((*limits, level.promised, level.granted)))


def _count(transaction: Transaction, level: BucketLevel) -> int:
    own = level.bucket.tenant, level.bucket.name
    found = transaction.one("count_bucket_waiting", own)
    return int(found[0]) if found else 0


def _take(transaction: Transaction, place: Row) -> BucketTake | None:
    with transaction.reading("bucket_takes"):
        row = transaction.one("bucket_take", place)
        return None if row is None else BucketTake(*checked(row)[3:])


def _put_take(transaction: Transaction, level: BucketLevel, mark: str, take: BucketTake) -> None:
    values = take.amount, take.ready_at, take.granted_at
    row = summed((level.bucket.tenant, level.bucket.name, mark, *values))
    transaction.run("put_bucket_take", row)
