"""A worker: claims due threads and runs each from wake-up to rest, many at once, on one loop.

Rules:

- A *segment* is a run from its wake-up to its rest: the end, a question, a sleep, a failure, or
  the drain of this worker. The commit that rests also says in the index when it is due again.
- Whatever becomes of a segment, its thread is at rest by a commit, given back, or another's. A
  thread that cannot be given back now is given back later, or taken when this worker is silent.
- A worker that lost a thread stops running it and records nothing.
- A worker whose store refuses to write until it is reopened ends with that error.
- A run with which several workers in a row were lost, without a step, is held as failed. One that
  is suspected of it is run without other suspects, so that it alone is blamed.
- A worker serves the lanes of its own graphs. It adopts a lane of one of them in another version
  if threads have been due there for a while and no worker serves it. Those that fit its code
  continue in its own lane; the others are given back, for a growing time.
- Draining: no new claims; each run is released with the commit of its current step. What has not
  reached one within the grace period is stopped and released where it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any

from milecastle.app.application import App
from milecastle.app.emitting import notify_rest
from milecastle.app.results import Result
from milecastle.app.runner import Runner
from milecastle.app.runs.calls import Call
from milecastle.app.runs.cancelling import count_lost, hold_lost, reject_input
from milecastle.app.runs.ownership import current_owner
from milecastle.app.runs.planned import PlannedRun
from milecastle.app.runs.submission import require_shared
from milecastle.app.with_store import on_one_store, with_store
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
from milecastle.fleet.bulk import Bulk
from milecastle.fleet.counters import Counters
from milecastle.fleet.heartbeat import Heartbeat
from milecastle.fleet.long_nodes import LongNodes
from milecastle.fleet.schedules import Schedules
from milecastle.fleet.store_clock import StoreClock
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import Settings
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import SILENT, WorkerInfo, was_lost
from milecastle.ports.limits import graph_of
from milecastle.ports.notifying import Listening
from milecastle.ports.store import Opened, WritesRefused
from milecastle.support.off_loop import StoreThreads
from milecastle.support.printable import printable

__all__ = ["Worker", "WorkerOptions"]

_log = logging.getLogger("milecastle.fleet")

_POLL_IF_TOLD = 1.0
_POLL = 0.2
"""How often to look for due threads, in seconds, if the store tells of them and if it does not."""

_THREADS = 4
"""How many threads claim, give back and ask the store for a worker: its own, so that no node that
calls ``asyncio.to_thread`` stops claims."""

_TOGETHER = 16
"""How many claimed threads are begun by one call off the loop, before the first of them runs."""

_LONGEST_REFUSAL = 60.0
"""The longest time, in seconds, after which a thread that does not fit is tried again."""

_ALONE = 10.0
"""For how many seconds a run that is suspected of ending its worker has no other beside it."""


_Known = Mapping[ThreadKey, Opened]
"""What was read of claimed threads."""


class WorkerOptions(Settings):
    """How a worker works.

    ``concurrency`` is how many threads it runs at once. It looks for due threads at least every
    ``poll`` seconds, by default 1 if the store tells it of them and otherwise 0.2. It beats every
    ``heartbeat`` seconds; a worker that was ``silent`` for longer has lost its threads. A run
    with which ``losses`` workers in a row were lost, without a step in between, is held as failed.
    It adopts threads of another version of its graphs that have been due for ``adopt_after``
    seconds while no worker served them, if they fit its code; ``None``: never.
    When it is told to stop, running nodes have ``grace`` seconds. A run that has not moved for
    ``stuck_after`` seconds is reported.
    """

    concurrency: int = 100
    poll: float | None = None
    heartbeat: float = SILENT / 3
    silent: float = SILENT
    grace: float = 30.0
    losses: int = 5
    adopt_after: float | None = 1.0
    stuck_after: float = 600.0

    def _check(self) -> None:
        if self.concurrency < 1 or self.losses < 1:
            raise InvalidRequest(
                f"concurrency and losses must be at least 1, not {self.concurrency}, {self.losses}"
            )
        poll = 1.0 if self.poll is None else self.poll
        if not (poll > 0 and 0 < self.heartbeat < self.silent and self.grace >= 0):
            raise InvalidRequest(
                "poll and heartbeat must be above 0, silent above heartbeat, grace at least 0"
            )
        if not self.stuck_after > 0:
            raise InvalidRequest(f"stuck_after must be above 0, not {self.stuck_after}")


class _Once:
    """Calls a function the first time that it is called."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def __call__(self) -> None:
        function, self._function = self._function, None
        if function is not None:
            function()


