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
13. The index of threads contains the batches' rows: ``Batch.thread`` becomes its thread's
    line, in the same transaction. A batch without one leaves the line as it is. Only a thread
    that has no line gets one from a run record, the batch's last. A line whose ``due_at`` is 0
    gets the store's time in its place.
14. A thread's tags (``Store.tags``) are beside its line, and change by ``Batch.tags`` alone,
    in the same transaction: no line, step, claim or pruning changes them; deleting removes them.
    A thread with no line after the batch gets none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar

from milecastle.errors import InvalidRequest, StoreError, Unavailable
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.archive import Archive
from milecastle.ports.batch import Batch, Chain, Opened
from milecastle.ports.buckets import Buckets
from milecastle.ports.cells import Cells
from milecastle.ports.feed import Feed
from milecastle.ports.files import FileStorage
from milecastle.ports.mailbox import Debounce, Mailbox, Sent
from milecastle.ports.maintenance import Maintenance
from milecastle.ports.memory import MemoryItems
from milecastle.ports.notifying import Listen
from milecastle.ports.reading import Replica, StoreReader
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
    "Replica",
    "Store",
    "StoreReader",
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
    """A store's optional capabilities, each an object, or ``None`` without it.

    A store derived from this class has none until it overrides them.
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
    def replica(self) -> Replica | None:
        """The store as read from a replica, which may be behind: for display only."""
        return None

    @property
    def archive(self) -> Archive | None:
        """Old entries in object storage."""
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
    def cells(self) -> Cells | None:
        """Databases that workers may serve separately."""
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

        A thread without checkpoints is left out. If one thread is damaged, it may raise for
        all: read each by itself then.
        """
        return None

    @property
    def transact(self) -> Transact | None:
        """Call ``work`` with a connection inside a transaction; commit its writes and its batch.

        Both are written, or neither. An exception in ``work`` ends the transaction and is raised.
        The batch has only this thread's results. ``False`` if the thread has one already,
        by a call whose answer was lost: then nothing is written. Whoever takes the thread over
        waits for a transaction that is being committed; ``Conflict`` if one did before.
        """
        return None

    @property
    def join(self) -> Join | None:
        """Write a thread by the caller's connection, in its open transaction.

        ``InvalidRequest`` if that cannot be one transaction: the connection is of another kind or
        to another database, closed, or in autocommit.
        """
        return None

    @property
    def ring(self) -> Callable[[], None] | None:
        """Notify those that ``listen``: threads may have become due."""
        return None


_capabilities = tuple(name for name in vars(Capabilities) if not name.startswith("_"))


class Store(Capabilities, StoreReader, Protocol):
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

    def prune(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Sequence[Entry],
        oldest: Entry | None = None,
        archived: bool = False,
    ) -> int:
        """Replace some entries, drop every entry below ``cut`` and return how many were dropped.

        ``rewritten`` are snapshots of the entries they replace; one without an entry to
        replace is ignored. The caller passes one for the first entry that stays, and for each
        rollup that stays and reaches below it. ``Conflict`` if the head is no longer ``head``.
        ``InvalidRequest`` if ``cut`` or anything rewritten is above the head's ``roll_seq``: the
        head's writer may still need those entries for a rollup.

        ``oldest`` is the oldest entry as it was read: ``Conflict`` if it has another seq, id or
        payload by now. If the dropped entries were ``archived``, they go at once, and marks of
        messages they consumed stay.
        """
        ...

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        """Insert archived entries below the oldest one, whose payload the last of them replaces.

        ``Conflict`` if the head is no longer ``head``, or the oldest entry not as it was read.
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
    """``isinstance`` for a store and a port, remembered by class.

    Python compares every method each time, which takes longer than planning a run.
    """
    asked = type(store), port
    found = _offered.get(asked)
    if found is None:
        found = _offered[asked] = isinstance(store, port)
    return found
