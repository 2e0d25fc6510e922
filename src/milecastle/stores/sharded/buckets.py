"""Buckets over several databases: all are in the first, as limits are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from milecastle.model.keys import checks_keys
from milecastle.ports.buckets import Bucket, BucketLevel, Turn, WaitingTurn
from milecastle.stores.postgres.shard_member import ShardMember

T = TypeVar("T")


class _Call(Protocol):
    def __call__(self, work: Callable[[ShardMember], T], /) -> T: ...


@checks_keys
class ShardedBuckets:
    def __init__(self, call: _Call) -> None:
        self._call = call

    def put(self, bucket: Bucket) -> None:
        self._call(lambda store: store.buckets.put(bucket))

    def drop(self, tenant: str, name: str) -> bool:
        return self._call(lambda store: store.buckets.drop(tenant, name))

    def levels(self) -> Sequence[BucketLevel]:
        return self._call(lambda store: store.buckets.levels())

    def take(self, tenant: str, name: str, amount: int, mark: str) -> Turn | None:
        return self._call(lambda store: store.buckets.take(tenant, name, amount, mark))

    def settle(self, tenant: str, name: str, amount: int, mark: str) -> bool:
        return self._call(lambda store: store.buckets.settle(tenant, name, amount, mark))

    def hold(self, tenant: str, name: str, until: int | None, seconds: float) -> bool:
        return self._call(lambda store: store.buckets.hold(tenant, name, until, seconds))

    def waiting(self, tenant: str, marks: str) -> Sequence[WaitingTurn]:
        return self._call(lambda store: store.buckets.waiting(tenant, marks))
