"""The blocking driver: performs effects on the calling thread.

A single task runs there too; tasks of a step with several run in threads that live as long as the
run. A sync node cannot be interrupted: the run stops before the next step. Tasks that run in other
processes can.
"""

from __future__ import annotations

from collections.abc import Generator
from threading import get_ident
from time import monotonic
from typing import Any, Final

from milecastle.drivers.host import (
    BeginRun,
    Host,
    HostServices,
    advance,
    failed_commit,
    last_effects,
)
from milecastle.engine.context import RunningTask, current_task, running_task
from milecastle.engine.effects import (
    AwaitTasks,
    Begin,
    CancelTasks,
    Commit,
    Effect,
    Emit,
    Leave,
    Recall,
    StartTasks,
)
from milecastle.engine.plan import Ending
from milecastle.model.event import Event
from milecastle.model.task import Finished, RunTask
from milecastle.ports.executor import Executor

_GLANCE: Final = 0.05
"""How often, in seconds, a run whose tasks can be stopped checks whether it should stop."""


class _Services(HostServices):
    """From the thread of a task an event goes to the driver; from its own it is emitted."""

    def __init__(self, host: Host, executor: Executor) -> None:
        super().__init__(host)
        self._executor = executor
        self._thread = get_ident()

    def emit(self, event: Event) -> None:
        if get_ident() == self._thread:
            self.host.tell(event)
        else:
            self._executor.emit(event)


def drive(begin: BeginRun, host: Host) -> Generator[Event, None, Ending]:
    """Perform the effects of a run; yields the events that the host wants to see.

    Closing this generator ends the run cleanly at its last commit.
    """
    executor = host.executors.on_thread(host.ports, host.max_parallel)
    effects = begin(_Services(host, executor))
    outside = running_task()
    try:
        return (yield from _perform_all(effects, host, executor, outside))
    except GeneratorExit:
        last, error = last_effects(effects), None
        while (effect := advance(last, error)) is not None:
            error = host.perform_last(effect)
        raise
    finally:
        current_task.set(outside)
        executor.close()
        host.leave()


def _perform_all(
    effects: Generator[Effect, Any, Ending],
    host: Host,
    executor: Executor,
    outside: RunningTask | None,
) -> Generator[Event, None, Ending]:
    """``outside`` is the task that the reader of the events is part of, if it is of any."""
    outcome: Any = None
    error: BaseException | None = None
    call = executor.call
    while True:
        try:
            effect = effects.send(outcome) if error is None else effects.throw(error)
        except StopIteration as stop:
            ending: Ending = stop.value
            return ending
        outcome = error = None
        try:
            if type(effect) is RunTask:
                if host.watching:
                    host.check()
                outcome = call(effect)
                continue
            if type(effect) is Commit:
                host.commit(effect.batch)
                continue
            if type(effect) is not Emit:
                current_task.set(outside)
                outcome = (
                    (yield from _wait(effect.until, host, executor))
                    if isinstance(effect, AwaitTasks)
                    else _perform(effect, host, executor)
                )
                continue
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised if type(effect) is not Commit else failed_commit(raised)
            continue
        event = host.tell(effect.event)
        if event is not None:
            current_task.set(outside)
            yield event


def _perform(effect: Effect, host: Host, executor: Executor) -> Any:
    """Start or cancel tasks, begin a subgraph, read rows, save a portable file."""
    match effect:
        case StartTasks():
            host.check()
            executor.start(effect.tasks)
        case CancelTasks():
            executor.cancel(effect.tasks)
        case Begin():
            return host.begin(effect)
        case Recall():
            return effect.read()
        case Leave():
            effect.save(effect.ending, effect.results)
        case _:
            raise AssertionError(f"the blocking driver does not know {type(effect).__name__}")
    return None


def _wait(
    until: int | None, host: Host, executor: Executor
) -> Generator[Event, None, list[Finished]]:
    """The tasks that ended; none if the time came first. Events are emitted meanwhile."""
    end = host.as_monotonic(until)
    finished: list[Finished] = []
    while not finished:
        for item in executor.wait(_glance(end, host, executor)):
            if isinstance(item, Finished):
                finished.append(item)
            elif (event := host.tell(item)) is not None:
                yield event
        if end is not None and monotonic() >= end:
            break
        if host.watching and not finished and executor.can_stop:
            host.check()
    return finished


def _glance(end: float | None, host: Host, executor: Executor) -> float | None:
    """When to look whether the run should stop, if what runs can be stopped."""
    if not (host.watching and executor.can_stop):
        return end
    soon = monotonic() + _GLANCE
    return soon if end is None else min(soon, end)
