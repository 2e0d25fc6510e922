"""A store that is broken on purpose: what the broken stores have in common.

Each of them is the memory store with one promise broken, and names the clauses of the contract
that must catch it. A clause that catches nobody proves nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

from milecastle.model.checkpoint import DELTA, HOLDING
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore

__all__ = ["BrokenStore"]


class BrokenStore(MemoryStore):
    """The memory store, with ways round its own guards."""

    caught_by: ClassVar[tuple[str, ...]] = ()
    seen_by_model: ClassVar[bool] = False
    known: ClassVar[list[type[BrokenStore]]] = []

    def __init_subclass__(
        cls, *, caught_by: tuple[str, ...] = (), seen_by_model: bool = False, **rest: Any
    ) -> None:
        """Note which clauses catch this store, and whether the state machine sees it too."""
        super().__init_subclass__(**rest)
        cls.caught_by = caught_by
        cls.seen_by_model = seen_by_model
        if caught_by:
            BrokenStore.known.append(cls)

    def crashed(self) -> Store:
        """The store as after a crash."""
        return self

    def force(self, batch: Batch) -> None:
        """Write a batch without looking at the head."""
        if batch.key not in self._logs:
            super().commit(Batch(key=batch.key, head=0))
        log = self._logs[batch.key]
        for entry in batch.entries:
            log.entries.append(entry)
            if entry.kind != DELTA:
                log.cuts.append(entry.seq)
            if entry.source not in HOLDING:
                log.results = {}
        log.results.update((result.task, result) for result in batch.results)
        log.runs.update((run.run_id, run) for run in batch.runs)
        if batch.failure is not None:
            log.failures[batch.failure.run_id] = batch.failure
        if batch.manifest is not None:
            self._manifests[batch.key.tenant, batch.manifest[0]] = batch.manifest[1]
