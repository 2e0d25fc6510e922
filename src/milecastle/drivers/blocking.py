"""The blocking driver: performs effects on the calling thread.

Tasks of a step with several run in threads of a pool that lives as long as the run. A sync node
cannot be interrupted: the run stops before the next step.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from milecastle.drivers.host import Host
from milecastle.engine.effects import (
    AwaitTasks,
    Commit,
    Effect,
    Emit,
    Finished,
    RunTask,
    RunTasks,
    Stopped,
)
from milecastle.engine.plan import Ending
from milecastle.errors import RunCancelled
from milecastle.model.event import Event

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["drive"]


def drive(effects: Generator[Effect, Any, Ending], host: Host) -> Generator[Event, None, Ending]:
    """Perform the effects of a run; yields the events that the host wants to see.

    Closing this generator ends the run cleanly at its last commit.
    """
    pool = _Pool()
    try:
        return (yield from _perform_all(effects, host, pool))
    except GeneratorExit:
        _stop(effects, host)
        raise
    finally:
        pool.close()


def _perform_all(
    effects: Generator[Effect, Any, Ending], host: Host, pool: _Pool
) -> Generator[Event, None, Ending]:
    outcome: Any = None
    error: BaseException | None = None
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
                outcome = _perform(effect, host, pool)
                continue
        except BaseException as raised:
            error = raised
            continue
        event = host.tell(effect.event)
        if event is not None:
            yield event


def _perform(effect: Effect, host: Host, pool: _Pool) -> Any:
    match effect:
        case RunTasks():
            host.check()
            pool.start(effect.tasks)
            return pool.wait()
        case AwaitTasks():
            return pool.wait()
        case _:
            raise AssertionError(f"the blocking driver does not know {type(effect).__name__}")


def _stop(effects: Generator[Effect, Any, Ending], host: Host) -> None:
    """The reader of a stream went away: let the engine close its record."""
    error: BaseException | None = Stopped(RunCancelled())
    try:
        while True:
            effect = effects.throw(error) if error else effects.send(None)
            error = None
            try:
                if isinstance(effect, Commit):
                    host.commit(effect.batch)
                elif isinstance(effect, Emit):
                    host.tell(effect.event)
            except Exception as raised:
                error = raised
    except (StopIteration, RunCancelled, Stopped):
        return


class _Pool:
    """The threads of one run, made when they are first needed."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._running: dict[Future[Any], RunTask] = {}

    def start(self, tasks: tuple[RunTask, ...]) -> None:
        from concurrent.futures import ThreadPoolExecutor
        from contextvars import copy_context

        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=32, thread_name_prefix="milecastle")
        for task in tasks:
            call = task.node.call
            future = self._executor.submit(
                copy_context().run, call, task.state, task.config, task.context
            )
            self._running[future] = task

    def wait(self) -> list[Finished]:
        """The tasks that ended; at least one."""
        from concurrent.futures import FIRST_COMPLETED, wait

        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        finished: list[Finished] = []
        for future in done:
            task = self._running.pop(future)
            error = future.exception()
            update = None if error else future.result()
            finished.append(Finished(task, update, error))
        return finished

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
