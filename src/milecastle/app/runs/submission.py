"""Queueing runs for workers, and waiting for their results.

A run is queued by one commit: its start (an input, an answer, a retry), its record, and the
thread's index row making it due. The caller may end right after it.

Waiting reads one index row. It needs nothing from the process running the thread. Workers
publish a notice when a run stops, so waiting looks when there is something to see: at once on
PostgreSQL and inside one process. Since a notice may be lost, it also looks from time to time; on
stores reaching no other process, that is how it learns of runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from milecastle.app.emitting import feed_of
from milecastle.app.results import Result
from milecastle.app.threads.log import Threads
from milecastle.errors import InvalidRequest, RunCancelled, RunFailed, ThreadNotFound
from milecastle.model.children import joined_children
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import JoinedStore, Store, offers

S = TypeVar("S")

_SHORTEST = 0.01
_LONGEST = 0.2
_LONGEST_IF_TOLD = 2.0
"""The first and the longest pause between two looks at the index, in seconds. The last is for
stores that carry notices from other processes."""


class ResultSource(Protocol[S]):
    def wait(self, thread: ThreadKey, timeout: float | None = None) -> Result[S]: ...

    async def await_result(self, thread: ThreadKey) -> Result[S]: ...


class Handle(msgspec.Struct, Generic[S], frozen=True):
    """A run queued for workers.

    ``status`` is the run's when the call returned; ``reused`` says the call started nothing: the
    thread's newest run has this input, or waits for an answer or a time. ``seq`` is the checkpoint
    that queued it; ``None`` if none was written.
    """

    thread: ThreadKey
    run_id: str
    status: RunStatus
    reused: bool
    _source: ResultSource[S]
    seq: int | None = None

    def result(self, timeout: float | None = None) -> Result[S]:
        """Wait until its thread ends or asks something; see ``App.wait``.

        If inputs wait in the thread, this is when the last one has run.
        """
        return self._source.wait(self.thread, timeout)

    async def aresult(self) -> Result[S]:
        """Async version of ``result``."""
        return await self._source.await_result(self.thread)

    def __repr__(self) -> str:
        return f"Handle({self.thread.thread!r}, run {self.run_id}, {self.status})"


def lane_of(graph: str, fingerprint: str) -> str:
    """Lane for one graph's threads; workers with other code use another."""
    return f"{graph}@{fingerprint}"


def require_shared(store: Store | None) -> ClaimStore:
    if not offers(store, ClaimStore):
        kept = "no store" if store is None else type(store).__name__
        raise InvalidRequest(
            f"workers need a store that they can share, and this app has {kept}: "
            "compile(store='sqlite:///...') or 'postgresql://...'"
        )
    return store


def joined_store(store: Store, connection: Any, key: ThreadKey) -> JoinedStore:
    if store.join is None:
        raise InvalidRequest(
            f"connection= needs a store in a database of the caller, and {type(store).__name__} is "
            "none: compile(store='sqlite:///...') or 'postgresql://...'"
        )
    return store.join(connection, key)


def awaiting(store: Store, key: ThreadKey, timeout: float | None) -> Iterator[float]:
    """Seconds to wait for a notice after each look.

    Raises:
        TimeoutError: after the look when the time is over.
    """
    end = None if timeout is None else monotonic() + timeout
    is_told = store.feed is not None
    pause = _LONGEST_IF_TOLD if is_told else _SHORTEST
    while True:
        left = pause if end is None else end - monotonic()
        yield max(0.0, min(pause, left))
        if left <= 0:
            raise TimeoutError(
                f"thread '{key.thread}' has not stopped within {timeout} seconds; the run continues"
            )
        pause = pause if is_told else min(_LONGEST, pause * 1.5)


def when_stopped(store: Store, key: ThreadKey, tell: Callable[[], None]) -> Callable[[], None]:
    """Call ``tell`` when notices can be received, and at each; returns a function ending this.

    It does not wait, and may be called on an event loop.
    """
    return feed_of(store).subscribe_soon(key, lambda _: tell())


def has_stopped(threads: Threads, key: ThreadKey) -> bool:
    """True if no worker runs a thread, and none will before somebody writes to it.

    Raises:
        RunFailed: its run failed, and is not retried.
        RunCancelled: its run was cancelled.
    """
    info = threads.store.thread(key)
    if info is None:
        raise ThreadNotFound(tenant=key.tenant, thread=key.thread)
    if info.worker or info.status in ("queued", "running"):
        return False
    if info.status == "sleeping":  # a message has to be sent, as an answer has to be given
        if info.lane and joined_children(info):
            return False  # workers send this one
        return bool(info.waiting_topics) and info.due_at in (None, info.wake_at)
    if info.status in ("failed", "completed", "cancelled") and info.due_at is not None:
        return False  # it is to be retried, or the next input waits
    if info.status == "cancelled":
        raise RunCancelled(thread=key.thread, run_id=info.run_id)
    if info.status == "failed":
        raise _failed(threads, info)
    return True


def _failed(threads: Threads, info: ThreadInfo) -> RunFailed:
    failure, thread = threads.store.failure(info.key, info.run_id), info.key.thread
    what = "an unknown error" if failure is None else f"{failure.error_type}: {failure.message}"
    where = f" in node '{failure.node}'" if failure and failure.node else ""
    return RunFailed(
        f"run {info.run_id} of thread '{thread}' failed{where}: {what}; retry('{thread}') hands it "
        "over again",
        failure_type=failure.error_type if failure else "",
        node=failure.node if failure else None,
        thread=thread,
        run_id=info.run_id,
    )
