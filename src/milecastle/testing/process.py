"""A simulated process: performs one call's effects on the calling thread, and may die.

Rules:

- The gate is passed before and after each effect, and before and after each record a node makes
  (kind ``Record``). If it raises ``Crashed`` the process is dead: nothing more is written, whatever
  a running node's code does with the exception.
- Time is virtual. A node takes time by ``clock.advance``; beyond its timeout it has timed out.
- Random numbers decide which task runs first, which have ended and which are reported to the
  engine, and whether time passes instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from random import Random
from typing import Any, Literal, Protocol, TypeVar, assert_never

import msgspec

from milecastle.app.runs.planned import PlannedRun
from milecastle.drivers.host import Host, HostServices
from milecastle.drivers.node_caller import NodeCaller, perform
from milecastle.engine.context import RunningTask
from milecastle.engine.effects import (
    AwaitTasks,
    Begin,
    CancelTasks,
    Commit,
    Effect,
    Emit,
    Evaluate,
    Leave,
    Recall,
    StartTasks,
    Stopped,
)
from milecastle.engine.pauses import Paused
from milecastle.engine.plan import Ending
from milecastle.errors import InvalidRequest, NodeTimeout, RunCancelled, RunTimeout
from milecastle.model.task import Finished, RunTask
from milecastle.ports.store import Batch
from milecastle.testing.clock import ManualClock

T = TypeVar("T")

When = Literal["before", "after"]


class CrashPoint(msgspec.Struct, frozen=True):
    """Where to crash: the effect's number over all calls, and the side."""

    effect: int
    when: When


class Crashed(Exception):
    """The simulated process died at the effect ``kind``."""

    def __init__(self, point: CrashPoint, kind: str) -> None:
        super().__init__(point, kind)
        self.point = point
        self.kind = kind

    def __str__(self) -> str:
        return f"crashed {self.point.when} effect {self.point.effect} ({self.kind})"


class _Dead(BaseException): ...


class Gate(Protocol):
    def before(self, kind: str) -> int:
        """An effect is about to be performed; returns its number."""
        ...

    def after(self, kind: str, number: int) -> None:
        """An effect was performed; the engine or node has not received it yet."""
        ...


class Witness(Protocol):
    """Receives a simulation's real actions, whatever the engine learns."""

    def starting(self, task: RunTask) -> None:
        """A task is about to run."""
        ...

    def ended(self, task: RunTask) -> None:
        """A task returned or raised."""
        ...

    def told(self, task: RunTask) -> None:
        """The engine is about to learn one task ended well."""
        ...

    def waiting(self) -> None:
        """The engine waits for other tasks: reported results should be durable."""
        ...

    def recording(self, batch: Batch) -> None:
        """A node's effect is about to be recorded."""
        ...

    def committed(self, batch: Batch) -> None:
        """The store acknowledged a batch."""
        ...


class _Services(HostServices):
    chunk_delay = None  # only the run's own effects decide when something is written

    def __init__(self, host: Host, commit: Callable[[Batch], None]) -> None:
        super().__init__(host)
        self._record = commit

    def commit(self, batch: Batch) -> None:
        self._record(batch)


