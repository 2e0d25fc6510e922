"""What both drivers have at hand: the store, the observers, and whether the run should stop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any

from milecastle.drivers.committer import Committer, committer_of
from milecastle.engine.effects import Begin, Commit, Emit, Stopped
from milecastle.errors import InvalidRequest, RunCancelled, RunError, RunTimeout
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import CancelEvent
from milecastle.ports.clock import Clock
from milecastle.ports.observer import Observer
from milecastle.ports.store import Batch, Store, TransactionStore

if TYPE_CHECKING:
    from milecastle.engine.plan import RunPlan

__all__ = ["Host"]


class Host:
    """The surroundings of one run. ``watching`` is false when nothing can stop it.

    To nodes it is the ``Services``; drivers put their own ways of emitting and recording in.
    ``begin`` looks up the thread of a subgraph. ``committer`` is there if the store writes groups.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store | None = None,
        observers: tuple[Observer, ...] = (),
        wanted: Callable[[Event], Event | None] | None = None,
        cancel: CancelEvent | None = None,
        timeout: float | None = None,
        max_parallel: int = 32,
        begin: Callable[[Begin, Host], RunPlan] | None = None,
    ) -> None:
        self.clock = clock
        self.store = store
        self.committer = committer_of(store) if store is not None else None
        self.commit: Callable[[Batch], None] = _commit_of(store, self.committer)
        self.acommit: Callable[[Batch], Coroutine[Any, Any, None]] = self._acommit
        self.emit: Callable[[Event], object] = self.tell
        self.aemit: Callable[[Event], Coroutine[Any, Any, None]] = self._aemit
        self.cancel = cancel
        self.timeout = timeout
        self.deadline = None if timeout is None else monotonic() + timeout
        self.watching = cancel is not None or timeout is not None
        self.max_parallel = max_parallel
        self._begin = begin
        self._observers = list(observers)
        self._wanted = wanted

    def begin(self, effect: Begin) -> RunPlan:
        """The plan of the run of a subgraph."""
        if self._begin is None:
            raise InvalidRequest("this run cannot begin subgraphs")
        return self._begin(effect, self)

    def transact(self, key: ThreadKey, work: Callable[[Any], Batch]) -> None:
        """Let a node write in the transaction that records it, on a store that can."""
        if not isinstance(self.store, TransactionStore):
            raise InvalidRequest(
                "ctx.transaction() needs a store with transactions: postgresql://..."
            )
        self.store.transact(key, work)

    @property
    def is_read(self) -> bool:
        """Whether somebody reads events as they come."""
        return self._wanted is not None

    async def _acommit(self, batch: Batch) -> None:
        self.commit(batch)

    async def _aemit(self, event: Event) -> None:
        self.emit(event)

    def tell(self, event: Event) -> Event | None:
        """Tell the observers; what who reads the stream wants to see of it, if anything."""
        for observer in tuple(self._observers):
            try:
                observer.on_event(event)
            except Exception as error:
                self._observers.remove(observer)
                _warn(observer, error)
        return self._wanted(event) if self._wanted else None

    def perform_last(self, effect: Commit | Emit) -> Exception | None:
        """Perform an effect of a run that is being stopped; what it raised."""
        try:
            if isinstance(effect, Commit):
                self.commit(effect.batch)
            else:
                self.tell(effect.event)
        except Exception as error:
            return error
        return None

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

    def as_monotonic(self, until: int | None) -> float | None:
        """A time of the clock as one of ``monotonic()``."""
        if until is None:
            return None
        return monotonic() + (until - self.clock.now()) / 1_000_000


def _commit_of(store: Store | None, committer: Committer | None) -> Callable[[Batch], None]:
    if committer is not None:
        return committer.commit
    return store.commit if store is not None else _no_store


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
