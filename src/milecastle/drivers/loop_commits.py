"""Commits from an event loop: a run waits for its batch without blocking the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import cast
from weakref import WeakKeyDictionary, ref

from milecastle.drivers.committer import PAUSE, Committer, PartedCommitter, Waiter
from milecastle.errors import Unavailable
from milecastle.ports.store import Batch


class _LoopWaiter(Waiter, kw_only=True):
    future: asyncio.Future[None]


class LoopCommits:
    """One loop's path to a committer: a group wakes the loop once."""

    def __init__(
        self, committer: Committer | PartedCommitter, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._committer = committer
        self._loop = ref(loop)

    async def commit(self, batch: Batch) -> None:
        """Write a batch together with the other waiting ones; raises its error.

        A cancellation waits until the outcome is known.
        """
        committer = self._committer.of(batch)
        while committer.is_full:  # noqa: ASYNC110 - a thread makes the room
            await asyncio.sleep(PAUSE)
        loop = asyncio.get_running_loop()
        waiter = _LoopWaiter(batch, self, future=loop.create_future())
        try:
            committer.add(waiter)
        except Unavailable:
            if committer.take_back(waiter):
                raise
        try:
            await waiter.future
        except asyncio.CancelledError:
            while not waiter.told:
                waiter.future = loop.create_future()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([waiter.future])
            raise
        if waiter.outcome is not None:
            raise waiter.outcome

    def __call__(self, told: Sequence[Waiter]) -> None:
        loop = self._loop()
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(_settle, told)
        except RuntimeError:
            return  # it was closed; nobody waits there any more


def _settle(told: Sequence[Waiter]) -> None:
    for waiter in told:
        waiter.told = True
        future = cast("_LoopWaiter", waiter).future
        if not future.done():
            future.set_result(None)


_commits: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[Committer | PartedCommitter, LoopCommits]
]
_commits = WeakKeyDictionary()


def commits_of(committer: Committer | PartedCommitter) -> LoopCommits:
    loop = asyncio.get_running_loop()
    own = _commits.setdefault(loop, {})
    found = own.get(committer)
    if found is None:
        found = own[committer] = LoopCommits(committer, loop)
    return found