class SimulatedProcess:
    """Performs one call's effects. ``_ready`` tasks ran already, unreported."""

    def __init__(
        self,
        planned: PlannedRun,
        *,
        random: Random,
        clock: ManualClock,
        gate: Gate,
        witness: Witness | None = None,
    ) -> None:
        self._effects = planned.effects(_Services(planned, self._record))
        self._host = planned
        self._random = random
        self._clock = clock
        self._gate = gate
        self._witness = witness
        self._calls = NodeCaller((planned.plan.graph,), planned.ports, perform)
        self._commit = planned.commit
        self._pending: list[RunTask] = []
        self._ready: list[Finished] = []
        self._runner = asyncio.Runner()
        self._crashed: Crashed | None = None
        self._deadline: float | None = None
        if self._host.timeout is not None:
            self._deadline = clock.now() + self._host.timeout * 1_000_000
        if planned.plan.graph.is_async:
            _refuse_running_loop()

    def go(self) -> Generator[str, None, Ending]:
        outcome: Any = None
        error: BaseException | None = None
        effects = self._effects
        try:
            while True:
                try:
                    effect = effects.throw(error) if error else effects.send(outcome)
                except StopIteration as stop:
                    ending: Ending = stop.value
                    return ending
                outcome = error = None
                kind = type(effect).__name__
                number = self._gate.before(kind)
                try:
                    outcome = self._perform(effect)
                except BaseException as raised:
                    error = raised
                if self._crashed is not None:
                    raise self._crashed
                self._gate.after(kind, number)
                yield kind
        except Crashed as crashed:
            self._crashed = crashed
            raise
        finally:
            self.leave()

    def leave(self) -> None:
        self._runner.close()
        self._calls.close()
        try:
            self._effects.close()
        except RuntimeError as error:
            raise AssertionError("the engine requested an effect after the crash") from error

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case RunTask():
                self._check()
                return self._run(effect)
            case StartTasks():
                self._check()
                self._pending += effect.tasks
                self._random.shuffle(self._pending)
            case AwaitTasks():
                return self._wait(effect.until)
            case CancelTasks():
                self._cancel(effect.tasks)
            case Begin():
                return self._host.begin(effect)
            case Recall():
                return effect.read()
            case Leave():
                effect.save(effect.ending, effect.results)
            case Evaluate():
                return self._runner.run(_awaited(effect.function(effect.state)))
            case Commit():
                self._commit(effect.batch)
                if self._witness:
                    self._witness.committed(effect.batch)
            case Emit():
                self._host.tell(effect.event)
            case _:
                assert_never(effect)
        return None

    # ---- what nodes have recorded

    def _record(self, batch: Batch) -> None:
        if self._witness and self._crashed is None:
            self._witness.recording(batch)
        number = self._survive(lambda: self._gate.before("Record"))
        self._commit(batch)
        if self._witness:
            self._witness.committed(batch)
        self._survive(lambda: self._gate.after("Record", number))

    def _survive(self, passing: Callable[[], T]) -> T:
        if self._crashed is None:
            try:
                return passing()
            except Crashed as crashed:
                self._crashed = crashed
        raise _Dead

    # ---- tasks

    def _wait(self, until: int | None) -> list[Finished]:
        """Let some tasks end, and report some; none if the time comes first."""
        choose = self._random.randint
        if self._witness:
            self._witness.waiting()
        if not (self._pending or self._ready):
            if until is None:
                raise AssertionError("the engine is waiting, but nothing is running")
            return self._pass_time(until)
        if until is not None and choose(0, 1):
            return self._pass_time(until)
        for _ in range(choose(0 if self._ready else 1, len(self._pending))):
            self._ready.append(self._finish(self._pending.pop()))
        self._random.shuffle(self._ready)
        told = choose(1, len(self._ready))
        finished, self._ready = self._ready[:told], self._ready[told:]
        if self._witness:
            for item in finished:
                if item.error is None:
                    self._witness.told(item.task)
        return finished

    def _pass_time(self, until: int) -> list[Finished]:
        self._clock.advance(max(0, until - self._clock.monotonic()) / 1_000_000)
        return []

    def _cancel(self, tasks: tuple[RunTask, ...]) -> None:
        for task in tasks:
            if task in self._pending and self._random.randint(0, 1):
                self._pending.remove(task)
                self._ready.append(Finished(task, None, asyncio.CancelledError()))

    def _finish(self, task: RunTask) -> Finished:
        try:
            return Finished(task, self._run(task))
        except (Exception, Paused, _Dead) as error:
            return Finished(task, None, error)

    def _run(self, task: RunTask) -> Any:
        self._clock.advance(self._random.random())
        if self._witness and self._crashed is None:
            self._witness.starting(task)
        try:
            return self._timed(task)
        finally:
            if self._witness:
                self._witness.ended(task)

    def _timed(self, task: RunTask) -> Any:
        began, running = self._clock.now(), self._calls.open(task)
        try:
            returned = self._call(running)
        except Exception:
            self._refuse_late(running, began)
            raise
        self._refuse_late(running, began)
        return returned

    def _call(self, running: RunningTask) -> Any:
        context = copy_context()
        returned = context.run(perform, running)
        if not running.node.is_async:
            return returned
        return self._runner.run(_awaited(returned), context=context)

    def _refuse_late(self, running: RunningTask, began: int) -> None:
        """Raise ``NodeTimeout`` if the task took too long; a node with heartbeats is not idle."""
        timeout = running.node.policy.timeout
        if timeout is None:
            return
        beats = running.made is not None and running.made.beat > 0
        limits = [timeout.run, None if beats else timeout.idle]
        seconds = min(limit for limit in [*limits, float("inf")] if limit is not None)
        if self._clock.now() - began > seconds * 1_000_000:
            raise NodeTimeout(node=running.node.name, seconds=seconds)

    def _check(self) -> None:
        """Raise ``Stopped`` if the run must stop, or is out of virtual time."""
        host = self._host
        if host.cancel is not None and host.cancel.is_set():
            raise Stopped(RunCancelled())
        if self._deadline is not None and self._clock.now() >= self._deadline:
            raise Stopped(RunTimeout(seconds=host.timeout or 0))


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest(
        "this graph has async functions and an event loop is already running: simulate it in a "
        "thread with await asyncio.to_thread(...)"
    )
