"""The contract of buckets proves something only if each clause catches a broken store."""

from __future__ import annotations

import pytest

from milecastle.errors import StoreError
from milecastle.ports.store import Store
from milecastle.testing import BucketContract
from milecastle.testing.contract_buckets import bucket_clauses
from tests.broken_stores.buckets import BROKEN_BUCKETS, BrokenBuckets

CAUGHT = (AssertionError, StoreError, pytest.fail.Exception)
CASES = [(store, clause) for store in BROKEN_BUCKETS for clause in store.caught_by]


class Suite(BucketContract):
    def __init__(self, kind: type[BrokenBuckets]) -> None:
        self._kind = kind

    def open_store(self) -> Store:
        return self._kind()

    def reopen(self, store: Store) -> Store:
        return store

    def run(self, clause: str) -> None:
        getattr(self, clause)(self.open_store())


@pytest.mark.parametrize(("store", "clause"), CASES, ids=[f"{s.__name__}-{c}" for s, c in CASES])
def test_a_broken_store_is_caught(store: type[BrokenBuckets], clause: str) -> None:
    with pytest.raises(CAUGHT):
        Suite(store).run(clause)


@pytest.mark.parametrize("clause", bucket_clauses())
def test_a_store_that_keeps_its_promises_passes(clause: str) -> None:
    """Fails if the harness itself breaks a promise: then the cases above would prove nothing."""
    Suite(BrokenBuckets).run(clause)


def test_every_clause_catches_somebody() -> None:
    assert {clause for _, clause in CASES} == set(bucket_clauses())
    assert [store for store in BROKEN_BUCKETS if not store.__doc__] == []
