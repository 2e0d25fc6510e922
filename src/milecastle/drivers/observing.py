"""Calling observers: an exception is logged once, and ends the observer's calls in the run."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Final, TypeGuard, TypeVar

from milecastle.engine.pauses import Paused
from milecastle.errors import place_of
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Segment
from milecastle.model.task import RunTask
from milecastle.ports.observer import (
    MessageObserver,
    Observer,
    TaskObserver,
    TracingObserver,
)
from milecastle.ports.store import Batch

AnyObserver = TypeVar("AnyObserver", bound=Observer)
Wrap = Callable[[], AbstractContextManager[object]]


@cache
def _traces(kind: type) -> bool:
    return issubclass(kind, TracingObserver)


def _is_tracing(observer: Observer) -> TypeGuard[TracingObserver]:
    return _traces(type(observer))


def switched_on(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    return tuple(one for one in observers if not _is_tracing(one) or one.is_on())


class Observers:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)
        self._tracing = list(filter(_is_tracing, observers))
        self._begun = tuple(self._tracing)

    def tell(self, event: Event) -> None:
        for observer in tuple(self._observers):
            try:
                observer.on_event(event)
            except Exception as error:
                self._drop(observer, error)

    @property
    def sees_commits(self) -> bool:
        return bool(self._tracing)

    def begin_segment(self, segment: Segment) -> dict[str, str]:
        stored: dict[str, str] = {}
        self._each(self._tracing, lambda one: stored.update(one.begin_segment(segment)))
        return stored

    def end_segment(self, run_id: str) -> None:
        """End a segment, also for failed observers: they release its resources."""
        self._each(self._begun, lambda one: one.end_segment(run_id))

    def message_sent(self) -> dict[str, str]:
        stored: dict[str, str] = {}
        self._each(self._of_messages(), lambda one: stored.update(one.message_sent()))
        return stored

    def message_received(self, run_id: str, stored: Mapping[str, str]) -> None:
        self._each(self._of_messages(), lambda one: one.message_received(run_id, stored))

    def _of_messages(self) -> list[MessageObserver]:
        return [one for one in self._observers if isinstance(one, MessageObserver)]

    def _each(
        self, observers: Iterable[AnyObserver], call: Callable[[AnyObserver], object]
    ) -> None:
        for observer in tuple(observers):
            try:
                call(observer)
            except Exception as error:
                self._drop(observer, error)

    def around(self, task: RunTask) -> AbstractContextManager[None]:
        event = Event(
            type="node_start",
            run_id=task.run.run_id,
            key=task.run.thread,
            node=task.node,
            step=task.step,
            task=task.id,
            attempt=task.attempt,
        )
        found = [one for one in self._observers if isinstance(one, TaskObserver)]
        return self._inside([(one, partial(one.wrap_task, event)) for one in found])

    def around_commit(
        self, key: ThreadKey, batch: Batch | None = None
    ) -> AbstractContextManager[None]:
        """Context for a commit; a transaction's batch is not known before."""
        entry = batch.entries[-1] if batch and batch.entries else None
        event = Event(
            type="checkpoint_save",
            run_id=entry.run_id if entry else "",
            key=key,
            step=entry.step if entry else 0,
            seq=entry.seq if entry else None,
            data={
                "source": entry.source if entry else None,
                "superseded": sum(run.status == "superseded" for run in batch.runs) if batch else 0,
            },
        )
        return self._inside([(one, partial(one.wrap_commit, event)) for one in self._tracing])

    @contextmanager
    def _inside(self, wraps: Sequence[tuple[Observer, Wrap]]) -> Generator[None, None, None]:
        entered = self._enter(wraps)
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

    def _enter(
        self, wraps: Sequence[tuple[Observer, Wrap]]
    ) -> list[tuple[Observer, AbstractContextManager[object]]]:
        entered: list[tuple[Observer, AbstractContextManager[object]]] = []
        for observer, wrap in wraps:
            try:
                manager = wrap()
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
        self._tracing = [one for one in self._tracing if one is not observer]
        logging.getLogger("milecastle").warning(
            "observer %s raised %s at %s and is not called again in this run",
            type(observer).__qualname__,
            type(error).__qualname__,
            place_of(error),  # its message may contain values: an observer receives them
        )


NO_OBSERVERS: Final = Observers(())


def _leave(manager: AbstractContextManager[object], raised: BaseException | None) -> None:
    if raised is None:
        manager.__exit__(None, None, None)
    else:
        manager.__exit__(type(raised), raised, raised.__traceback__)
