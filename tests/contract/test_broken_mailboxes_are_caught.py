"""The contract of mailboxes proves something only if each clause catches a store that breaks it."""

from __future__ import annotations

import pytest

from milecastle.errors import StoreError
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import MailboxContract
from milecastle.testing.contract_mailbox import mailbox_clauses
from tests.broken_stores.mailbox import BROKEN_MAILBOXES, BrokenMailbox

CAUGHT = (AssertionError, StoreError, pytest.fail.Exception)
CASES = [(store, clause) for store in BROKEN_MAILBOXES for clause in store.caught_by]


class Suite(MailboxContract):
    def __init__(self, kind: type[MemoryStore]) -> None:
        self._kind = kind

    def open_store(self) -> ClaimStore:
        return self._kind()

    def reopen(self, store: Store) -> ClaimStore:
        assert isinstance(store, MemoryStore)
        return store

    def run(self, clause: str) -> None:
        getattr(self, clause)(self.open_store())


@pytest.mark.parametrize(("store", "clause"), CASES, ids=[f"{s.__name__}-{c}" for s, c in CASES])
def test_a_broken_store_is_caught(store: type[BrokenMailbox], clause: str) -> None:
    with pytest.raises(CAUGHT):
        Suite(store).run(clause)


def test_every_clause_catches_somebody() -> None:
    assert {clause for _, clause in CASES} == set(mailbox_clauses())
    assert [store for store in BROKEN_MAILBOXES if not store.__doc__] == []
