"""Group commit: many runs of one process share transactions.

One thread per store takes whatever batches are waiting and hands them to ``commit_many`` at once.
While it writes, others gather; so the busier it is, the larger the groups. Rules:

- Each waiter learns its own outcome. A conflict fails one batch; anything else that the store
  raises fails every batch of the group.
- Nobody waits for ever: if the thread dies, the waiters are told; a forked child starts afresh.
- The queue is bounded: who finds it full waits for room.
- Writing and computing take place side by side: if the thread was idle for longer than a write
  takes, because every run was computing, it leaves half of what then comes for its next turn.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary, ref

import msgspec

from milecastle.errors import StoreError, Unavailable
from milecastle.ports.store import Batch, GroupStore

__all__ = ["Committer", "committer_for", "share_of"]

GROUP: Final = 256
"""The most batches that are written at once."""

ROOM: Final = 4096
"""The most batches that may wait."""

_FEW: Final = 16
"""So many batches are never divided."""

_IDLE: Final = 2.0
"""After so many seconds without work the thread ends; the next batch starts another."""

_PAUSE: Final = 0.001


class _Waiter(msgspec.Struct, eq=False):
    """Who waits for a batch. ``future`` is replaced if the wait for it was cancelled."""

    batch: Batch
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class Committer:
    """Writes the batches of many runs to one store.

    ``_resting`` is set before the thread looks at the queue for the last time: whoever adds to it
    afterwards sees that the thread must be woken.
    """

    def __init__(self, store: GroupStore, *, group: int = GROUP, room: int = ROOM) -> None:
        self._store = ref(store)
        self._group = group
        self._room = room
        self.forget()

    def forget(self) -> None:
        """Start afresh: a forked child has the queue but not the thread."""
        self._waiting: deque[_Waiter] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._resting = True
        self._quickest = float("inf")

    async def commit(self, batch: Batch) -> None:
        """Write a batch together with what else is waiting; raises what became of it.

        A cancellation waits until the outcome is known.
        """
        waiting = self._waiting
        while len(waiting) >= self._room:  # noqa: ASYNC110 - a thread makes the room
            await asyncio.sleep(_PAUSE)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(batch, loop, loop.create_future())
        waiting.append(waiter)
        if self._resting:
            self._wake()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.future.cancelled():
                waiter.future = loop.create_future()
                await asyncio.wait([waiter.future])
                waiter.future.exception()  # taken note of: the run is being cancelled anyway
            raise

    def _wake(self) -> None:
        with self._changed:
            self._resting = False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="milecastle-committer", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _work(self) -> None:
        while group := self._next_group():
            began = monotonic()
            try:
                outcomes = self._commit_many([waiter.batch for waiter in group])
            except StoreError as error:
                outcomes = [error] * len(group)
            except BaseException as error:
                refused = Unavailable(f"the store failed with {type(error).__name__}: {error}")
                refused.__cause__ = error
                outcomes = [refused] * len(group)
            self._quickest = min(self._quickest, monotonic() - began)
            _tell(group, outcomes)

    def _commit_many(self, batches: list[Batch]) -> Sequence[StoreError | None]:
        store = self._store()
        if store is None:
            raise Unavailable("the store is gone")
        return store.commit_many(batches)

    def _next_group(self) -> list[_Waiter]:
        """What is to be written next; empty, and the thread gone, if nothing came for a while."""
        waiting, idle = self._waiting, 0.0
        if not waiting:
            began = monotonic()
            with self._changed:
                self._resting = True
                if not waiting and not self._changed.wait(_IDLE) and not waiting:
                    self._thread = None
                    return []
                self._resting = False
            idle = monotonic() - began
        count = share_of(len(waiting), idle=idle, quickest=self._quickest)
        return [waiting.popleft() for _ in range(min(count, self._group))]


def share_of(waiting: int, *, idle: float, quickest: float) -> int:
    """How many to write at once, after being idle for so long, if the quickest write took so long.

    Half, if it pays: while one half is written the other is computed.
    """
    return (waiting + 1) // 2 if waiting > _FEW and idle > quickest else waiting


def _tell(group: Sequence[_Waiter], outcomes: Sequence[StoreError | None]) -> None:
    """Wake the waiters, each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Waiter, StoreError | None]]] = {}
    for waiter, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(waiter.loop, []).append((waiter, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:
            continue  # that loop was closed; nobody waits there any more


def _settle(settled: list[tuple[_Waiter, StoreError | None]]) -> None:
    for waiter, outcome in settled:
        if waiter.future.done():
            continue
        if outcome is None:
            waiter.future.set_result(None)
        else:
            waiter.future.set_exception(outcome)


_committers: WeakKeyDictionary[GroupStore, Committer] = WeakKeyDictionary()
_lock = threading.Lock()


def committer_for(store: GroupStore) -> Committer:
    """The committer of this store; all runs of the process share it."""
    with _lock:
        committer = _committers.get(store)
        if committer is None:
            committer = _committers[store] = Committer(store)
        return committer


def _forget_in_child() -> None:
    for committer in list(_committers.values()):
        committer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
