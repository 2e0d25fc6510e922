"""Shared by both drivers: the store, the observers, and stop checks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping
from time import monotonic
from typing import Any, TypeVar

from milecastle.drivers.chunks import DELAY, ValueChunks
from milecastle.drivers.committer import Committer, PartedCommitter, committer_of
from milecastle.drivers.local import LocalExecutors
from milecastle.drivers.observing import NO_OBSERVERS, Observers
from milecastle.engine.effects import Begin, Commit, Effect, Emit, Stopped
from milecastle.engine.plan import Ending, RunPlan
from milecastle.errors import (
    InvalidRequest,
    MilecastleError,
    RunCancelled,
    RunError,
    RunTimeout,
    StoreError,
)
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import CancelEvent
from milecastle.model.run import Segment
from milecastle.ports.buckets import Buckets, require_buckets
from milecastle.ports.clock import Clock
from milecastle.ports.executor import Executors
from milecastle.ports.files import PlacedFiles, require_files
from milecastle.ports.observer import Observer
from milecastle.ports.services import Chunks, Services
from milecastle.ports.store import Batch, Store
from milecastle.ports.task import TaskPort

BeginRun = Callable[[Services], Generator[Effect, Any, Ending]]
"""Starts the run that a driver performs, with the services of that driver."""

T = TypeVar("T")
CommitBatch = Callable[[Batch], Coroutine[Any, Any, None]]
"""Commits a batch on an event loop."""

LastEffects = Generator[Commit | Emit, Exception | None, None]


class Host:
    """One run's surroundings. ``watching`` is false when nothing can stop it.

    ``begin`` looks up a subgraph's thread. ``committer`` is there if the store writes groups.
    ``ports`` are the call's runs, by their ids: the one called, and its subgraphs'.
    ``pulse`` changes when the run moves, or a node says it does. ``told`` is called when emitted
    values were stored.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store | None = None,
        committer: Committer | PartedCommitter | None = None,
        observers: tuple[Observer, ...] = (),
        executors: Executors | None = None,
        wanted: Callable[[Event], Event | None] | None = None,
        cancel: CancelEvent | None = None,
        timeout: float | None = None,
        max_parallel: int = 32,
        begin: Callable[[Begin], RunPlan] | None = None,
    ) -> None:
        self.clock = clock
        self.store = store
        self.committer = committer or (committer_of(store) if store is not None else None)
        self._commit: Callable[[Batch], None] = _no_store
        if self.committer is not None:
            self._commit = self.committer.commit
        elif store is not None:
            self._commit = store.commit
        self.commit: Callable[[Batch], None] = self._commit
        self.executors = executors or LocalExecutors(())
        self.ports: dict[str, TaskPort] = {}
        self.cancel = cancel
        self.timeout = timeout
        self.deadline = None if timeout is None else monotonic() + timeout
        self.watching = cancel is not None or timeout is not None
        self.max_parallel = max_parallel
        self.pulse = 0
        self.publish: Callable[[Event], None] | None = None
        self.told: Callable[[], object] = lambda: None
        self._begin = begin
        self.observers = Observers(observers) if observers else NO_OBSERVERS
        self._wanted = wanted
        if observers and self.observers.sees_commits:
            self.commit = self._commit_seen

    def _commit_seen(self, batch: Batch) -> None:
        with self.observers.around_commit(batch.key, batch):
            self._commit(batch)

    def commit_by(self, commit: Callable[[Batch], None]) -> None:
        self._commit = commit
        if not self.observers.sees_commits:
            self.commit = commit

    def seen(self, commit: CommitBatch) -> CommitBatch:
        if not self.observers.sees_commits:
            return commit

        async def commit_seen(batch: Batch) -> None:
            with self.observers.around_commit(batch.key, batch):
                await commit(batch)

        return commit_seen

    def begin(self, effect: Begin) -> RunPlan:
        if self._begin is None:
            raise InvalidRequest("this run cannot start subgraphs")
        return self._begin(effect)

    @property
    def is_read(self) -> bool:
        return self._wanted is not None

    def tell(self, event: Event) -> Event | None:
        """Pass an event to the observers; return it if the reader of the stream wants it.

        An ``update`` is for the reader: observers have had ``node_complete``.
        """
        if event.type != "update":
            self.observers.tell(event)
        return self._wanted(event) if self._wanted else None

    def perform_last(self, effect: Commit | Emit) -> Exception | None:
        try:
            if isinstance(effect, Commit):
                self.commit(effect.batch)
            else:
                self.tell(effect.event)
        except Exception as error:
            return error
        return None

    def check(self) -> None:
        reason = self.stop_reason()
        if reason is not None:
            raise Stopped(reason)

    def stop_reason(self) -> RunError | None:
        if self.cancel is not None and self.cancel.is_set():
            return RunCancelled()
        if self.timeout is not None and self.deadline is not None and monotonic() >= self.deadline:
            return RunTimeout(seconds=self.timeout)
        return None

    def leave(self) -> None:
        """The run has stopped: end the circle of its ports, their driver and this host.

        In it, the state would wait for the collector.
        """
        self.ports.clear()

    def as_monotonic(self, until: int | None) -> float | None:
        if until is None:
            return None
        return monotonic() + (until - self.clock.monotonic()) / 1_000_000


