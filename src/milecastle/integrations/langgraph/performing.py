"""Performs the saver's reads and commits, for callers on threads and on event loops.

Commits for many threads share transactions, as runs' do. Work on one log takes turns within a
process; that saves conflicts and decides nothing, because the store has the fence.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from milecastle.drivers.committer import committer_of
from milecastle.drivers.loop_commits import commits_of
from milecastle.integrations.langgraph.log import Log, TaskWrite
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.support.forking import call_in_child
from milecastle.support.off_loop import off_loop

T = TypeVar("T")
LogEffect = Batch | Callable[[], Any]
Work = Generator[LogEffect, Any, T]

_MOST: Final = 512
"""How many logs are remembered."""
_MOST_EARLY: Final = 10_000
"""How many checkpoints may have early writes. Those of checkpoints that never come stay here."""


class Slot:
    def __init__(self) -> None:
        self.log: Log | None = None
        self.turn = threading.Lock()
        self.turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Performer:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.restart()
        _performers.add(self)

    def restart(self) -> None:
        """Forget everything; for a forked child, where locks may be held."""
        self._slots: OrderedDict[ThreadKey, Slot] = OrderedDict()
        self._early: OrderedDict[tuple[ThreadKey, str], list[TaskWrite]] = OrderedDict()
        self._lock = threading.Lock()

    def hold(self, key: ThreadKey, checkpoint: str, writes: Sequence[TaskWrite]) -> None:
        with self._lock:
            self._early.setdefault((key, checkpoint), []).extend(writes)
            if len(self._early) > _MOST_EARLY:
                self._early.popitem(last=False)

    def held(self, key: ThreadKey, checkpoint: str) -> Sequence[TaskWrite]:
        with self._lock:
            return tuple(self._early.get((key, checkpoint), ()))

    def take(self, key: ThreadKey, checkpoint: str) -> Sequence[TaskWrite]:
        with self._lock:
            return tuple(self._early.pop((key, checkpoint), ()))

    def slot(self, key: ThreadKey) -> Slot:
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = Slot()
                if len(self._slots) > _MOST:
                    self._slots.popitem(last=False)
            else:
                self._slots.move_to_end(key)
            return slot

    def run(self, work: Work[T], slot: Slot | None = None) -> T:
        """Perform the work on this thread; with a slot, in its turn."""
        with slot.turn if slot else nullcontext():
            return self._drive(work)

    def _drive(self, work: Work[T]) -> T:
        try:
            effect = next(work)
            while True:
                try:
                    outcome = self._perform(effect)
                except BaseException as error:
                    effect = work.throw(error)
                else:
                    effect = work.send(outcome)
        except StopIteration as end:
            found: T = end.value
            return found

    def _perform(self, effect: LogEffect) -> Any:
        if not isinstance(effect, Batch):
            return effect()
        committer = committer_of(self.store)
        return (committer or self.store).commit(effect)

    async def arun(self, work: Work[T], slot: Slot | None = None) -> T:
        loop = asyncio.get_running_loop()
        async with slot.turns.setdefault(loop, asyncio.Lock()) if slot else nullcontext():
            if not self.store.blocking:
                return self._drive(work)
            try:
                effect = next(work)
                while True:
                    try:
                        outcome = await self._aperform(effect)
                    except BaseException as error:
                        effect = work.throw(error)
                    else:
                        effect = work.send(outcome)
            except StopIteration as end:
                found: T = end.value
                return found

    async def _aperform(self, effect: LogEffect) -> Any:
        committer = committer_of(self.store)
        if isinstance(effect, Batch) and committer is not None:
            return await commits_of(committer).commit(effect)
        return await off_loop(self._perform, effect)

    async def call(self, function: Callable[[], T]) -> T:
        return await off_loop(function) if self.store.blocking else function()


_performers: WeakSet[Performer] = WeakSet()


def _restart_in_child() -> None:
    for performer in list(_performers):
        performer.restart()


call_in_child(_restart_in_child)
