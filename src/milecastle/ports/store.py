"""The store: an append-only log per thread, behind one write and a few reads.

Rules for every store, checked by ``milecastle.testing.StoreContract``:

1. The key is the fence. A batch whose entries are ``head + 1``, ``head + 2`` and so on is appended
  as a whole; any other is refused with ``Conflict`` and leaves no trace. Never a gap, never
   a lost update. A recreated thread may have a head with the same seq: a writer giving the id of
   the head it knows is refused there.
2. A batch is atomic: entries, results, run records, failure, manifest and line, or nothing.
3. When ``commit`` returns, the batch is durable. When it raises anything but ``Conflict``, the
   outcome is unknown until read.
4. Payloads are opaque bytes and are returned unchanged; so is every other field.
5. Threads of different tenants are isolated, whatever their ids. Ids are compared code point by
   code point: nothing is folded, normalised or cut off. In every call, a key that is not a
   ``ThreadKey`` raises ``TypeError``.
6. Reading never blocks a writer for longer than a short moment, and may be done while iterating.
7. A chain rebuilds a checkpoint, without more: the newest snapshot at or below it, the rollups
   after that up to its ``roll_seq``, and the deltas after both.
8. Task results come with the head under which they were written; a later one of the same task
   replaces the earlier. They outlast entries whose source is in ``HOLDING`` (takeover, interrupt,
   answer, sleep); any other entry ends them.
9. Lists have one order on every store: histories and runs newest first, text by code point. The
   newest run is the one that was committed last for the first time: clocks decide nothing. A limit
   applies after every other condition; one below 0 means 0, and no limit is too large. What cannot
   exist is not found and is not an error: a status no run has lists nothing. Lists of a tenant by
   recency have the order of commits: of two commits, the one called after the other had
   returned is the newer. A store of files with no such order says which order it has. A page
   costs as much as its size, not the store's; a store that has everything in memory, or in files,
   may scan it.
10. Deleting removes a thread completely, and nothing else.
11. Pruning changes no remaining state. A writer continuing from the head and the pointers that
    it knows is read back correctly.
12. A closed store raises ``Unavailable`` for every call.
13. The index of threads contains the batches' rows: ``Batch.thread`` becomes the line of its
    thread, in the same transaction. A batch without one leaves the line as it is. Only a thread
    that has no line gets one from a run record, the batch's last. A line whose ``due_at`` is 0
    gets the time of the store in its place.
14. The tags of a thread (``Store.tags``) are beside its line, and change by ``Batch.tags`` alone,
    in the same transaction: no line, step, claim or pruning changes them; deleting removes them.
    A thread with no line after the batch gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar

from milecastle.errors import InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.batch import Batch, Chain, Opened
from milecastle.ports.buckets import Buckets
from milecastle.ports.feed import Feed
from milecastle.ports.files import FileStorage
from milecastle.ports.mailbox import Debounce, Mailbox, Sent
from milecastle.ports.maintenance import Maintenance
from milecastle.ports.memory import MemoryItems
from milecastle.ports.notifying import Listen
from milecastle.ports.pages import Page
from milecastle.ports.tags import Tags

__all__ = [
    "Batch",
    "Capabilities",
    "Chain",
    "CommitMany",
    "Join",
    "JoinedStore",
    "Opened",
    "PartOf",
    "ReadMany",
    "Store",
    "Transact",
    "WritesRefused",
    "offers",
    "require_capabilities",
]


T = TypeVar("T")
CommitMany = Callable[[Sequence[Batch]], Sequence[StoreError | None]]
PartOf = Callable[[ThreadKey], "Store"]
ReadMany = Callable[[Sequence[ThreadKey]], Mapping[ThreadKey, Opened]]
Transact = Callable[[ThreadKey, Callable[[Any], Batch]], bool]
Join = Callable[[Any, ThreadKey], "JoinedStore"]


class JoinedStore(Protocol):
    """A store as written by a caller's own transaction: whether it commits is the caller's to say.

    A refused call leaves that transaction as it was, and usable. Nothing is read by other
    connections, and no worker is notified, before it commits.
    """

    def commit(self, batch: Batch) -> None:
        """``Store.commit`` in that transaction."""
        ...

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        debounce: Debounce | None = None,
    ) -> Sent:
        """``Mailbox.send`` in that transaction."""
        ...


class WritesRefused(Unavailable):
    """The store accepts no more writes until it is reopened, because an earlier one failed."""


class Capabilities(Protocol):
    """The optional capabilities of a store, each an object, or ``None`` if the store has it not.

    A store that derives from this class has none until it overrides them.
    """

    @property
    def tags(self) -> Tags | None:
        """Threads by tag."""
        return None

    @property
    def mailbox(self) -> Mailbox | None:
        """Messages to threads."""
        return None

    @property
    def memory(self) -> MemoryItems | None:
        """Long-term memory, written by ``Batch.memory``."""
        return None

    @property
    def buckets(self) -> Buckets | None:
        """Buckets, from which runs take: requests or tokens per time."""
        return None

    @property
    def maintenance(self) -> Maintenance | None:
        """Checks, repairs and migrations for the command line."""
        return None

    @property
    def file_storage(self) -> FileStorage | None:
        """Files in object storage."""
        return None

    @property
    def feed(self) -> Feed | None:
        """Payloads for readers in other processes."""
        return None

    @property
    def commit_many(self) -> CommitMany | None:
        """Commit each batch as ``commit`` would, all in one transaction; the outcome of each.

        A conflicting batch leaves no trace, and its ``Conflict`` is returned in its place; the
        others are written. Any other error is raised, and then no batch is known to be written.
        Batches of one thread are taken in the order given.
        """
        return None

    @property
    def writers(self) -> int:
        """Parallel ``commit`` calls; above that ``commit_many`` is faster."""
        return 1

    @property
    def part_of(self) -> PartOf | None:
        """A thread's part, if the store's parts write and fail independently.

        Always the same object: groups of commits are formed for each.
        """
        return None

    @property
    def listen(self) -> Listen | None:
        """Call a function, from any thread, whenever a thread may have become due.

        It is a hint for workers in other processes: it may be lost, late or doubled, and workers
        look by themselves as well.
        """
        return None

    @property
    def read_many(self) -> ReadMany | None:
        """``open`` for many threads, faster than one by one.

        A thread without checkpoints is missing. If one of the threads is damaged, it may raise for
        all: read each by itself then.
        """
        return None

    @property
    def transact(self) -> Transact | None:
        """Call ``work`` with a connection inside a transaction; commit its writes and its batch.

        Both are written, or neither. An exception in ``work`` ends the transaction and is raised.
        The batch has only this thread's results. ``False`` if the thread has one of them already,
        by a call whose answer was lost: then nothing is written. Whoever takes the thread over
        waits for a transaction that is being committed; ``Conflict`` if one did before.
        """
        return None

    @property
    def join(self) -> Join | None:
        """Write a thread by a connection of the caller, in its open transaction.

        ``InvalidRequest`` if that cannot be one transaction: the connection is of another kind or
        another database, closed, or in autocommit.
        """
        return None

    @property
    def ring(self) -> Callable[[], None] | None:
        """Notify those that ``listen``: threads may have become due."""
        return None


_capabilities = tuple(name for name in vars(Capabilities) if not name.startswith("_"))


class Store(Capabilities, Protocol):
    """Stores logs. Thread-safe; sync; translates its driver's errors into ``StoreError``.

    ``blocking`` says whether a call may block on a disk or a network; if so, it is never made on an
    event loop.
    """

    @property
    def blocking(self) -> bool:
        """True if calls may block."""
        ...

    @property
    def rollup_after(self) -> int | None:
        """After how many deltas reading them one by one costs more than a rollup; ``None``: never.

        A store fetching rows returns about 128; one that has them in memory needs no rollups.
        """
        ...

    def commit(self, batch: Batch) -> None:
        """Append the batch atomically and durably, or raise ``Conflict`` and change nothing.

        The conflict has the expected seq and the thread's actual head.
        """
        ...

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of the checkpoint ``seq`` (default: the head); ``None`` if it does not exist.

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

        Nothing of them is read but their names. One that replaced another may count as two.
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
        """One run of this thread, or ``None``."""
        ...

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        """The newest run of this thread whose input has this digest, or ``None``.

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

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Remove the thread and all its data. ``False`` if it did not exist.

        With ``head``, only if that is still its head, and with ``head_id`` only if the entry there
        has this id, and with either only if no input waits and no message makes it due
        (``Mailbox``); otherwise ``Conflict``. A writer that still holds the old head
        is refused afterwards. Manifests may stay: they belong to the tenant.
        """
        ...

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries, drop every entry below ``cut`` and return how many were dropped.

        ``rewritten`` are snapshots of the entries they replace; one without an entry to
        replace is ignored. The caller passes one for the first entry that stays, and for each
        rollup that stays and reaches below it. ``Conflict`` if the head is no longer ``head``.
        ``InvalidRequest`` if ``cut`` or anything rewritten is above the head's ``roll_seq``: the
        head's writer may still need those entries for a rollup.
        """
        ...

    def close(self) -> None:
        """Release the store's resources. Every later call raises ``Unavailable``.

        Closing again does nothing.
        """
        ...


def require_capabilities(store: object) -> None:
    """Refuse a store without an attribute for each optional capability."""
    missing = [one for one in _capabilities if not hasattr(store, one)]
    if missing:
        raise InvalidRequest(
            f"{type(store).__name__} does not say whether it has {', '.join(missing)}: derive it "
            "from milecastle.stores.Capabilities, where every optional capability is None"
        )


_offered: dict[tuple[type, type], bool] = {}


def offers(store: object, port: type[T]) -> TypeGuard[T]:
    """``isinstance`` of a store and a port, remembered by class.

    Python compares every method of the port each time, which takes longer than to plan a run.
    """
    asked = type(store), port
    found = _offered.get(asked)
    if found is None:
        found = _offered[asked] = isinstance(store, port)
    return found
