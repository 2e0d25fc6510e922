"""What both drivers have at hand: the store, the observers, and whether the run should stop."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from milecastle.engine.effects import Stopped
from milecastle.errors import RunCancelled, RunError, RunTimeout
from milecastle.model.event import Event
from milecastle.model.policies import CancelEvent
from milecastle.ports.observer import Observer
from milecastle.ports.store import Batch, Store

__all__ = ["Host"]


class Host:
    """The surroundings of one run. ``watching`` is false when nothing can stop it."""

    def __init__(
        self,
        *,
        store: Store | None = None,
        observers: tuple[Observer, ...] = (),
        wanted: Callable[[Event], Event | None] | None = None,
        cancel: CancelEvent | None = None,
        timeout: float | None = None,
    ) -> None:
        self.store = store
        self.commit: Callable[[Batch], None] = store.commit if store is not None else _no_store
        self.cancel = cancel
        self.timeout = timeout
        self.deadline = None if timeout is None else monotonic() + timeout
        self.watching = cancel is not None or timeout is not None
        self._observers = list(observers)
        self._wanted = wanted

    def tell(self, event: Event) -> Event | None:
        """Tell the observers; what who reads the stream wants to see of it, if anything."""
        for observer in tuple(self._observers):
            try:
                observer.on_event(event)
            except Exception as error:
                self._observers.remove(observer)
                _warn(observer, error)
        return self._wanted(event) if self._wanted else None

    def check(self) -> None:
        """Raise ``Stopped`` if the run was asked to stop or is out of time."""
        reason = self.stop_reason()
        if reason is not None:
            raise Stopped(reason)

    def stop_reason(self) -> RunError | None:
        """Why the run should stop now, if it should."""
        if self.cancel is not None and self.cancel.is_set():
            return RunCancelled()
        if self.timeout is not None and self.deadline is not None and monotonic() >= self.deadline:
            return RunTimeout(seconds=self.timeout)
        return None


def _no_store(batch: Batch) -> None:
    raise AssertionError("a run without a store cannot commit")


def _warn(observer: Observer, error: Exception) -> None:
    import logging

    logging.getLogger("milecastle").warning(
        "observer %s raised %s and is not called again in this run",
        type(observer).__qualname__,
        type(error).__qualname__,
        exc_info=error,
    )