class HostServices:
    chunk_delay: float | None = DELAY

    def __init__(self, host: Host) -> None:
        self.host = host

    def enter(self, run_id: str, port: TaskPort) -> None:
        self.host.ports[run_id] = port

    def begin_segment(self, segment: Segment) -> Mapping[str, str]:
        return self.host.observers.begin_segment(segment)

    def message_sent(self) -> Mapping[str, str]:
        return self.host.observers.message_sent()

    def message_received(self, run_id: str, stored: Mapping[str, str]) -> None:
        self.host.observers.message_received(run_id, stored)

    def end_segment(self, run_id: str) -> None:
        self.host.observers.end_segment(run_id)

    def check(self) -> None:
        if self.host.watching:
            self.host.check()

    def commit(self, batch: Batch) -> None:
        self.host.commit(batch)

    async def acommit(self, batch: Batch) -> None:
        self.commit(batch)

    def chunks(self, offset: int, make: Callable[[int, list[Any]], Batch]) -> Chunks:
        told = self.host.told

        def commit(batch: Batch) -> None:
            self.commit(batch)
            told()

        async def acommit(batch: Batch) -> None:
            await self.acommit(batch)
            told()

        return ValueChunks(offset, make, commit, acommit, self.chunk_delay)

    def transact(self, key: ThreadKey, work: Callable[[Any], Batch]) -> bool:
        store = self.host.store
        if store is None or store.transact is None:
            raise InvalidRequest(
                "ctx.transaction() needs a store with transactions: postgresql://..."
            )
        with self.host.observers.around_commit(key):
            return store.transact(key, work)

    def files(self, tenant: str, *, sealed: bool) -> PlacedFiles:
        store = self.host.store
        return require_files(store.file_storage if store else None).files(tenant, sealed=sealed)

    def buckets(self) -> Buckets:
        store = self.host.store
        return require_buckets(store.buckets if store else None)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        return function(*args)

    async def acall(self, function: Callable[..., T], *args: Any) -> T:
        return self.call(function, *args)

    def heartbeat(self) -> None:
        self.host.pulse += 1

    def publish(self, event: Event) -> None:
        if self.host.publish is not None:
            self.host.publish(event)

    def emit(self, event: Event) -> None:
        self.host.tell(event)

    async def aemit(self, event: Event) -> None:
        self.emit(event)


def failed_commit(raised: BaseException) -> BaseException:
    """A commit's error as a ``StoreError``: a third-party store may raise anything."""
    if isinstance(raised, MilecastleError | AssertionError) or not isinstance(raised, Exception):
        return raised
    error = StoreError(f"the store raised {type(raised).__name__} instead of saving the step")
    error.__cause__ = raised
    return error


def last_effects(effects: Generator[Effect, Any, Ending]) -> LastEffects:
    error: BaseException | None = Stopped(RunCancelled())
    try:
        while True:
            effect = effects.throw(error) if error is not None else effects.send(None)
            error = (yield effect) if isinstance(effect, Commit | Emit) else None
    except (StopIteration, RunCancelled, Stopped):
        return


def advance(last: LastEffects, error: Exception | None) -> Commit | Emit | None:
    try:
        return last.send(error)
    except StopIteration:
        return None


def _no_store(batch: Batch) -> None:
    raise AssertionError("a run without a store cannot commit")
