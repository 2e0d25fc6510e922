"""Calling observers: what one raises is logged once, and it is not called again in that run."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager

from milecastle.engine.asking import Paused
from milecastle.model.event import Event
from milecastle.model.task import RunTask
from milecastle.ports.observer import Observer, TaskObserver


class Observers:
    """The observers of one run."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def tell(self, event: Event) -> None:
        """Hand an event to each of them."""
        for observer in tuple(self._observers):
            try:
                observer.on_event(event)
            except Exception as error:
                self._drop(observer, error)

    @contextmanager
    def around(self, task: RunTask) -> Generator[None, None, None]:
        """What to call the node of a task in."""
        event = Event(
            type="node_start",
            run_id=task.run.run_id,
            key=task.run.thread,
            node=task.node,
            step=task.step,
            task=task.id,
            attempt=task.attempt,
        )
        entered = self._enter(event)
        raised: BaseException | None = None
        try:
            yield
        except BaseException as error:
            raised = None if isinstance(error, Paused) else error
            raise
        finally:
            for observer, manager in reversed(entered):
                try:
                    _leave(manager, raised)
                except Exception as error:
                    self._drop(observer, error)

    def _enter(self, event: Event) -> list[tuple[Observer, AbstractContextManager[object]]]:
        entered: list[tuple[Observer, AbstractContextManager[object]]] = []
        for observer in tuple(self._observers):
            if not isinstance(observer, TaskObserver):
                continue
            try:
                manager = observer.wrap_task(event)
                manager.__enter__()
            except Exception as error:
                self._drop(observer, error)
            else:
                entered.append((observer, manager))
        return entered

    def _drop(self, observer: Observer, error: Exception) -> None:
        import logging

        if observer not in self._observers:
            return  # another thread was first
        self._observers.remove(observer)
        logging.getLogger("milecastle").warning(
            "observer %s raised %s and is not called again in this run",
            type(observer).__qualname__,
            type(error).__qualname__,
            exc_info=error,
        )


def _leave(manager: AbstractContextManager[object], raised: BaseException | None) -> None:
    if raised is None:
        manager.__exit__(None, None, None)
    else:
        manager.__exit__(type(raised), raised, raised.__traceback__)
