"""Stores breaking their promises on purpose, so tests can prove it is noticed.

Both wrap a store that keeps its promises. ``FailingStore`` fails at one commit, as disks and
networks do. ``TornStore`` cheats: its commits are not atomic, and it says they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

import msgspec.structs

from milecastle.errors import Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Chain, Opened, Store
from milecastle.stores import wrapping

Fault = Literal["refused", "unknown", "cut", "dropped"]
Part = Literal["entries", "results", "runs", "failure", "manifest", "thread", "tags", "memory"]

_PARTS: frozenset[Part] = frozenset(get_args(Part))


@runtime_checkable
class Volatile(Protocol):
    """A store that can lose its memory. The simulator calls ``crash`` when the process dies."""

    def crash(self) -> None:
        """Forget everything that is not durable."""
        ...


class WrappedStore(wrapping.ForwardingStore):
    """A store passing every call on. Derive from it to change some."""


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
        self._catch_up()
        self._store.commit(_only(batch, _PARTS - self._late))
        written = 0 if "entries" in self._late else len(batch.entries)
        rest = _only(batch, self._late)
        self._waiting = msgspec.structs.replace(rest, head=batch.head + written)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        self._catch_up()
        return self._store.read(key, seq)

    def open(self, key: ThreadKey) -> Opened | None:
        self._catch_up()
        return self._store.open(key)

    def head(self, key: ThreadKey) -> Entry | None:
        self._catch_up()
        return self._store.head(key)

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        self._catch_up()
        return self._store.results(key)

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        self._catch_up()
        return self._store.read_state(key, seq)

    def count_results(self, key: ThreadKey, task: str) -> int:
        self._catch_up()
        return self._store.count_results(key, task)

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        self._catch_up()
        return self._store.history(key, limit=limit, before=before)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        self._catch_up()
        return self._store.entries(key, after=after, limit=limit)

    def crash(self) -> None:
        """Lose promised writes."""
        self._waiting = None

    def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._store.commit(waiting)


def _only(batch: Batch, parts: frozenset[Part]) -> Batch:
    given = {part: getattr(batch, part) for part in parts}
    consumes = batch.consumes if "entries" in parts else ()
    return Batch(key=batch.key, head=batch.head, consumes=consumes, **given)
