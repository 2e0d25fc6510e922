"""A store read from a standby, or from its primary while the standby cannot be read.

Rules:

- It has no method that writes. Workers, claims and lanes are read from the primary.
- A standby that fails is not asked again for a while: then the primary is read, and the log says so
  once.
- It is opened when it is first used: a store that shows no lists never connects to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from threading import Lock
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar

from milecastle.errors import MilecastleError, StoreError, Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.batch import Chain, Opened
from milecastle.ports.mailbox import Mailbox, Marks, StoredMessage
from milecastle.ports.maintenance import Inspected
from milecastle.ports.pages import Page
from milecastle.ports.reading import FleetReader
from milecastle.ports.tags import Tags
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.postgres.lag import LagQuery, seconds_behind
from milecastle.support.forking import watch_forks

_log = logging.getLogger("milecastle")

_AGAIN = 30.0
"""For how many seconds a standby that failed is not asked again."""

T = TypeVar("T")


class _Server(FleetReader, Protocol):
    @property
    def tags(self) -> Tags: ...

    @property
    def mailbox(self) -> Mailbox: ...

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]: ...

    def close(self) -> None: ...


class Opening(NamedTuple):
    store: _Server
    ask: LagQuery


class PostgresReplica:
    def __init__(self, primary: Opening, open_standby: Callable[[], Opening]) -> None:
        self._primary = primary
        self._open = open_standby
        self._standby: Opening | None = None
        self._lock = Lock()
        self._again_at = 0.0
        self._is_reported = False
        self._current_at: float | None = None
        """When the standby was last seen to have everything."""
        watch_forks(self)

    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._lock = Lock()

    def behind(self) -> float:
        standby = self._opened()
        if standby is None:
            return 0.0
        asked_at = monotonic()
        try:
            seconds = seconds_behind(self._primary.ask, standby.ask)
        except Unavailable as error:
            self._close(standby)
            self._leave(error)
            return 0.0
        self._is_reported = False
        if not seconds:
            self._current_at = asked_at
        elif self._current_at is not None:
            seconds = min(seconds, monotonic() - self._current_at)
        return seconds

    def _opened(self) -> Opening | None:
        with self._lock:
            if monotonic() < self._again_at:
                return None
            if self._standby is None:
                try:
                    standby = self._open()
                except StoreError as error:
                    self._leave(error)
                    return None
                try:
                    seconds_behind(self._primary.ask, standby.ask)
                except BaseException as error:
                    standby.store.close()
                    if not isinstance(error, Unavailable):
                        raise
                    self._leave(error)
                    return None
                self._standby = standby
            return self._standby

    def _close(self, standby: Opening) -> None:
        with self._lock:
            if self._standby is standby:
                self._standby = None
        standby.store.close()

    def _leave(self, error: MilecastleError) -> None:
        self._again_at = monotonic() + _AGAIN
        if not self._is_reported:
            self._is_reported = True
            _log.warning("the primary is read instead of the replica: %s", error.message)

    def _first(self, read: Callable[[_Server], T]) -> T:
        standby = self._opened()
        if standby is not None:
            try:
                return read(standby.store)
            except Unavailable as error:
                self._close(standby)
                self._leave(error)
        return read(self._primary.store)

    def _begun(self, read: Callable[[_Server], Iterator[T]]) -> Iterator[T]:
        """An iterator after its first item: until then, the primary can be read instead."""

        def begin(store: _Server) -> Iterator[T]:
            items = read(store)
            return chain(list(islice(items, 1)), items)

        return self._first(begin)

    def close(self) -> None:
        if self._standby is not None:
            self._close(self._standby)

    @property
    def tags(self) -> _Tags:
        return _Tags(self._first)

    @property
    def mailbox(self) -> _Messages:
        return _Messages(self._first)

    def workers(self) -> Sequence[WorkerInfo]:
        return self._primary.store.workers()

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        return self._primary.store.claimed(worker)

    def depths(self) -> Sequence[LaneDepth]:
        return self._primary.store.depths()

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        return self._begun(lambda store: store.verify(tenant, threads))

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._first(lambda store: store.read(key, seq))

    def open(self, key: ThreadKey) -> Opened | None:
        return self._first(lambda store: store.open(key))

    def head(self, key: ThreadKey) -> Entry | None:
        return self._first(lambda store: store.head(key))

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        return self._first(lambda store: store.results(key))

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._first(lambda store: store.read_state(key, seq))

    def count_results(self, key: ThreadKey, task: str) -> int:
        return self._first(lambda store: store.count_results(key, task))

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        return self._first(lambda store: store.locate(key, checkpoint_id))

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        return self._begun(lambda store: store.history(key, limit=limit, before=before))

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        return self._first(lambda store: store.entries(key, after=after, limit=limit))

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        return self._first(lambda store: store.runs(key, limit=limit))

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        return self._first(lambda store: store.run(key, run_id))

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        return self._first(lambda store: store.find_run(key, input_digest))

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        return self._first(lambda store: store.failure(key, run_id))

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        return self._first(
            lambda store: store.threads(tenant, status=status, limit=limit, after=after)
        )

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        return self._first(lambda store: store.thread(key))

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        return self._first(
            lambda store: store.recent_threads(tenant, status=status, limit=limit, after=after)
        )

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        return self._first(
            lambda store: store.waking_threads(tenant, until=until, limit=limit, after=after)
        )

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        return self._first(
            lambda store: store.recent_runs(tenant, status=status, limit=limit, after=after)
        )

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        return self._first(lambda store: store.manifest(key, fingerprint))


class _First(Protocol):
    def __call__(self, read: Callable[[_Server], T], /) -> T: ...


class _Tags:
    def __init__(self, first: _First) -> None:
        self._first = first

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        return self._first(lambda store: store.tags.of(tenant, threads))

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        return self._first(lambda store: store.tags.threads(tenant, tag, limit=limit, after=after))


class _Messages:
    def __init__(self, first: _First) -> None:
        self._first = first

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        return self._first(
            lambda store: store.mailbox.unread(key, topic=topic, after=after, limit=limit)
        )

    def marks(self, key: ThreadKey) -> Marks:
        return self._first(lambda store: store.mailbox.marks(key))
