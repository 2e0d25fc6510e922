"""The contract of long-term memory proves something only if each clause catches a broken store."""

from __future__ import annotations

import pytest

from milecastle.errors import StoreError
from milecastle.ports.store import Store
from milecastle.testing import MemoryContract
from milecastle.testing.contract_memory import memory_clauses
from tests.broken_stores.memory import BROKEN_MEMORIES, BrokenMemory

CAUGHT = (AssertionError, StoreError, pytest.fail.Exception)
CASES = [(store, clause) for store in BROKEN_MEMORIES for clause in store.caught_by]


class Suite(MemoryContract):
    def __init__(self, kind: type[BrokenMemory]) -> None:
        self._kind = kind

    def open_store(self) -> Store:
        return self._kind()

    def reopen(self, store: Store) -> Store:
        return store

    def dump(self, store: Store) -> bytes:
        assert isinstance(store, BrokenMemory)
        return store.dump()

    def run(self, clause: str) -> None:
        getattr(self, clause)(self.open_store())


@pytest.mark.parametrize(("store", "clause"), CASES, ids=[f"{s.__name__}-{c}" for s, c in CASES])
def test_a_broken_store_is_caught(store: type[BrokenMemory], clause: str) -> None:
    with pytest.raises(CAUGHT):
        Suite(store).run(clause)


@pytest.mark.parametrize("clause", memory_clauses())
def test_a_store_that_keeps_its_promises_passes(clause: str) -> None:
    """Fails if the harness itself breaks a promise: then the cases above would prove nothing."""
    Suite(BrokenMemory).run(clause)


def test_every_clause_catches_somebody() -> None:
    assert {clause for _, clause in CASES} == set(memory_clauses())
    assert [store for store in BROKEN_MEMORIES if not store.__doc__] == []
