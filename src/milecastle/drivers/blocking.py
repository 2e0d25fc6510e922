"""The blocking driver: performs effects on the calling thread.

Tasks of a step with several run in threads that live as long as the run. A sync node cannot be
interrupted: the run stops before the next step.
"""

from __future__ import annotations

from collections.abc import Generator
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from milecastle.drivers.host import Host
from milecastle.drivers.stopping import advance, last_effects
from milecastle.engine.asking import current_task
from milecastle.engine.effects import (
    AwaitTasks,
    Begin,
    CancelTasks,
    Commit,
    Effect,
    Emit,
    Finished,
    Recall,
    RunTask,
    StartTasks,
)
from milecastle.engine.plan import Ending
from milecastle.model.event import Event

if TYPE_CHECKING:
    from milecastle.drivers.workers import Workers

__all__ = ["drive"]


def drive(effects: Generator[Effect, Any, Ending], host: Host) -> Generator[Event, None, Ending]:
    """Perform the effects of a run; yields the events that the host wants to see.

    Closing this generator ends the run cleanly at its last commit.
    """
    crew = _Crew(host)
    outside = current_task.get(None)
    try:
        return (yield from _perform_all(effects, host, crew, outside))
    except GeneratorExit:
        last, error = last_effects(effects), None
        while (effect := advance(last, error)) is not None:
            error = host.perform_last(effect)
        raise
    finally:
        current_task.set(outside)
        crew.close()


def _perform_all(
    effects: Generator[Effect, Any, Ending], host: Host, crew: _Crew, outside: RunTask | None
) -> Generator[Event, None, Ending]:
    """``outside`` is the task that whoever reads the events is part of, if it is of any."""
    outcome: Any = None
    error: BaseException | None = None
    set_task = current_task.set
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
                set_task(effect)
                node = effect.node
                if node.positional:
                    outcome = node.function(effect.state)
                else:
                    outcome = node.call(effect.state, effect.config, effect.context)
                continue
            if type(effect) is Commit:
                host.commit(effect.batch)
                continue
            if type(effect) is not Emit:
                set_task(outside)
                outcome = (
                    (yield from crew.wait(effect.until))
                    if isinstance(effect, AwaitTasks)
                    else crew.perform(effect)
                )
                continue
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
            continue
        event = host.tell(effect.event)
        if event is not None:
            set_task(outside)
            yield event


class _Crew:
    """The workers of one run, made when they are first needed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._workers: Workers | None = None
        self._thread = get_ident()
        host.emit = self._emit

    def perform(self, effect: Effect) -> Any:
        """Start tasks, or begin a subgraph."""
        match effect:
            case StartTasks():
                self._host.check()
                self._get().start(effect.tasks)
            case CancelTasks():
                pass  # a thread cannot be stopped: its task ends as it would have
            case Begin():
                return self._host.begin(effect)
            case Recall():
                return effect.read()
            case _:
                raise AssertionError(f"the blocking driver does not know {type(effect).__name__}")
        return None

    def wait(self, until: int | None) -> Generator[Event, None, list[Finished]]:
        """The tasks that ended; none if the time came first. Events are told on the way."""
        host, workers, end = self._host, self._get(), self._host.as_monotonic(until)
        finished: list[Finished] = []
        while not finished:
            for item in workers.wait(end):
                if isinstance(item, Finished):
                    finished.append(item)
                elif (event := host.tell(item)) is not None:
                    yield event
            if end is not None and monotonic() >= end:
                break
        return finished

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()

    def _get(self) -> Workers:
        if self._workers is None:
            from milecastle.drivers.workers import Workers

            self._workers = Workers(self._host.max_parallel)
        return self._workers

    def _emit(self, event: Event) -> None:
        """From a worker's thread the event goes to the driver; from its own it is told at once."""
        if get_ident() == self._thread:
            self._host.tell(event)
        else:
            self._get().emit(event)
