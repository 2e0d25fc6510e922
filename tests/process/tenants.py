"""Tenants that use one store in turn, and an intruder that looks for what is not its own.

All tenants have threads of the same names, and everything that they write has its own ids. A
call may fail at any moment without an answer; then it is found out by reading what became of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from milecastle.errors import Conflict, Unavailable
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.testing.entries import Writer, a_failure, a_run, an_entry

TENANTS = ("alpha", "Alpha", "ga'mma", "a/b", "a_b", "\U0001f3f0", "cafe\u0301", "caf\u00e9")
THREADS = ("shared", "a/b", "a_b")
T = TypeVar("T")


class Tenants:
    """Acts for random tenants and counts what one of them could see of another."""

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._chance = random.Random(seed)
        self._count = 0
        keys = [ThreadKey(tenant, thread) for tenant in TENANTS for thread in THREADS]
        self._writers = {key: self._new(key) for key in keys}
        self._runs: dict[ThreadKey, list[str]] = {key: [] for key in keys}
        self.unanswered = 0
        self.foreign: list[str] = []

    def act(self) -> None:
        """Let one tenant do one thing, and look for what is not theirs."""
        key = self._chance.choice(list(self._writers))
        match self._chance.randrange(20):
            case 0:
                self._delete(key)
            case 1 | 2:
                self._record(key)
            case 3 | 4 | 5:
                self._be_refused(key)
            case 6:
                manifest = self._batch(key, manifest=("f", key.tenant.encode()))
                self._commit(manifest, lambda: False)
            case _:
                self._append(key)
        self._look(key)

    def _append(self, key: ThreadKey) -> None:
        writer = self._writers[key]
        entry = writer.plan(SNAPSHOT if self._chance.random() < 0.2 else 0)
        is_there = lambda: self._store.locate(key, entry.id) == entry.seq  # noqa: E731
        if self._commit(writer.batch(entry), is_there):
            writer.keep(entry)

    def _record(self, key: ThreadKey) -> None:
        self._count += 1
        run = a_run(key, self._count, status="failed", graph=key.tenant)
        batch = self._batch(key, runs=(run,), failure=a_failure(run.run_id, message=key.tenant))
        if self._commit(batch, lambda: self._store.run(key, run.run_id) is not None):
            self._runs[key].append(run.run_id)

    def _be_refused(self, key: ThreadKey) -> None:
        writer = self._writers[key]
        late = Batch(key=key, head=writer.head + 1, entries=(an_entry(writer.head + 2),))
        try:
            self._answered(lambda: self._store.commit(late))
        except Conflict as conflict:
            if (conflict.tenant, conflict.head) != (key.tenant, writer.head):
                self.foreign.append(f"{key} was refused in the name of another")
            return
        self.foreign.append(f"{key} was let in where another stands")

    def _delete(self, key: ThreadKey) -> None:
        self._answered(lambda: self._store.delete(key))
        self._writers[key], self._runs[key] = self._new(key), []

    def _look(self, key: ThreadKey) -> None:
        writer, store = self._writers[key], self._store
        chain = self._answered(lambda: store.read(key))
        newest = chain.entries[-1] if chain else None
        if newest != writer.entries.get(writer.head):
            self.foreign.append(f"{key} has another head")
        other = self._chance.choice([each for each in self._writers if each != key])
        theirs = self._writers[other]
        if theirs.head and self._answered(
            lambda: store.locate(key, theirs.entries[theirs.head].id)
        ):
            self.foreign.append(f"{key} located an entry of {other}")
        run_id = self._runs[other][-1] if self._runs[other] else "none"
        if self._answered(lambda: store.run(key, run_id) or store.failure(key, run_id)):
            self.foreign.append(f"{key} found a run of {other}")
        if self._chance.random() < 0.05:
            self._look_around(key)

    def _look_around(self, key: ThreadKey) -> None:
        store = self._store
        listed = [info.key for info in self._answered(lambda: store.threads(key.tenant))]
        own = [each for each in self._runs if each.tenant == key.tenant and self._runs[each]]
        if listed != sorted(own, key=lambda each: each.thread):
            self.foreign.append(f"{key.tenant} was shown other threads")
        runs = self._answered(lambda: store.runs(key))
        if sorted(run.run_id for run in runs) != sorted(self._runs[key]):
            self.foreign.append(f"{key} was shown other runs")
        manifest = self._answered(lambda: store.manifest(key, "f"))
        if manifest not in (None, key.tenant.encode()):
            self.foreign.append(f"{key} was shown another manifest")

    def _new(self, key: ThreadKey) -> Writer:
        self._count += 1
        return Writer(key, self._count)

    def _batch(self, key: ThreadKey, **parts: object) -> Batch:
        return self._writers[key].batch(**parts)

    def _commit(self, batch: Batch, is_there: Callable[[], bool]) -> bool:
        """Whether a batch was written; one without an answer is looked for."""
        try:
            self._store.commit(batch)
        except Unavailable:
            self.unanswered += 1
            return self._answered(is_there)
        return True

    def _answered(self, call: Callable[[], T]) -> T:
        """The answer to a call that may be made again."""
        for _ in range(1000):
            try:
                return call()
            except Unavailable:
                self.unanswered += 1
        raise Unavailable("there was no answer for too long")
