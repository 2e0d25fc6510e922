"""Group commit: many runs of one process share transactions.

A thread finding a free slot writes its batch itself; a store has as many slots as it can write
batches in parallel. Later callers, and every run on an event loop, wait in a queue: one thread per
store takes the whole queue and passes it to ``commit_many``. While it writes, others gather; so the
busier it is, the larger the groups, and a single run pays almost nothing. Rules:

- Each waiter learns its own outcome. A conflict fails one batch. If the store is unavailable, that
  fails every batch of the group; any other refusal fails those refused alone as well.
- No caller waits forever: whatever the store does, the waiters are notified; where no thread can be
  started, each writes its own batch; a forked child starts over.
- A caller interrupted before its batch is taken withdraws it; later it first learns the
  outcome.
- The queue is bounded: a caller finding it full waits.
- Writing and computing take place in parallel: if the thread was idle for longer than a write
  takes, because every run was computing, it leaves half of the next batches for its next turn.

Event loops have their own way to wait: ``loop_commits.py``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import get_ident
from time import monotonic, sleep
from typing import Final, cast
from weakref import WeakKeyDictionary, ref

import msgspec

from milecastle.errors import MilecastleError, StoreError, Unavailable
from milecastle.ports.store import Batch, CommitMany, PartOf, Store
from milecastle.support.forking import call_in_child

GROUP: Final = 256
"""The maximum number of batches written at once."""

ROOM: Final = 4096
"""The maximum number of waiting batches."""

PAUSE: Final = 0.001
"""How many seconds a caller waits for room in a full queue before it checks again."""

_FEW: Final = 16
"""Up to this many batches are never divided."""

_LEFT: Final = 1.0
"""A slot held for this many seconds while nobody writes was abandoned."""

_IDLE: Final = 2.0
"""After this many seconds without work the thread ends; the next batch starts another."""


class Waiter(msgspec.Struct, eq=False):
    """A caller waiting for a batch.

    ``bell`` is called once with all of a group that have it in common.
    It sets ``told``; from then on ``outcome`` is the batch's outcome.
    """

    batch: Batch
    bell: Bell
    outcome: StoreError | None = None
    told: bool = False


Bell = Callable[[Sequence[Waiter]], None]


class _ThreadWaiter(Waiter):
    gate: threading.Lock = msgspec.field(default_factory=threading.Lock)


class Committer:
    """Writes the batches of many runs to one store.

    The last of the places is the one that groups are written from. ``_resting`` is set before the
    thread looks at the queue for the last time: a caller adding to it afterwards sees the
    thread must be woken.
    """

    def __init__(self, store: Store, *, group: int = GROUP, room: int = ROOM) -> None:
        self._store = ref(store)
        self._writers = store.writers
        self._group = group
        self._room = room
        self.forget()

    def forget(self) -> None:
        self._waiting: deque[Waiter] = deque()
        self._places = [threading.Lock() for _ in range(self._writers)]
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._writing: set[int] = set()
        self._resting = True
        self._quickest = float("inf")

    def of(self, batch: Batch) -> Committer:
        return self

    def commit(self, batch: Batch) -> None:
        ident = get_ident()
        for place in self._places:
            if place.acquire(blocking=False):
                try:
                    self._writing.add(ident)
                    (self._store() or self._open()).commit(batch)
                finally:
                    self._writing.discard(ident)
                    place.release()
                return
        self._commit_with_others(batch)

    def _commit_with_others(self, batch: Batch) -> None:
        if get_ident() in self._writing:  # a stream that the collector closes while this one writes
            raise Unavailable("another commit of this thread is in progress")
        while self.is_full:
            sleep(PAUSE)
        waiter = _ThreadWaiter(batch, _open_gates)
        waiter.gate.acquire()
        try:
            self.add(waiter)
        except Unavailable:  # no thread: each caller left in the queue writes its own batch
            if self.take_back(waiter):
                with self._last_place():
                    self._open().commit(batch)
                return
        try:
            waiter.gate.acquire()
        except BaseException:  # Ctrl-C
            if not self.take_back(waiter) and not waiter.told:
                waiter.gate.acquire()
            raise
        if waiter.outcome is not None:
            raise waiter.outcome

    @contextmanager
    def _last_place(self) -> Generator[None, None, None]:
        while not (place := self._places[-1]).acquire(timeout=_LEFT):
            if not self._writing:
                self._places[-1] = threading.Lock()
        self._writing.add(get_ident())
        try:
            yield
        finally:
            self._writing.discard(get_ident())
            place.release()

    @property
    def is_full(self) -> bool:
        """True if a caller must retry before adding a waiter."""
        return len(self._waiting) >= self._room

    def add(self, waiter: Waiter) -> None:
        """Queue a batch for group commit; ``Unavailable`` if no thread can write."""
        self._waiting.append(waiter)
        if self._resting:
            self._wake()

    def take_back(self, waiter: Waiter) -> bool:
        """Remove a waiting batch; True if it was not written."""
        try:
            self._waiting.remove(waiter)
        except ValueError:
            return False
        return True

    def _wake(self) -> None:
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._work, name="milecastle-committer", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    raise Unavailable(f"cannot start a thread for commits: {error}") from error
                self._thread = thread
            self._resting = False
            self._changed.notify()

    def _work(self) -> None:
        while (idle := self._wait()) is not None:
            with self._last_place():
                group = self._next_group(idle)
                began = monotonic()
                outcomes = self._outcomes([waiter.batch for waiter in group])
                self._quickest = min(self._quickest, monotonic() - began)
            _tell(group, outcomes)

    def _wait(self) -> float | None:
        """Idle time; ``None`` after the thread ended for lack of work."""
        if self._waiting:
            return 0.0
        began = monotonic()
        with self._changed:
            self._resting = True
            if not self._waiting and not self._changed.wait(_IDLE) and not self._waiting:
                self._thread = None
                return None
            self._resting = False
        return monotonic() - began

    def _next_group(self, idle: float) -> list[Waiter]:
        waiting = self._waiting
        count = share_of(len(waiting), idle=idle, quickest=self._quickest)
        return [waiting.popleft() for _ in range(min(count, self._group))]

    def _outcomes(self, batches: list[Batch]) -> Sequence[StoreError | None]:
        try:
            outcomes = cast("CommitMany", self._open().commit_many)(batches)
            if len(outcomes) != len(batches):
                raise ValueError(f"it returned {len(outcomes)} of {len(batches)} outcomes")
            return outcomes
        except Unavailable as error:
            return [error] * len(batches)
        except MilecastleError as error:
            if len(batches) > 1:  # nothing was written, and the error concerns one of them
                return [self._outcomes([batch])[0] for batch in batches]
            return [error if isinstance(error, StoreError) else _refused(error)]
        except BaseException as error:
            refused = _refused(error)
            return [refused] * len(batches)

    def _open(self) -> Store:
        store = self._store()
        if store is None:
            raise Unavailable("the store was closed or collected")
        return store


class PartedCommitter:
    """One committer per part: a failed part delays only its own commits."""

    def __init__(self, store: Store) -> None:
        self._store = ref(store)

    def of(self, batch: Batch) -> Committer:
        store = self._store()
        if store is None:
            raise Unavailable("the store was closed or collected")
        return _shared(cast("PartOf", store.part_of)(batch.key))

    def commit(self, batch: Batch) -> None:
        self.of(batch).commit(batch)


def share_of(waiting: int, *, idle: float, quickest: float) -> int:
    """Number to write at once, from the idle time and the quickest write's time.

    Half, if it pays: while one half is written the other is computed.
    """
    return (waiting + 1) // 2 if waiting > _FEW and idle > quickest else waiting


def _refused(error: BaseException) -> Unavailable:
    refused = Unavailable(f"the store failed with {type(error).__name__}: {error}")
    refused.__cause__ = error
    return refused


def _tell(group: Sequence[Waiter], outcomes: Sequence[StoreError | None]) -> None:
    by_bell: dict[Bell, list[Waiter]] = {}
    for waiter, outcome in zip(group, outcomes, strict=True):
        waiter.outcome = outcome
        by_bell.setdefault(waiter.bell, []).append(waiter)
    for bell, told in by_bell.items():
        bell(told)


def _open_gates(waiters: Sequence[Waiter]) -> None:
    for waiter in waiters:
        waiter.told = True
        cast("_ThreadWaiter", waiter).gate.release()


_committers: WeakKeyDictionary[Store, Committer] = WeakKeyDictionary()
_parted: WeakKeyDictionary[Store, PartedCommitter] = WeakKeyDictionary()


def committer_of(store: Store) -> Committer | PartedCommitter | None:
    """The process-wide committer, if the store may block and writes groups."""
    if not store.blocking or store.commit_many is None:
        return None
    if store.part_of is not None:
        return _parted.get(store) or _parted.setdefault(store, PartedCommitter(store))
    return _shared(store)


def _shared(store: Store) -> Committer:
    return _committers.get(store) or _committers.setdefault(store, Committer(store))


def _forget_in_child() -> None:
    for committer in list(_committers.values()):
        committer.forget()


call_in_child(_forget_in_child)