class _Segment:
    """One thread that this worker runs now; ``refused`` is why it cannot."""

    __slots__ = ("is_lost", "key", "losses", "outcome", "planned", "refused", "runner", "task")

    def __init__(self, key: ThreadKey, runner: Runner[Any]) -> None:
        self.key = key
        self.runner = runner
        self.planned: PlannedRun | Result[Any] | None = None
        self.refused: Exception | None = None
        self.is_lost = False
        self.losses = 0
        self.outcome = "failed"
        self.task: asyncio.Task[None] | None = None

    @property
    def is_resting(self) -> bool:
        """Whether its run rests by a commit that is made, or is being made."""
        planned = self.planned
        journal = planned.plan.journal if isinstance(planned, PlannedRun) else None
        return journal is not None and journal.record.status != "running"


class Worker:
    """Runs the threads of some apps that share a store. Call ``run`` once, ``stop`` to drain."""

    def __init__(self, apps: Sequence[App[Any]], options: WorkerOptions | None = None) -> None:
        if not apps:
            raise InvalidRequest("a worker needs at least one app")
        apps = on_one_store(apps)
        self.options = options or WorkerOptions()
        self.store = store = require_shared(apps[0].store if apps[0].has_store else None)
        self.counters = Counters()
        own = apps[0].runner.settings.clock
        self._clock = StoreClock(store, own, self._ticks)
        apps = [with_store(app, store, clock=self._clock) for app in apps]
        self._schedules = Schedules(*apps)
        served = [app.runner for app in apps] + self._schedules.runners
        served += [Bulk(app).runner for app in apps]
        self._runners: dict[str, Runner[Any]] = {runner.lane: runner for runner in served}
        self.id = own.new_id()
        self._started_at = own.now()
        self._segments: dict[ThreadKey, _Segment] = {}
        self._foreign: Sequence[str] = ()
        self._next_look = 0.0
        self._refusals: dict[ThreadKey, int] = {}
        told = store.listen is not None
        self._poll = self.options.poll or (_POLL_IF_TOLD if told else _POLL)
        self._owed: dict[ThreadKey, float] = {}
        self._claims = 0
        self._batch_at: float | None = None
        self._failure: WritesRefused | None = None
        self._held = 0
        self._threads = StoreThreads(_THREADS)
        self._alone = asyncio.Lock()
        self._draining = False
        self._main: asyncio.Task[Any] | None = None
        self.has_abandoned = False
        self._listening: Listening | None = None
        self._wake = asyncio.Event()
        self.entered = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeat = Heartbeat(
            store,
            interval=self.options.heartbeat,
            describe=self.describe,
            check=self._check,
            ask=lambda: self._on_loop(self._heartbeat.answer),
            wake=lambda: self._on_loop(self._wake.set),
            fail=self._fail,
        )
        self._long_nodes = LongNodes(store, self.options.stuck_after, self._pulses)

    @property
    def _is_leaving(self) -> bool:
        """Whether it drains, or its own task is being cancelled and with it those of its runs."""
        return self._draining or (self._main is not None and self._main.cancelling() > 0)

    @property
    def lanes(self) -> list[str]:
        """The lanes that it serves."""
        return list(self._runners)

    @property
    def is_ready(self) -> bool:
        """Whether it takes new threads: its loop runs, and it is not draining."""
        return not self._draining and not self._heartbeat.is_stuck

    @property
    def is_draining(self) -> bool:
        """Whether it takes no new threads any more."""
        return self._draining

    @property
    def is_deaf(self) -> bool:
        """Whether the store would tell it of due threads, but cannot reach it."""
        return self._listening is not None and not self._listening.is_connected

    @property
    def heartbeat_age(self) -> float | None:
        """For how many seconds the store has taken no heartbeat; ``None`` before the first."""
        return self._heartbeat.age

    @property
    def running(self) -> int:
        """How many threads it runs."""
        return len(self._segments)

    @property
    def long_nodes(self) -> int:
        """How many of its runs have not moved for a long time."""
        return self._long_nodes.count

    def describe(self) -> WorkerInfo:
        """What its heartbeat says."""
        return WorkerInfo(
            id=self.id,
            owner=current_owner(),
            lanes=tuple(self._runners),
            started_at=self._started_at,
            capacity=self.options.concurrency,
            draining=self._draining,
            silent_after=self.options.silent,
        )

    def stop(self) -> None:
        """Drain, then end ``run``; from any thread or signal handler."""
        self._draining = True
        self._on_loop(self._wake.set)

    async def run(self) -> None:
        """Serve until ``stop`` is called, then drain."""
        try:
            await self._enter()
            _log.info("worker %s serves %s", self.id, ", ".join(map(printable, self._runners)))
            while not self._draining:
                await self._turn()
            await self._drain()
        finally:
            self._draining = True
            for segment in self._segments.values():
                if segment.task is not None:
                    segment.task.cancel()
            await self._threads.call(self._leave)

    async def run_until_signalled(self) -> None:
        """``run`` until SIGTERM or SIGINT; a second signal ends the process at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        await self.run()

    def _signalled(self, number: int) -> None:
        if self._draining:
            os._exit(128 + number)
        self.stop()

    async def run_until_idle(self) -> None:
        """Run everything that is due, and stop when nothing is: for tests and for cron jobs."""
        await self._enter()
        try:
            while self._segments or await self._claim(self.options.concurrency):
                await self._until_woken(self._poll)
                await self._pay()
                await self._claim(self.options.concurrency - len(self._segments))
        finally:
            await self._drain()
            await self._threads.call(self._leave)

    async def _enter(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        await self._threads.call(self._clock.set)
        await self._threads.call(self._schedules.register, insists=True)
        await self._threads.call(self._heartbeat.start)
        self.entered.set()
        if self.store.listen is not None:
            self._listening = self.store.listen(lambda: self._on_loop(self._wake.set))

    def _fail(self, error: WritesRefused) -> None:
        """End ``run``: whoever started this worker opens the store again."""
        self._failure = error
        self._on_loop(self._wake.set)

    def _ticks(self) -> float:
        return monotonic() if self._loop is None else self._loop.time()

    def _leave(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self._heartbeat.stop()
        with suppress(StoreError):
            self.store.retire(self.id)
        self._threads.close()

    # ---- claiming

    async def _turn(self) -> None:
        """Claim what is due, then wait for news."""
        if self._failure is not None:
            raise self._failure
        try:
            await self._pay()
            free = self.options.concurrency - len(self._segments)
            if (wait := self._wait_for_batch(free)) > 0:
                await self._until_woken(wait)
                return
            claimed = await self._claim(free)
        except WritesRefused:
            raise
        except StoreError as error:
            _log.warning("worker %s cannot claim: %s", self.id, error)
            free, claimed = 1, 0
        if claimed < free:  # otherwise there may be more
            await self._until_woken(await self._patience(claimed))

    def _wait_for_batch(self, free: int) -> float:
        """For how many seconds to let more runs end first: one claim of many costs less."""
        if free < 1 or free >= self.options.concurrency // 4:
            self._batch_at = None
            return self._poll if free < 1 else 0.0
        if self._batch_at is None:
            self._batch_at = self._ticks() + self._poll
        left = self._batch_at - self._ticks()
        if left <= 0:
            self._batch_at = None
        return left

    async def _claim(self, limit: int) -> int:
        """Start the segments of threads that are due; how many these are."""
        if limit < 1:
            return 0
        self._wake.clear()
        self._claims += 1  # odd while one is under way: see _check_claims
        try:
            begun = self._take([*self.lanes, *await self._adopted()], limit)
            claimed = 0
            while some := await self._threads.call(next, begun, ()):
                claimed += len(some)
                for segment in some:
                    # of a debt whose payment was not acknowledged, and yet was made
                    self._owed.pop(segment.key, None)
                    self._start(segment)
        finally:
            self._claims += 1
        return claimed

    def _take(self, lanes: Sequence[str], limit: int) -> Iterator[list[_Segment]]:
        """Claim due threads, read them together if the store can, and begin some at a time."""
        began = monotonic()
        known: _Known = {}
        claimed = self.store.claim(self.id, lanes, limit=limit)
        self.counters.add("claims")
        self.counters.add("claim_seconds", monotonic() - began)
        if len(claimed) > 1 and self.store.read_many is not None:
            with suppress(StoreError):  # then each is read by itself, and only some are refused
                known = self.store.read_many([one.key for one in claimed])
        for first in range(0, len(claimed), _TOGETHER):
            some = claimed[first : first + _TOGETHER]
            yield [self._begin(info, known.get(info.key)) for info in some]

    async def _adopted(self) -> Sequence[str]:
        """The lanes of other versions that this worker serves for now."""
        wait = self.options.adopt_after
        if wait is not None and self._ticks() >= self._next_look:
            self._foreign = await self._threads.call(self._stranded, wait)
            self._next_look = self._ticks() + max(wait, self._poll)
        return self._foreign

    def _stranded(self, age: float) -> list[str]:
        """The lanes of our graphs in another version that have waited for long, for nobody."""
        graphs = {graph_of(lane) for lane in self._runners}
        late = [lane for lane in self.store.overdue(age) if graph_of(lane) in graphs]
        if not any(lane not in self._runners for lane in late):
            return []
        alive = (one for one in self.store.workers() if not one.is_gone)
        served = {lane for worker in alive for lane in worker.lanes}
        return [lane for lane in late if lane not in served]

    async def _patience(self, claimed: int) -> float:
        """For how many seconds nothing is due, at most ``poll``.

        What is due and was not claimed is held back by a limit, or is being written: after each
        such claim in a row it waits twice as long.
        """
        poll = self._poll
        try:
            due = await self._threads.call(self.store.due_in, self.lanes)
        except StoreError:
            return poll
        is_held = due is not None and due <= 0 and claimed == 0
        self._held = min(self._held + 1, 10) if is_held else 0
        return poll if due is None else min(poll, max(0.01 * 2**self._held, due))

    async def _until_woken(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    # ---- segments

    def _begin(self, info: ThreadInfo, known: Opened | None = None) -> _Segment:
        """Decide what to run of a thread: off the loop, for many threads in a row."""
        runner = self._serving(info.lane)
        # Otherwise the run would sleep again, be due at once, and so on.
        self._clock.reach(info.due_at or 0)
        segment = _Segment(info.key, runner)
        is_lost = was_lost(info)
        assignment = Assignment(
            lane=runner.lane,
            worker=self.id,
            priority=info.priority,
            is_retaken=is_lost,
            retry=runner.settings.retry_runs,
            is_draining=lambda: self._is_leaving,
            is_lost=lambda: segment.is_lost,
        )
        self.counters.add("segments_started")
        if is_lost:
            self.counters.add("taken_over")
        if info.status == "failed":
            self.counters.add("retried")
        call = Call(thread=info.key, if_exists="take_over", assignment=assignment, known=known)
        try:
            segment.losses = count_lost(self.store, info.key) if is_lost else 0
            if segment.losses >= self.options.losses:
                self._hold(info, segment.losses)
            else:
                segment.planned = runner.begin(call)
        except Exception as error:
            segment.refused = error
        return segment

    def _start(self, segment: _Segment) -> None:
        earlier = self._segments.get(segment.key)
        if earlier is not None:
            self._drop(earlier)  # it was taken from us, and came back
        self._segments[segment.key] = segment
        segment.task = asyncio.create_task(self._run_segment(segment))
        segment.task.add_done_callback(partial(self._ended, segment))

    def _ended(self, segment: _Segment, task: asyncio.Task[None]) -> None:
        if self._segments.get(segment.key) is segment:
            del self._segments[segment.key]
        segment.planned = None  # its assignment knows the segment: a circle
        if not task.cancelled() and (error := task.exception()) is not None:
            raised = type(error).__name__, place_of(error)
            _log.error("worker %s: a segment ended with %s at %s", self.id, *raised)
        self.counters.add("segments_ended", label="lost" if segment.is_lost else segment.outcome)
        notify_rest(self.store, segment.key)
        self._wake.set()

    async def _run_segment(self, segment: _Segment) -> None:
        key, refused, began = segment.key, segment.refused, self._ticks()
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
                    self._ticks() - began,
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
            if not (segment.is_lost or self._is_leaving):
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
            self._give_back(key)

    async def _reject_input(self, segment: _Segment, error: Exception) -> bool:
        """Let the next input start, if this one was refused; ``False`` if it is not an input."""
        if not isinstance(segment.planned, PlannedRun):
            return False
        journal = segment.planned.plan.journal
        try:
            rejects = partial(reject_input, self.store, self._clock, journal, error)
            rejected = await self._threads.call(rejects)
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
        """A run with which more than one worker was lost begins alone among such runs.

        If the process dies, only that one has noted in its log that it had a worker.
        """
        if losses < 2:
            yield
            return
        await self._alone.acquire()
        release = _Once(self._alone.release)
        timer = asyncio.get_running_loop().call_later(_ALONE, release)
        try:
            yield
        finally:
            timer.cancel()
            release()

    def _hold(self, info: ThreadInfo, losses: int) -> None:
        """End a run that costs its workers their life; it waits until it is retried."""
        threads = self._serving(info.lane).threads
        if threads is not None:
            failure = hold_lost(threads.store, threads.codec, threads.clock, info, losses)
            _log.error(
                "thread '%s' is held until it is retried: %s",
                printable(info.key.thread),
                failure.message if failure else "it has ended",
            )

    def _serving(self, lane: str) -> Runner[Any]:
        """The runner of a lane, or of its graph in the version of this worker."""
        graph = graph_of(lane)
        return self._runners.get(lane) or next(
            runner for own, runner in self._runners.items() if graph_of(own) == graph
        )

    def _refuse(self, key: ThreadKey, error: Exception) -> None:
        """Leave a thread to workers with other code, and look again after a growing time."""
        self.counters.add("refused")
        count = self._refusals[key] = self._refusals.get(key, 0) + 1
        delay = min(_LONGEST_REFUSAL, 2.0 ** (count - 1))
        _log.warning(
            "thread '%s' does not fit this worker, which tries again in %.0f seconds: %s",
            printable(key.thread),
            delay,
            printable(str(error)) if isinstance(error, MilecastleError) else type(error).__name__,
        )
        self._give_back(key, delay)

    def _give_back(self, key: ThreadKey, delay: float = 0.0) -> None:
        """Let another worker have a thread whose rest this one has not committed."""
        self._owed[key] = delay
        self._wake.set()

    async def _pay(self) -> None:
        """Give back what is owed: between claims, or what was claimed since would be given back.

        What cannot be given back now is owed until it is claimed again; claims do not wait for it.
        """
        for key, delay in list(self._owed.items()):
            try:
                given = await self._threads.call(self.store.give_back, self.id, key, delay=delay)
            except WritesRefused:
                raise
            except StoreError as error:  # others come first next time
                _log.warning("worker %s cannot give a thread back: %s", self.id, error)
                self._owed[key] = self._owed.pop(key)
                return
            self.counters.add("given_back", given)
            del self._owed[key]

    # ---- losing and leaving

    def _check(self) -> None:
        self._long_nodes.look()
        self._check_claims()

    def _pulses(self) -> dict[ThreadKey, int]:
        return {
            key: segment.planned.pulse
            for key, segment in list(self._segments.items())
            if isinstance(segment.planned, PlannedRun)
        }

    def _check_claims(self) -> None:
        """Compare what runs with what the index gives to this worker.

        On the thread of the heartbeat. A segment whose thread is another's is dropped: what runs is
        noted before the index is read, so that a thread claimed in between is not missing. One that
        rests by now has given its thread up itself. A thread without a segment is given back: its
        claim raised, and yet it was written. That is not decided while a claim is under way.
        """
        self._clock.set()
        self._schedules.register()
        claims, segments = self._claims, list(self._segments.values())
        claimed = set(self.store.claimed(self.id))
        for segment in segments:
            if segment.key not in claimed:
                self._on_loop(partial(self._drop_lost, segment))
        if claims % 2 == 0:
            self._on_loop(partial(self._give_back_unknown, claims, claimed))

    def _give_back_unknown(self, claims: int, claimed: set[ThreadKey]) -> None:
        """Give back what the index had for this worker, and it did not run, if it is still so."""
        if claims == self._claims:
            for key in claimed.difference(self._segments, self._owed):
                self._give_back(key)

    def _drop_lost(self, segment: _Segment) -> None:
        """Drop a segment whose thread the index does not give to this worker, unless it rests."""
        if self._segments.get(segment.key) is segment and not segment.is_resting:
            self._drop(segment)

    def _drop(self, segment: _Segment) -> None:
        self.counters.add("lost", not segment.is_lost)
        segment.is_lost = True
        if segment.task is not None:
            self.has_abandoned |= segment.task.cancel()

    async def _drain(self) -> None:
        """Wait until each run is released with its step, for the grace period at most."""
        tasks = [segment.task for segment in self._segments.values() if segment.task]
        if not tasks:
            return
        _log.info("worker %s drains %d threads", self.id, len(tasks))
        _, late = await asyncio.wait(tasks, timeout=self.options.grace)
        for task in late:
            self.has_abandoned |= task.cancel()
        if late:
            await asyncio.wait(late, timeout=5.0)

    def _on_loop(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function)
