"""Buckets in PostgreSQL: each change is one statement, behind its row's lock.

Row-level security shows one tenant at a time, so a tenant's own bucket is looked for first, and
then the shared one. Every change is repeated until there is an answer: its mark counts once.
"""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.model.keys import checks_keys
from milecastle.ports.buckets import (
    KEPT,
    YEAR,
    Bucket,
    BucketLevel,
    BucketTake,
    Turn,
    WaitingTurn,
    too_much,
)
from milecastle.stores.postgres.claiming import Repeat
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.rows import Row
from milecastle.stores.postgres.statements import Statements

_SECOND = 1_000_000


@checks_keys
class PostgresBuckets:
    def __init__(self, pool: Pool, statements: Statements, retry: Repeat) -> None:
        self._pool = pool
        self._sql = statements
        self._retry = retry

    def put(self, bucket: Bucket) -> None:
        limits = {"rate": bucket.rate, "period": bucket.microseconds, "burst": bucket.burst}
        self._run(self._sql.bucket_put, bucket.tenant, name=bucket.name, **limits)

    def drop(self, tenant: str, name: str) -> bool:
        return bool(self._run(self._sql.bucket_drop, tenant, name=name))

    def levels(self) -> Sequence[BucketLevel]:
        return [_level(row) for row in self._run(self._sql.bucket_levels, "")]

    def take(self, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
        asked = {"amount": amount, "mark": mark, "kept": KEPT, "year": YEAR}
        found = self._change(self._sql.bucket_take, tenant, name, **asked)
        if not found:
            return None
        now, burst, ready_at, granted_at, is_too_much = found[0]
        if is_too_much:
            raise too_much(name, amount, burst)
        return BucketTake(amount, ready_at, granted_at).turn(now)

    def settle(self, tenant: str, name: str, amount: int, mark: str) -> bool:
        asked = {"amount": amount, "mark": mark, "year": YEAR}
        return bool(self._change(self._sql.bucket_settle, tenant, name, **asked))

    def hold(self, tenant: str, name: str, until: int | None, seconds: float) -> bool:
        asked = {"until": until, "wait": round(seconds * _SECOND)}
        return bool(self._change(self._sql.bucket_hold, tenant, name, **asked))

    def waiting(self, tenant: str, marks: str) -> Sequence[WaitingTurn]:
        asked = {"first": marks, "end": f"{marks}\U0010ffff"}
        found = [
            row
            for owner in (tenant, "")
            for row in self._run(self._sql.bucket_waiting, owner, **asked)
        ]
        return [WaitingTurn(name, max(0, at - now) / _SECOND) for at, name, now in sorted(found)]

    def _change(self, query: bytes, tenant: str, name: str, **asked: object) -> list[Row]:
        self._pool.check_open()
        found: list[Row] = []
        for owner in (tenant, ""):
            asked |= {"tenant": owner, "name": name}
            found = found or self._retry(query, asked, owner, self._sql.bucket_lock)
        return found

    def _run(self, query: bytes, tenant: str, **asked: object) -> list[Row]:
        self._pool.check_open()
        return self._retry(query, {"tenant": tenant, **asked}, tenant)


def _level(row: Row) -> BucketLevel:
    tenant, name, rate, period, burst, *rest = row
    bucket = Bucket(tenant=tenant, name=name, rate=rate, period=period / _SECOND, burst=burst)
    return BucketLevel(bucket, *rest)
