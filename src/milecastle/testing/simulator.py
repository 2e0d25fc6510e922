"""The simulator: a third driver, with virtual time, seeded choices and crashes.

Rules:

- One seed, one course: which task of a step runs first, how many are done when the engine asks,
  how many of these it is told of, and how much time has passed, all follow from the seed.
- A crash happens before an effect is performed, or after it and before the engine learns of it.
  Then the run is abandoned, tasks that are not handed back are lost, a ``Volatile`` store loses
  its memory, and the next call finds what a new process would find.
- Everything runs on the calling thread, async functions on an event loop of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from contextvars import copy_context
from random import Random
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import msgspec

from milecastle.app.application import App
from milecastle.app.calls import Call
from milecastle.app.results import Result
from milecastle.drivers.host import Host
from milecastle.engine.effects import (
    AwaitTasks,
    Commit,
    Effect,
    Emit,
    Evaluate,
    Finished,
    RunTask,
    RunTasks,
    Stopped,
)
from milecastle.engine.plan import Ending
from milecastle.errors import InvalidRequest, RunCancelled, RunTimeout
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.ports.store import Batch
from milecastle.testing.clock import ManualClock
from milecastle.testing.faulty_stores import Volatile

__all__ = ["CrashPoint", "Crashed", "Simulator", "Witness"]

S = TypeVar("S")

When = Literal["before", "after"]


class CrashPoint(msgspec.Struct, frozen=True):
    """Where to crash: at which effect, counted from 1 over all calls, and on which side of it."""

    effect: int
    when: When


class Crashed(Exception):
    """The simulated process died. ``kind`` is the effect at which it did."""

    def __init__(self, point: CrashPoint, kind: str) -> None:
        super().__init__(point, kind)
        self.point = point
        self.kind = kind

    def __str__(self) -> str:
        return f"crashed {self.point.when} effect {self.point.effect} ({self.kind})"


class Witness(Protocol):
    """Is told what a simulation really does, whatever the engine learns of it."""

    def starting(self, task: RunTask) -> None:
        """A task is about to run."""
        ...

    def ended(self, task: RunTask) -> None:
        """A task returned or raised."""
        ...

    def committed(self, batch: Batch) -> None:
        """The store acknowledged a batch."""
        ...


class Simulator(Generic[S]):
    """Calls an app the way a process would that may die at any moment.

    ``kinds`` lists the effects that were reached, by name. After ``Crashed`` call again: the
    next process has started.
    """

    def __init__(
        self,
        app: App[S],
        *,
        seed: int = 0,
        crashes: Iterable[CrashPoint] = (),
        clock: ManualClock | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.app = app.using(store=app.store, clock=self.clock)
        self.kinds: list[str] = []
        self._random = Random(seed)  # noqa: S311 - repeatable choices, no secrets
        self._crashes = frozenset(crashes)
        self._witness = witness

    def invoke(
        self,
        input: S | Mapping[str, Any] | None,
        thread: str | ThreadKey | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Like ``App.invoke``; ``Crashed`` if a crash was due on the way."""
        call = self.app.begin(input, thread, options, config)
        if isinstance(call, Result):
            return call
        return self.app.conclude(call, self._drive(call))

    def resume(
        self,
        thread: str | ThreadKey,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Like ``App.resume``; ``Crashed`` if a crash was due on the way."""
        return self.invoke(None, thread, options=options, config=config)

    def _drive(self, call: Call) -> Ending:
        with _Hands(call, self._random, self.clock, self._witness) as hands:
            try:
                return self._perform_all(call, hands)
            except Crashed:
                self._die(call)
                raise

    def _perform_all(self, call: Call, hands: _Hands) -> Ending:
        outcome: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = call.effects.throw(error) if error else call.effects.send(outcome)
            except StopIteration as stop:
                ending: Ending = stop.value
                return ending
            outcome = error = None
            self.kinds.append(type(effect).__name__)
            self._crash_if_due("before")
            try:
                outcome = hands.perform(effect)
            except BaseException as raised:
                error = raised
            self._crash_if_due("after")

    def _crash_if_due(self, when: When) -> None:
        point = CrashPoint(len(self.kinds), when)
        if point in self._crashes:
            raise Crashed(point, self.kinds[-1])

    def _die(self, call: Call) -> None:
        """Abandon the run. An engine that still wants something done would not get it."""
        try:
            call.effects.close()
        except RuntimeError as error:
            raise AssertionError("the engine asked for an effect after the crash") from error
        store: object = self.app.store
        if isinstance(store, Volatile):
            store.crash()
        self.app = self.app.using(store=self.app.store, clock=self.clock)


class _Hands:
    """Performs the effects of one call. ``_ready`` ran already and nobody has heard of it."""

    def __init__(
        self, call: Call, random: Random, clock: ManualClock, witness: Witness | None
    ) -> None:
        self._host: Host = call.host
        self._random = random
        self._clock = clock
        self._witness = witness
        self._pending: list[RunTask] = []
        self._ready: list[Finished] = []
        self._runner = asyncio.Runner()
        self._deadline: float | None = None
        if self._host.timeout is not None:
            self._deadline = clock.now() + self._host.timeout * 1_000_000
        if call.is_async:
            _refuse_running_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._runner.close()

    def perform(self, effect: Effect) -> Any:
        """Do what the engine asks; the outcome."""
        match effect:
            case RunTask():
                self._check()
                return self._run(effect)
            case RunTasks():
                self._check()
                self._pending += effect.tasks
                self._random.shuffle(self._pending)
                return self._wait()
            case AwaitTasks():
                return self._wait()
            case Evaluate():
                return self._runner.run(_awaited(effect.function(effect.state)))
            case Commit():
                self._host.commit(effect.batch)
                if self._witness:
                    self._witness.committed(effect.batch)
                return None
            case Emit():
                self._host.tell(effect.event)
                return None

    def _wait(self) -> list[Finished]:
        """Let some tasks end, and tell of some that ended; at least of one."""
        choose = self._random.randint
        for _ in range(choose(0 if self._ready else 1, len(self._pending))):
            self._ready.append(self._finish(self._pending.pop()))
        self._random.shuffle(self._ready)
        told = choose(1, len(self._ready))
        finished, self._ready = self._ready[:told], self._ready[told:]
        return finished

    def _finish(self, task: RunTask) -> Finished:
        try:
            return Finished(task, self._run(task))
        except Exception as error:
            return Finished(task, None, error)

    def _run(self, task: RunTask) -> Any:
        self._clock.advance(self._random.random())
        if self._witness:
            self._witness.starting(task)
        try:
            call = copy_context().run
            returned = call(task.node.call, task.state, task.config, task.context)
            return self._runner.run(_awaited(returned)) if task.node.is_async else returned
        finally:
            if self._witness:
                self._witness.ended(task)

    def _check(self) -> None:
        """Raise ``Stopped`` if the run was asked to stop, or is out of virtual time."""
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
        "this graph has async functions and an event loop is already running here: simulate it "
        "in a thread, await asyncio.to_thread(...)"
    )
