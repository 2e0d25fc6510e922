"""Hooks a store implements for the contract, and the base for every clause."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store, require_capabilities


class ContractHooks(ABC):
    """The two hooks.

    A test file subclasses ``StoreContract`` as ``Test...`` and implements them.
    """

    @abstractmethod
    def open_store(self) -> Store:
        """Open a fresh, empty store sharing nothing with any other."""

    @abstractmethod
    def reopen(self, store: Store) -> Store:
        """Open the same data again, as after a crash: ``store`` was not closed before.

        A store in memory returns itself.
        """

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        """One test's store; it is closed afterwards."""
        store = self.open_store()
        require_capabilities(store)
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def reopened(self, store: Store) -> Generator[Store, None, None]:
        """The store after a crash; closed afterwards."""
        again = self.reopen(store)
        try:
            yield again
        finally:
            again.close()


def everything_of(store: Store, key: ThreadKey) -> dict[str, Any]:
    history = list(store.history(key))
    chains = [store.read(key, entry.seq) for entry in history]
    head = store.read(key)
    runs = list(store.runs(key))
    return {
        "history": history,
        "entries": list(store.entries(key)),
        "chains": [chain.entries if chain else None for chain in chains],
        "located": [store.locate(key, entry.id) for entry in history],
        "head": head.entries[-1] if head else None,
        "results": sorted(head.results, key=lambda result: result.task) if head else [],
        "newest": store.head(key),
        "opened": opened.record if (opened := store.open(key)) else None,
        "rows": sorted(store.results(key), key=lambda result: result.task),
        "state": store.read_state(key),
        "runs": runs,
        "found": [store.run(key, run.run_id) for run in runs],
        "failures": [store.failure(key, run.run_id) for run in runs],
        "thread": store.thread(key),
        "threads": list(store.threads(key.tenant)),
        **_tags_of(store, key),
    }


def _tags_of(store: Store, key: ThreadKey) -> dict[str, Any]:
    if store.tags is None:
        return {}
    tags = store.tags.of(key.tenant, [key.thread]).get(key.thread, ())
    listed = [store.tags.threads(key.tenant, tag) for tag in tags]
    return {"tags": list(tags), "tagged": [info for found in listed for info in found]}
