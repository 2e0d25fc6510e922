"""A worker: claims due threads (``claimer``) and runs them (``segments``), on one event loop.

Rules:

- A worker whose store refuses to write until it is reopened ends with that error.
- Draining: no new claims; each run is released with the commit of its current step. A run that has
  not reached one within the grace period is stopped and released where it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from milecastle.app.application import App
from milecastle.app.runs.ownership import current_owner
from milecastle.app.runs.submission import require_shared
from milecastle.app.with_store import on_one_store, with_store
from milecastle.errors import InvalidRequest, StoreError
from milecastle.fleet.bulk import Bulk
from milecastle.fleet.claimer import Claimer
from milecastle.fleet.context import WorkerContext, WorkerOptions
from milecastle.fleet.deliveries import delivering
from milecastle.fleet.heartbeat import Heartbeat
from milecastle.fleet.long_nodes import LongNodes
from milecastle.fleet.run_segments import Segments
from milecastle.fleet.schedules import Schedules
from milecastle.ports.notifying import Listening
from milecastle.ports.store import WritesRefused
from milecastle.ports.workers import WorkerInfo
from milecastle.support.platforms import refuse_windows
from milecastle.support.printable import printable

__all__ = ["Worker", "WorkerOptions"]

_log = logging.getLogger("milecastle.fleet")


NO_WORKERS: Final = (
    "run workers on Linux or macOS, in a container or in WSL; on Windows an app runs threads in "
    "its own process, with invoke and resume"
)


class Worker:
    """Runs threads for apps sharing a store. Call ``run`` once, ``stop`` to drain."""

    def __init__(self, apps: Sequence[App[Any]], options: WorkerOptions | None = None) -> None:
        if not apps:
            raise InvalidRequest("a worker needs at least one app")
        apps = on_one_store(apps)
        self.options = options or WorkerOptions()
        self.store = store = require_shared(apps[0].store if apps[0].has_store else None)
        own = apps[0].runner.settings.clock
        self._context = context = WorkerContext(store, self.options, own)
        self.id, self.counters, self.durations = context.id, context.counters, context.durations
        apps = [with_store(app, store, clock=context.clock) for app in apps]
        self._schedules = Schedules(*apps)
        peers = {app.graph.name: app.runner for app in apps}
        for app in apps:
            app.runner.peers |= peers
        served = [app.runner for app in apps] + self._schedules.runners
        served += [Bulk(app).runner for app in apps]
        served += delivering(apps, self.options.deliver_to)
        context.runners = {runner.lane: runner for runner in served}
        self._segments = Segments(context)
        self._claimer = Claimer(context, self._segments)
        self._started_at = own.now()
        self._failure: WritesRefused | None = None
        self._listening: Listening | None = None
        self.entered = asyncio.Event()
        self._heartbeat = Heartbeat(
            context.claims,
            interval=self.options.heartbeat,
            describe=self.describe,
            check=self._check,
            ask=lambda: context.on_loop(self._heartbeat.answer),
            wake=self._wake,
            fail=self._fail,
        )
        self._long_nodes = LongNodes(store, self.options.stuck_after, self._segments.pulses)

    @property
    def lanes(self) -> list[str]:
        """The lanes that it serves."""
        return self._context.lanes

    @property
    def is_ready(self) -> bool:
        """True if it takes new threads: its loop runs, and it is not draining."""
        return not self.is_draining and not self._heartbeat.is_stuck

    @property
    def is_draining(self) -> bool:
        """True if it takes no new threads."""
        return self._context.is_draining

    @property
    def is_deaf(self) -> bool:
        """True if the store's notices cannot reach it."""
        return self._listening is not None and not self._listening.is_connected

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the last accepted heartbeat; ``None`` before the first."""
        return self._heartbeat.age

    @property
    def running(self) -> int:
        """Number of threads it runs."""
        return len(self._segments.running)

    @property
    def has_abandoned(self) -> bool:
        """True if it cancelled a segment, whose node may still run on a thread."""
        return self._segments.has_abandoned

    @property
    def long_nodes(self) -> int:
        """Number of runs that have not moved for a long time."""
        return self._long_nodes.count

    def describe(self) -> WorkerInfo:
        """The heartbeat's contents."""
        return WorkerInfo(
            id=self.id,
            owner=current_owner(),
            lanes=tuple(self.lanes),
            started_at=self._started_at,
            capacity=self.options.concurrency,
            draining=self.is_draining,
            silent_after=self.options.silent_after,
        )

    def stop(self) -> None:
        """Drain, then end ``run``; from any thread or signal handler."""
        self._context.is_draining = True
        self._wake()

    async def run(self) -> None:
        """Serve until ``stop`` is called, then drain."""
        try:
            await self._enter()
            _log.info("worker %s serves %s", self.id, ", ".join(map(printable, self.lanes)))
            while not self.is_draining:
                if self._failure is not None:
                    raise self._failure
                await self._claimer.turn()
            await self._segments.drain()
        finally:
            self._context.is_draining = True
            self._segments.cancel()
            await self._context.threads.call(self._leave)

    async def run_until_signalled(self) -> None:
        """``run`` until SIGTERM or SIGINT; a second signal ends the process at once.

        Raises:
            InvalidRequest: this is Windows, whose event loops have no signals.
        """
        refuse_windows("a worker that drains when it is told to is", NO_WORKERS)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        await self.run()

    def _signalled(self, number: int) -> None:
        if self.is_draining:
            os._exit(128 + number)
        self.stop()

    async def run_until_idle(self) -> None:
        """Run everything due, and stop when nothing is left: for tests and cron jobs.

        The threads of silent workers are due: no other worker may be there to look for them.
        """
        await self._enter()
        try:
            await self._context.threads.call(self._heartbeat.reclaim)
            await self._claimer.run_until_idle()
        finally:
            await self._segments.drain()
            await self._context.threads.call(self._leave)

    async def _enter(self) -> None:
        context = self._context
        context.loop, context.main = asyncio.get_running_loop(), asyncio.current_task()
        await context.threads.call(context.clock.set)
        await context.threads.call(self._schedules.register, insists=True)
        await context.threads.call(self._heartbeat.start)
        self.entered.set()
        if self._context.claims.listen is not None:
            self._listening = self._context.claims.listen(self._wake)

    def _wake(self) -> None:
        self._context.on_loop(self._context.wake.set)

    def _fail(self, error: WritesRefused) -> None:
        self._failure = error
        self._wake()

    def _check(self) -> None:
        self._long_nodes.look()
        self._context.clock.set()
        self._schedules.register()
        self._claimer.check()

    def _leave(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self._heartbeat.stop()
        with suppress(StoreError):
            self._context.claims.retire(self.id)
        self._context.threads.close()
