"""Stores that break their promises on purpose, so that tests can prove that it is noticed.

Both wrap a store that keeps its promises. ``FailingStore`` fails at one commit, as disks and
networks do. ``TornStore`` cheats: its commits are not atomic, and it says that they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

import msgspec.structs

from milecastle.errors import Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.pages import Page
from milecastle.ports.store import Batch, Chain, Store

Fault = Literal["refused", "unknown", "cut", "dropped"]
Part = Literal["entries", "results", "runs", "failure", "manifest", "thread"]

_PARTS: frozenset[Part] = frozenset(get_args(Part))


@runtime_checkable
class Volatile(Protocol):
    """A store that can lose its memory. The simulator calls ``crash`` when the process dies."""

    def crash(self) -> None:
        """Forget everything that is not durable."""
        ...


class WrappedStore:
    """A store that passes every call on. Derive from it to change some of them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def blocking(self) -> bool:
        """Whether calls may wait."""
        return self._store.blocking

    @property
    def rollup_after(self) -> int | None:
        """After how many deltas a rollup pays."""
        return self._store.rollup_after

    def commit(self, batch: Batch) -> None:
        """Pass the batch on."""
        self._store.commit(batch)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, or ``None``."""
        return self._store.read(key, seq)

    def head(self, key: ThreadKey) -> Entry | None:
        """The newest entry without its payload, or ``None``."""
        return self._store.head(key)

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        """The results that go with the head."""
        return self._store.results(key)

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint without results, or ``None``."""
        return self._store.read_state(key, seq)

    def count_results(self, key: ThreadKey, task: str) -> int:
        """How many results that go with the head are of a task or its items."""
        return self._store.count_results(key, task)

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint, or ``None``."""
        return self._store.locate(key, checkpoint_id)

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads."""
        return self._store.history(key, limit=limit, before=before)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Entries oldest first, with payloads."""
        return self._store.entries(key, after=after, limit=limit)

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first."""
        return self._store.runs(key, limit=limit)

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run, or ``None``."""
        return self._store.run(key, run_id)

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run, or ``None``."""
        return self._store.failure(key, run_id)

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads by thread id."""
        return self._store.threads(tenant, status=status, limit=limit, after=after)

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        """The line of one thread in the index, or ``None``."""
        return self._store.thread(key)

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """The tenant's threads, the one whose line was committed last first."""
        return self._store.recent_threads(tenant, status=status, limit=limit, after=after)

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """The tenant's threads that sleep, the one that wakes first first."""
        return self._store.waking_threads(tenant, until=until, limit=limit, after=after)

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        """The tenant's runs, the one that was first committed last first."""
        return self._store.recent_runs(tenant, status=status, limit=limit, after=after)

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """A stored manifest, or ``None``."""
        return self._store.manifest(key, fingerprint)

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Remove the thread."""
        return self._store.delete(key, head=head, head_id=head_id)

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries by snapshots and drop what is below ``cut``."""
        return self._store.prune(key, head=head, cut=cut, rewritten=rewritten)

    def close(self) -> None:
        """Close the store inside."""
        self._store.close()


class FailingStore(WrappedStore):
    """Fails at the ``at``-th commit, counted from 1, and works before and after it.

    - ``refused``: nothing is written and ``Unavailable`` is raised.
    - ``unknown``: all is written and ``Unavailable`` is raised: the connection broke too late.
    - ``cut``: the entries are written, the rest is not, and ``Unavailable`` is raised.
    - ``dropped``: nothing is written and nothing is raised. No store may do that.
    """

    def __init__(self, store: Store, *, at: int, fault: Fault = "refused") -> None:
        super().__init__(store)
        self.commits = 0
        self._at = at
        self._fault: Fault = fault

    def commit(self, batch: Batch) -> None:
        """Pass the batch on, unless this is the one to fail at."""
        self.commits += 1
        if self.commits != self._at:
            self._store.commit(batch)
            return
        if self._fault == "unknown":
            self._store.commit(batch)
        elif self._fault == "cut":
            self._store.commit(_only(batch, frozenset[Part]({"entries"})))
        if self._fault != "dropped":
            raise Unavailable(f"commit {self._at} failed on purpose ({self._fault})")


class TornStore(WrappedStore):
    """Acknowledges a batch when only a part of it is durable; a crash loses the rest.

    The parts named in ``late`` are kept in memory and are written when the store is next used.
    ``late={"runs"}`` leaves entries without a run record, ``late={"entries"}`` a record without
    entries, ``late={"results"}`` forgets what a finished sibling returned.
    """

    def __init__(self, store: Store, *, late: Collection[Part]) -> None:
        super().__init__(store)
        self._late: frozenset[Part] = frozenset(late)
        self._waiting: Batch | None = None

    def commit(self, batch: Batch) -> None:
        """Write the prompt parts now and promise the rest."""
        self._catch_up()
        self._store.commit(_only(batch, _PARTS - self._late))
        written = 0 if "entries" in self._late else len(batch.entries)
        rest = _only(batch, self._late)
        self._waiting = msgspec.structs.replace(rest, head=batch.head + written)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, as if all had been durable."""
        self._catch_up()
        return self._store.read(key, seq)

    def head(self, key: ThreadKey) -> Entry | None:
        """The head, as if all had been durable."""
        self._catch_up()
        return self._store.head(key)

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        """The results, as if all had been durable."""
        self._catch_up()
        return self._store.results(key)

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain without results, as if all had been durable."""
        self._catch_up()
        return self._store.read_state(key, seq)

    def count_results(self, key: ThreadKey, task: str) -> int:
        """The number of results, as if all had been durable."""
        self._catch_up()
        return self._store.count_results(key, task)

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """The entries, as if all had been durable."""
        self._catch_up()
        return self._store.history(key, limit=limit, before=before)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """The entries with payloads, as if all had been durable."""
        self._catch_up()
        return self._store.entries(key, after=after, limit=limit)

    def crash(self) -> None:
        """Lose what was promised and not written."""
        self._waiting = None

    def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._store.commit(waiting)


def _only(batch: Batch, parts: frozenset[Part]) -> Batch:
    """The batch with nothing but these parts."""
    given = {part: getattr(batch, part) for part in parts}
    return Batch(key=batch.key, head=batch.head, **given)
