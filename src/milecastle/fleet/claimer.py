"""Claim due threads for a worker, and give back those it does not run.

Rules:

- A worker serves its own graphs' lanes. It adopts a lane of one of them in another version
  if threads have been due there for a while and no worker serves it. Those that fit its code
  continue in its own lane; the others are given back, for a growing time.
- Deliveries to hooks have a quarter of its places at most: receivers that hang hold no others.
- A thread that cannot be given back is given back later; if the worker dies first, others take it
  when it is silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from milecastle.errors import StoreError
from milecastle.fleet.context import WorkerContext
from milecastle.fleet.run_segments import ClaimedThread, Segments
from milecastle.model.keys import ThreadKey, is_delivery
from milecastle.ports.claims import one_cell
from milecastle.ports.limits import graph_of
from milecastle.ports.store import Opened, WritesRefused
from milecastle.ports.workers import WorkerInfo

_log = logging.getLogger("milecastle.fleet")

_POLL_IF_TOLD = 1.0
_POLL = 0.2
"""How often to look for due threads, in seconds, if the store tells of them and if it does not."""

_DELIVERIES = 4
"""By how much fewer deliveries than threads a worker runs at once."""

_TOGETHER = 16
"""How many claimed threads are begun by one call off the loop, before the first of them runs."""


class Claimer:
    def __init__(self, context: WorkerContext, segments: Segments) -> None:
        self._context = context
        self._segments = segments
        told = context.claims.listen is not None
        self._poll = context.options.poll or (_POLL_IF_TOLD if told else _POLL)
        self._foreign: Sequence[str] = ()
        self._next_look = 0.0
        self._claims = 0
        self._batch_at: float | None = None
        self._held = 0

    async def turn(self) -> None:
        try:
            await self._pay()
            free = self._context.options.concurrency - len(self._segments.running)
            if (wait := self._wait_for_batch(free)) > 0:
                await self._until_woken(wait)
                return
            claimed = await self.claim(free)
        except WritesRefused:
            raise
        except StoreError as error:
            _log.warning("worker %s cannot claim: %s", self._context.id, error)
            free, claimed = 1, 0
        if claimed < free:  # otherwise there may be more
            await self._until_woken(await self._patience(claimed))

    def _wait_for_batch(self, free: int) -> float:
        if free < 1 or free >= self._context.options.concurrency // 4:
            self._batch_at = None
            return self._poll if free < 1 else 0.0
        if self._batch_at is None:
            self._batch_at = self._context.ticks() + self._poll
        left = self._batch_at - self._context.ticks()
        if left <= 0:
            self._batch_at = None
        return left

    async def claim(self, limit: int) -> int:
        if limit < 1:
            return 0
        self._context.wake.clear()
        self._claims += 1  # odd while one is under way: see ``check``
        try:
            lanes = [*self._context.lanes, *await self._adopted()]
            others = _without_deliveries(lanes)
            most = limit if len(others) == len(lanes) else min(limit, self._room())
            claimed = await self._begin(lanes, most) if most else 0
            if claimed == most < limit and others:
                claimed += await self._begin(others, limit - most)
        finally:
            self._claims += 1
        return claimed

    async def _begin(self, lanes: Sequence[str], limit: int) -> int:
        begun, claimed = self._take(lanes, limit), 0
        while some := await self._context.threads.call(next, begun, ()):
            claimed += len(some)
            for segment in some:
                # of a debt whose payment was not acknowledged, and yet was made
                self._segments.owed.pop(segment.key, None)
                self._segments.start(segment)
        return claimed

    def _room(self) -> int:
        running = (one.runner.graph.name for one in self._segments.running.values())
        most = max(1, self._context.options.concurrency // _DELIVERIES)
        return max(0, most - sum(map(is_delivery, running)))

    def _take(self, lanes: Sequence[str], limit: int) -> Iterator[list[ClaimedThread]]:
        began = monotonic()
        known: Mapping[ThreadKey, Opened] = {}
        claimed = self._context.claims.claim(self._context.id, lanes, limit=limit)
        self._context.counters.add("claims")
        self._context.counters.add("claim_seconds", monotonic() - began)
        read_many = self._context.store.read_many
        if len(claimed) > 1 and read_many is not None:
            with suppress(StoreError):  # then each is read by itself, and only some are refused
                known = read_many([one.key for one in claimed])
        for first in range(0, len(claimed), _TOGETHER):
            some = claimed[first : first + _TOGETHER]
            yield [self._segments.begin(info, known.get(info.key)) for info in some]

    async def _adopted(self) -> Sequence[str]:
        wait = self._context.options.adopt_after
        if wait is not None and self._context.ticks() >= self._next_look:
            self._foreign = await self._context.threads.call(self._stranded, wait)
            self._next_look = self._context.ticks() + max(wait, self._poll)
        return self._foreign

    def _stranded(self, age: float) -> list[str]:
        graphs = {graph_of(lane) for lane in self._context.runners}
        store = self._context.claims
        late = [lane for lane in store.overdue(age) if graph_of(lane) in graphs]
        if not any(lane not in self._context.runners for lane in late):
            return []
        served = _served(store.workers())
        alone = {lane for lane in late if lane not in served}
        if store.cells is not None:  # in each database by its own workers
            for name in store.cells.names:
                with suppress(StoreError):
                    part = one_cell(store.cells, [name])
                    alone |= {*part.overdue(age)}.difference(_served(part.workers()))
        return [lane for lane in late if lane in alone]

    async def _patience(self, claimed: int) -> float:
        """Seconds until something is due, at most ``poll``.

        Unclaimed due threads are held back by a limit, or are being written: after each
        such claim in a row it waits twice as long.
        """
        poll = self._poll
        try:
            lanes = self._context.lanes
            lanes = lanes if self._room() else _without_deliveries(lanes)
            due = await self._context.threads.call(self._context.claims.due_in, lanes)
        except StoreError:
            return poll
        is_held = due is not None and due <= 0 and claimed == 0
        self._held = min(self._held + 1, 10) if is_held else 0
        return poll if due is None else min(poll, max(0.01 * 2**self._held, due))

    async def _until_woken(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._context.wake.wait()
        self._context.wake.clear()

    async def run_until_idle(self) -> None:
        most, running = self._context.options.concurrency, self._segments.running
        while running or await self.claim(most):
            await self._until_woken(self._poll)
            await self._pay()
            await self.claim(most - len(running))

    async def _pay(self) -> None:
        """Release owed threads: between claims, or threads claimed since would be released.

        A thread that cannot be released now is owed until it is claimed again; claims do not wait
        for it.
        """
        owed = self._segments.owed
        for key, delay in list(owed.items()):
            try:
                gives = partial(self._context.claims.give_back, self._context.id, key, delay=delay)
                given = await self._context.threads.call(gives)
            except WritesRefused:
                raise
            except StoreError as error:  # others come first next time
                _log.warning("worker %s cannot give a thread back: %s", self._context.id, error)
                owed[key] = owed.pop(key)
                return
            self._context.counters.add("threads_released", given)
            del owed[key]

    def check(self) -> None:
        """Compare the running segments with the index's claims for this worker.

        On the heartbeat's thread. A segment whose thread is another's is dropped: running
        segments are noted before the index is read, so a thread claimed in between is not missing.
        One that rests by now has given its thread up itself. A thread without a segment is given
        back: its claim raised, and yet it was written. That is not decided while a claim is under
        way.
        """
        claims, segments = self._claims, list(self._segments.running.values())
        claimed = set(self._context.claims.claimed(self._context.id))
        for segment in segments:
            if segment.key not in claimed:
                self._context.on_loop(partial(self._segments.drop_lost, segment))
        if claims % 2 == 0:
            self._context.on_loop(partial(self._give_back_unknown, claims, claimed))

    def _give_back_unknown(self, claims: int, claimed: set[ThreadKey]) -> None:
        if claims == self._claims:
            for key in claimed.difference(self._segments.running, self._segments.owed):
                self._segments.give_back(key)


def _served(workers: Iterable[WorkerInfo]) -> set[str]:
    return {lane for worker in workers if not worker.is_gone for lane in worker.lanes}


def _without_deliveries(lanes: Sequence[str]) -> list[str]:
    return [lane for lane in lanes if not is_delivery(lane)]
