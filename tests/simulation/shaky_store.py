"""A store for simulations: it fails at times, and notes who wrote what and who knows what.

The faults are those that real stores have: nothing is written and ``Unavailable`` is raised, or
all is written and ``Unavailable`` is raised all the same. Conflicts are real ones.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from milecastle.errors import StoreError, Unavailable
from milecastle.model.checkpoint import HOLDING, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Chain, Opened, Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing.faulty_stores import Volatile, WrappedStore

__all__ = ["ShakyStore", "Writer"]


class Writer(msgspec.Struct, eq=False):
    """A process, as its writes show it. ``said`` is what it brings to the thread."""

    said: Any = None
    known: dict[ThreadKey, int] = {}
    failed: set[ThreadKey] = set()
    in_node: bool = False


class ShakyStore(WrappedStore):
    """Wraps a store. ``writer`` is the current caller; without one nothing fails.

    ``entries_by_id`` are all that were written, ``brought`` what their writers had to say,
    ``kept`` and ``steps`` what is durable of the step that each thread is in, acknowledged or not.
    """

    def __init__(self, store: Store | None = None) -> None:
        super().__init__(store or MemoryStore())
        self.reset(Random(0), 0.0)

    def reset(self, random: Random, chance: float, store: Store | None = None) -> None:
        """Begin again with an empty store; ``chance`` is how often a call fails."""
        self._store = store or MemoryStore()
        self._random = random
        self._chance = chance
        self.writer: Writer | None = None
        self.heads: dict[ThreadKey, int] = {}
        self.entries_by_id: dict[str, Entry] = {}
        self.keys_by_id: dict[str, ThreadKey] = {}
        self.brought: dict[str, Any] = {}
        self.kept: dict[ThreadKey, set[str]] = {}
        self.steps: dict[ThreadKey, int] = {}
        self.wrong: list[str] = []

    def calm(self) -> None:
        """Fail no more."""
        self._chance = 0.0

    def crash(self) -> None:
        """A process died."""
        store: object = self._store
        if isinstance(store, Volatile):
            store.crash()

    def commit(self, batch: Batch) -> None:
        """Pass the batch on, unless it is time for a fault."""
        writer = self.writer
        if writer is None:
            self._write(batch)
            return
        if batch.key in writer.failed:
            self.wrong.append("a run wrote again after a commit that failed")
        try:
            self._try(batch)
        except StoreError:
            if not writer.in_node:
                writer.failed.add(batch.key)
            raise
        writer.known[batch.key] = batch.head + len(batch.entries)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain, unless it is time for a fault."""
        self._try_to_read()
        chain = self._store.read(key, seq)
        if seq is None:
            self._note_head(key, chain)
        return chain

    def open(self, key: ThreadKey) -> Opened | None:
        """The chain and the record of the head, unless it is time for a fault."""
        self._try_to_read()
        found = self._store.open(key)
        self._note_head(key, found and found.chain)
        return found

    def _try_to_read(self) -> None:
        if self.writer is not None and self._random.random() < self._chance / 4:
            raise Unavailable("reading failed on purpose")

    def _note_head(self, key: ThreadKey, chain: Chain | None) -> None:
        if self.writer is not None:
            self.writer.known[key] = chain.entries[-1].seq if chain else 0

    def is_fenced(self, key: ThreadKey) -> bool:
        """Whether another writer wrote to the thread since the caller last looked."""
        known = 0 if self.writer is None else self.writer.known.get(key, 0)
        return known != self.heads.get(key, 0)

    def _try(self, batch: Batch) -> None:
        fails = self._random.random() < self._chance
        if fails and self._random.randint(0, 1):
            raise Unavailable("a commit failed on purpose (refused)")
        self._write(batch)
        if fails:
            raise Unavailable("a commit failed on purpose (unknown)")

    def _write(self, batch: Batch) -> None:
        self._store.commit(batch)
        key = batch.key
        if batch.head != self.heads.get(key, 0):
            self.wrong.append("a write was accepted from a writer that was superseded")
        kept = self.kept.setdefault(key, set())
        for entry in batch.entries:
            if entry.id in self.entries_by_id:
                self.wrong.append("a checkpoint was committed twice")
            self.entries_by_id[entry.id], self.keys_by_id[entry.id] = entry, key
            self.heads[key] = entry.seq
            self.steps[key] = entry.step
            if self.writer is not None and entry.source in ("answer", "update"):
                self.brought[entry.id] = self.writer.said
            if entry.source not in HOLDING:
                kept.clear()
        kept.update(result.task for result in batch.results)
