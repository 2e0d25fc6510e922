"""A contract proves something only if it catches those who break it, clause by clause."""

from __future__ import annotations

import pytest

from milecastle.errors import StoreError
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import StoreContract
from milecastle.testing.store_contract import clauses
from tests.broken_stores.every import BROKEN_STORES, BrokenStore

CAUGHT = (AssertionError, StoreError, pytest.fail.Exception)
"""How a clause says no. Anything else is a defect of the broken store itself."""

CASES = [(store, clause) for store in BROKEN_STORES for clause in store.caught_by]


class Suite(StoreContract):
    def __init__(self, kind: type[MemoryStore]) -> None:
        self._kind = kind

    def open_store(self) -> Store:
        return self._kind()

    def reopen(self, store: Store) -> Store:
        return store.crashed() if isinstance(store, BrokenStore) else store

    def run(self, clause: str) -> None:
        getattr(self, clause)(self.open_store())


@pytest.mark.parametrize(("store", "clause"), CASES, ids=[f"{s.__name__}-{c}" for s, c in CASES])
def test_a_broken_store_is_caught(
    store: type[BrokenStore], clause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody reads here how two lists differ, and in CI pytest takes minutes to explain some.
    monkeypatch.setattr("_pytest.assertion.util._reprcompare", None)
    with pytest.raises(CAUGHT):
        Suite(store).run(clause)


@pytest.mark.parametrize("clause", clauses())
def test_the_sound_store_is_not_caught(clause: str) -> None:
    Suite(MemoryStore).run(clause)


def test_every_clause_catches_somebody() -> None:
    assert {clause for _, clause in CASES} == set(clauses())


def test_every_broken_store_says_who_catches_it() -> None:
    assert len(BROKEN_STORES) > 70
    assert [store for store in BROKEN_STORES if not (store.__doc__ and store.caught_by)] == []
