"""Run claimed threads: each from its wake-up until it stops, many at once, on one loop.

Rules:

- A *segment* is a run from its wake-up to its rest: the end, a question, a sleep, a failure, or
  this worker's drain. The commit that rests also says in the index when it is due again.
- When a segment ends, its thread has been committed, is owed to the other workers, or was taken
  by one of them.
- A worker that lost a thread stops running it and records nothing.
- A run with which several workers in a row were lost, without a step, is held as failed. One that
  is suspected of it is run without other suspects, so it alone is blamed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

from milecastle.app.emitting import notify_rest
from milecastle.app.results import Result
from milecastle.app.runner import Runner
from milecastle.app.runs.calls import Call
from milecastle.app.runs.cancelling import count_lost, hold_lost, reject_input
from milecastle.app.runs.planned import PlannedRun
from milecastle.app.runs.starting import settle_thread
from milecastle.engine.assignment import Assignment
from milecastle.errors import (
    Conflict,
    InvalidRequest,
    MilecastleError,
    ResumeRefused,
    RunError,
    StoreError,
    Unavailable,
    place_of,
)
from milecastle.fleet.context import WorkerContext
from milecastle.model.keys import ThreadKey
from milecastle.model.notices import is_unsettled
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import was_lost
from milecastle.ports.store import Opened
from milecastle.support.printable import printable

_log = logging.getLogger("milecastle.fleet")

_LONGEST_REFUSAL = 60.0
"""The longest time, in seconds, after which a thread that does not fit is tried again."""

_ALONE = 10.0
"""For how many seconds a run that is suspected of ending its worker has no other beside it."""


class ClaimedThread:
    """One thread this worker runs now; ``refused`` is why it cannot."""

    __slots__ = (
        "began",
        "is_lost",
        "key",
        "losses",
        "outcome",
        "planned",
        "refused",
        "runner",
        "task",
    )

    def __init__(self, key: ThreadKey, runner: Runner[Any]) -> None:
        self.key = key
        self.runner = runner
        self.planned: PlannedRun | Result[Any] | None = None
        self.refused: Exception | None = None
        self.is_lost = False
        self.losses = 0
        self.outcome = "failed"
        self.began = 0.0
        self.task: asyncio.Task[None] | None = None

    @property
    def is_resting(self) -> bool:
        planned = self.planned
        journal = planned.plan.journal if isinstance(planned, PlannedRun) else None
        return journal is not None and journal.record.status != "running"


class Segments:
    """The segments a worker runs now, by thread. ``owed`` are threads to give back."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self.running: dict[ThreadKey, ClaimedThread] = {}
        self.owed: dict[ThreadKey, float] = {}
        self.has_abandoned = False
        self._refusals: dict[ThreadKey, int] = {}
        self._alone = asyncio.Lock()

    def pulses(self) -> dict[ThreadKey, int]:
        return {
            key: segment.planned.pulse
            for key, segment in list(self.running.items())
            if isinstance(segment.planned, PlannedRun)
        }

    def begin(self, info: ThreadInfo, known: Opened | None = None) -> ClaimedThread:
        """Decide a thread's next run: off the loop, for many threads in a row."""
        runner = self._context.serving(info.lane)
        # Otherwise the run would sleep again, be due at once, and so on.
        self._context.clock.reach(info.due_at or 0)
        segment = ClaimedThread(info.key, runner)
        is_lost = was_lost(info)
        assignment = Assignment(
            lane=runner.lane,
            worker=self._context.id,
            priority=info.priority,
            is_retaken=is_lost,
            retry=runner.settings.retry_runs,
            is_draining=lambda: self._context.is_leaving,
            is_lost=lambda: segment.is_lost,
        )
        self._context.counters.add("segments_started")
        if info.due_at is not None:
            waited = self._context.clock.now() - info.due_at
            self._context.durations.waits.observe(waited / 1_000_000)
        if is_lost:
            self._context.counters.add("segments_taken_over")
        if info.status == "failed":
            self._context.counters.add("segments_retried")
        call = Call(thread=info.key, if_exists="take_over", assignment=assignment, known=known)
        try:
            segment.losses = count_lost(self._context.store, info.key) if is_lost else 0
            if is_unsettled(info) and runner.threads is not None:
                settle_thread(runner.threads, info.key)
                segment.outcome = "notified"
            elif segment.losses >= self._context.options.losses:
                self._hold(info, segment.losses)
            else:
                segment.planned = runner.begin(call)
        except Exception as error:
            segment.refused = error
        return segment

    def start(self, segment: ClaimedThread) -> None:
        earlier = self.running.get(segment.key)
        if earlier is not None:
            self._drop(earlier)  # it was taken from us, and came back
        self.running[segment.key] = segment
        segment.began = self._context.ticks()
        segment.task = asyncio.create_task(self._run(segment))
        segment.task.add_done_callback(partial(self._ended, segment))

    def _ended(self, segment: ClaimedThread, task: asyncio.Task[None]) -> None:
        if self.running.get(segment.key) is segment:
            del self.running[segment.key]
        self._measure(segment)
        segment.planned = None  # its assignment knows the segment: a circle
        if not task.cancelled() and (error := task.exception()) is not None:
            raised = type(error).__name__, place_of(error)
            _log.error("worker %s: a segment ended with %s at %s", self._context.id, *raised)
        notify_rest(self._context.store, segment.key)
        self._context.wake.set()

    def _measure(self, segment: ClaimedThread) -> None:
        outcome = "lost" if segment.is_lost else segment.outcome
        durations, lasted = self._context.durations, self._context.ticks() - segment.began
        self._context.counters.add("segments_ended", label=outcome)
        durations.segments.observe(lasted, outcome)
        planned = segment.planned
        journal = planned.plan.journal if isinstance(planned, PlannedRun) else None
        if journal is not None and journal.record.ended_at is not None and not segment.is_lost:
            record, ended = journal.record, journal.record.ended_at
            durations.runs.observe((ended - record.started_at) / 1_000_000, record.status)

    async def _run(self, segment: ClaimedThread) -> None:
        key, refused, began = segment.key, segment.refused, self._context.ticks()
        if refused is not None and not isinstance(refused, (Conflict, Unavailable)):
            segment.outcome = "refused"
            self._refuse(key, refused)
            return
        try:
            if refused is not None:
                raise refused
            found = segment.planned
            if isinstance(found, PlannedRun):
                async with self._suspicion(segment.losses):
                    found = await segment.runner.afinish(found)
            if found is not None:
                segment.outcome = found.status
                _log.info(
                    "thread '%s': run %s is %s at step %d, after %.1f s",
                    printable(key.thread),
                    found.run_id,
                    found.status,
                    found.step,
                    self._context.ticks() - began,
                )
        except Conflict:
            segment.outcome = "conflict"
            _log.info("thread '%s': another worker has it", printable(key.thread))
        except (ResumeRefused, InvalidRequest) as error:
            segment.outcome = "refused"
            if not await self._reject_input(segment, error):
                self._refuse(key, error)
            return
        except (RunError, StoreError) as error:  # what a node said may contain values
            more = f"; see `milecastle runs {key.thread}`" if isinstance(error, RunError) else ""
            what = printable(f"{error.message} [{error.code}]{more}")
            _log.warning("thread '%s': %s", printable(key.thread), what)
        except asyncio.CancelledError:
            segment.outcome = "stopped"
            if not (segment.is_lost or self._context.is_leaving):
                raise
        except BaseException as error:
            _log.error(
                "thread '%s': a node raised %s, which ends its run and not this worker",
                printable(key.thread),
                type(error).__name__,
            )
        else:
            self._refusals.pop(key, None)
            return
        if not segment.is_lost:
            self.give_back(key)

    async def _reject_input(self, segment: ClaimedThread, error: Exception) -> bool:
        if not isinstance(segment.planned, PlannedRun):
            return False
        journal = segment.planned.plan.journal
        try:
            rejects = partial(
                reject_input, self._context.store, self._context.clock, journal, error
            )
            rejected = await self._context.threads.call(rejects)
        except StoreError:
            return False
        if rejected:
            _log.warning(
                "thread '%s' refuses an input that waited, and its run has failed: %s",
                printable(segment.key.thread),
                printable(str(error)),
            )
        return rejected

    @asynccontextmanager
    async def _suspicion(self, losses: int) -> AsyncGenerator[None, None]:
        """A run that lost more than one worker begins alone among such runs.

        If the process dies, only that one has noted in its log it had a worker.
        """
        if losses < 2:
            yield
            return
        await self._alone.acquire()
        with ExitStack() as held:  # which releases the lock once, by the timer or here
            held.callback(self._alone.release)
            timer = asyncio.get_running_loop().call_later(_ALONE, held.close)
            held.callback(timer.cancel)
            yield

    def _hold(self, info: ThreadInfo, losses: int) -> None:
        threads = self._context.serving(info.lane).threads
        if threads is not None:
            notifies = threads.graph.notifies
            failure = hold_lost(threads.store, threads.codec, threads.clock, info, losses, notifies)
            _log.error(
                "thread '%s' is held until it is retried: %s",
                printable(info.key.thread),
                failure.message if failure else "it has ended",
            )

    def _refuse(self, key: ThreadKey, error: Exception) -> None:
        self._context.counters.add("threads_refused")
        count = self._refusals[key] = self._refusals.get(key, 0) + 1
        delay = min(_LONGEST_REFUSAL, 2.0 ** (count - 1))
        _log.warning(
            "thread '%s' does not fit this worker, which tries again in %.0f seconds: %s",
            printable(key.thread),
            delay,
            printable(str(error)) if isinstance(error, MilecastleError) else type(error).__name__,
        )
        self.give_back(key, delay)

    def give_back(self, key: ThreadKey, delay: float = 0.0) -> None:
        self.owed[key] = delay
        self._context.wake.set()

    def drop_lost(self, segment: ClaimedThread) -> None:
        if self.running.get(segment.key) is segment and not segment.is_resting:
            self._drop(segment)

    def _drop(self, segment: ClaimedThread) -> None:
        self._context.counters.add("threads_lost", not segment.is_lost)
        segment.is_lost = True
        if segment.task is not None:
            self.has_abandoned |= segment.task.cancel()

    async def drain(self) -> None:
        """Wait until each run is released with its step, for the grace period at most."""
        tasks = [segment.task for segment in self.running.values() if segment.task]
        if not tasks:
            return
        _log.info("worker %s drains %d threads", self._context.id, len(tasks))
        _, late = await asyncio.wait(tasks, timeout=self._context.options.grace)
        for task in late:
            self.has_abandoned |= task.cancel()
        if late:
            await asyncio.wait(late, timeout=5.0)

    def cancel(self) -> None:
        for segment in self.running.values():
            if segment.task is not None:
                segment.task.cancel()
