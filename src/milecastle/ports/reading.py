"""The reading half of a store, and a replica of it.

Rules:

- A replica may be behind: it is for display. Code that decides anything reads the store itself.
- A replica has no method that writes, so it cannot be passed where something is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.batch import Chain, Opened
from milecastle.ports.mailbox import MailboxReader
from milecastle.ports.maintenance import Inspected
from milecastle.ports.pages import Page
from milecastle.ports.tags import Tags
from milecastle.ports.workers import LaneDepth, WorkerInfo


class StoreReader(Protocol):
    """The methods of a store that read."""

    @property
    def tags(self) -> Tags | None:
        """Threads by tag."""
        ...

    @property
    def mailbox(self) -> MailboxReader | None:
        """Messages to threads."""
        ...

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """A checkpoint's chain (default: the head's); ``None`` if it does not exist.

        The cost depends on the state's size, not on the history's length.
        """
        ...

    def open(self, key: ThreadKey) -> Opened | None:
        """The head's chain and run record, in one read; ``None`` if there is none."""
        ...

    def head(self, key: ThreadKey) -> Entry | None:
        """The newest entry without its payload (``b""``), or ``None``.

        It has the writer's ``seq`` and ``id``, and costs the same for any state.
        """
        ...

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        """Task results for the step at the head, from its chain.

        In no promised order, and without reading the chain.
        """
        ...

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Like ``read`` without results: enough for the state, however wide its step is."""
        ...

    def count_results(self, key: ThreadKey, task: str) -> int:
        """Number of results for this task or its items (``task#0``) in the step at the head.

        Only their names are read. One that replaced another may count as two.
        """
        ...

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """A checkpoint's seq in this thread, or ``None``."""
        ...

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads (``b""``), from below ``before`` if given.

        Entries appended after the first one was read are not listed.
        """
        ...

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Entries oldest first, with payloads, from above ``after``; for copies and followers.

        Pruned entries are not included; rewritten ones are returned as they are now.
        """
        ...

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first: in the order in which they were first committed.

        Each record is the newest committed for its run. A reader may modify its copy.
        """
        ...

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """A run in this thread, or ``None``."""
        ...

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        """This thread's newest run with this input digest, or ``None``.

        It costs the same however many runs the thread has, if the store has indexes.
        """
        ...

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """A run's failure, or ``None``."""
        ...

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads with a line in the index, by thread id, from above ``after``.

        ``status`` is the index row's; other text lists nothing.
        """
        ...

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        """A thread's index row, or ``None``."""
        ...

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """The tenant's threads, the one whose line was committed last first.

        ``status`` is the index row's. What is committed while the pages are read may be missed,
        and a thread whose line changes meanwhile may be listed twice; every other is listed once.
        """
        ...

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """The tenant's sleeping threads, ordered by wake time.

        By ``wake_at``, then by thread id; with ``until``, those waking then or before.
        """
        ...

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        """The tenant's runs, newest first, by their first commit.

        ``status`` is the record's. A run beginning while the pages are read is not listed.
        """
        ...

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """The manifest a run stored under this fingerprint, or ``None``.

        Every manifest committed to this thread is found; a store may share those of other threads
        of the tenant, but never of another tenant. The first one stored wins.
        """
        ...


@runtime_checkable
class FleetReader(StoreReader, Protocol):
    """The reading methods of a store that workers share."""

    def workers(self) -> Sequence[WorkerInfo]:
        """All workers not yet forgotten, by id."""
        ...

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        """This worker's threads, by tenant and thread."""
        ...

    def depths(self) -> Sequence[LaneDepth]:
        """Depth per lane and tenant."""
        ...


class Replica(FleetReader, Protocol):
    """A store as read from a replica, or from the store itself while that cannot be reached.

    Workers and lanes are always the store's: an old heartbeat would make a worker look silent.
    """

    def behind(self) -> float:
        """How many seconds ago the state now read was current; 0.0 if nothing is missing.

        At least that long ago is what it says: never less than the truth. Ask before reading.
        """
        ...

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        """``Maintenance.verify``."""
        ...
