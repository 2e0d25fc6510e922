"""The blocking driver: performs effects on the calling thread.

A single task runs there too; tasks in a step with several run in threads that live as long as the
run. A sync node cannot be interrupted: the run stops before the next step. Tasks running in other
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
from milecastle.engine.context import current_task, running_task
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
    """Events from task threads go to the driver; its own are emitted directly."""

    def __init__(self, host: Host, executor: Executor) -> None:
        self.host = host
        self._executor = executor
        self._thread = get_ident()

    def emit(self, event: Event) -> None:
        if get_ident() == self._thread:
            self.host.tell(event)
        else:
            self._executor.emit(event)


def drive(begin: BeginRun, host: Host) -> Generator[Event, None, Ending]:
    executor = host.executors.on_thread(host.ports, host.max_parallel)
    effects = begin(_Services(host, executor))
    # the task that the reader of the events is part of, if it is of any
    outside = None if current_task.get() is None else running_task()
    outcome: Any = None
    error: BaseException | None = None
    call = executor.call
    try:
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
    except GeneratorExit:
        last, unperformed = last_effects(effects), None
        while (wanted := advance(last, unperformed)) is not None:
            unperformed = host.perform_last(wanted)
        raise
    finally:
        current_task.set(outside)
        executor.close()
        host.leave()


def hand_over(begin: BeginRun, host: Host) -> Ending:
    """Commit the opening of a run queued for workers: nothing runs here."""
    effects = begin(HostServices(host))
    error: BaseException | None = None
    while True:
        try:
            effect = effects.send(None) if error is None else effects.throw(error)
        except StopIteration as stop:
            ending: Ending = stop.value
            return ending
        error = None
        try:
            if isinstance(effect, Commit):
                host.commit(effect.batch)
            elif isinstance(effect, Emit):
                host.tell(effect.event)
            else:
                raise AssertionError(f"a queued run does not perform {type(effect).__name__}")
        except BaseException as raised:
            error = failed_commit(raised)


def _perform(effect: Effect, host: Host, executor: Executor) -> Any:
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
    if not (host.watching and executor.can_stop):
        return end
    soon = monotonic() + _GLANCE
    return soon if end is None else min(soon, end)
