"""The store: an append-only log per thread, behind one write and a few reads.

Rules that every store keeps, and that ``milecastle.testing.StoreContract`` checks:

1. The key is the fence. A batch whose entries are ``head + 1``, ``head + 2`` and so on is
   appended whole; any other is refused with ``Conflict`` and leaves no trace. Never a gap, never
   a lost update. A thread that was deleted and begun anew may have a head of the same seq again:
   whoever names the id of the head that it knows is refused there.
2. A batch is atomic: entries, task results, run records, failure and manifest, or nothing.
3. When ``commit`` returns, the batch is durable. When it raises anything but ``Conflict``, the
   outcome is unknown until read.
4. Payloads are opaque bytes and come back unchanged; so does every other field.
5. Threads of different tenants never meet, whatever their ids. Ids are compared code point by
   code point: nothing is folded, normalised or cut off.
6. Reading never blocks a writer for longer than a short moment, and may be done while iterating.
7. A chain is what rebuilds a checkpoint and no more: the newest snapshot at or below it, the
   rollups after that up to its ``roll_seq``, and the deltas after both.
8. Task results come with the head under which they were written; a later one of the same task
   replaces the earlier. They outlast entries whose source is in ``HOLDING`` (takeover, interrupt,
   answer, sleep); any other entry ends them.
9. Lists have one order on every store: histories and runs newest first, text by code point. A
   limit counts what is left after every other condition; one below 0 is 0, and none is too great.
   What cannot be there is not found, and is no error: a status that no run has lists nothing.
10. Deleting removes all of a thread and nothing of any other.
11. Pruning changes no state that is still there. A writer that goes on from the head that it
    knows, with the pointers that it knows, is read back right.
12. A closed store raises ``Unavailable``, whatever it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from milecastle.errors import StoreError
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo

__all__ = ["Batch", "Chain", "GroupStore", "Store", "TransactionStore"]


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything that one commit writes to one thread.

    ``head`` is the seq that the writer believes to be the newest; the first entry, if there is
    one, is ``head + 1``. A batch without entries is held to the same fence. ``head_id`` is the id
    of the entry there, if the writer knows it.
    ``results`` are written under the head that the batch leaves; a step has one for each task.
    ``manifest`` is given with its fingerprint the first time that a run uses it.
    """

    key: ThreadKey
    head: int
    head_id: str | None = None
    entries: tuple[Entry, ...] = ()
    results: tuple[TaskResult, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    failure: Failure | None = None
    manifest: tuple[str, bytes] | None = None


class Chain(msgspec.Struct, frozen=True):
    """What is needed to rebuild one checkpoint, oldest first; the last entry is the checkpoint.

    The first entry is a snapshot. ``results`` are those of tasks that the last entry names as
    next and that finished before the step was committed, in no promised order; only the chain
    of the head has any.
    """

    entries: tuple[Entry, ...]
    results: tuple[TaskResult, ...] = ()


class Store(Protocol):
    """Keeps logs. Thread-safe; sync; translates its driver's errors into ``StoreError``.

    ``blocking`` says whether a call may wait for a disk or a network; if so, it is never made
    on an event loop.
    """

    @property
    def blocking(self) -> bool:
        """Whether calls may wait."""
        ...

    @property
    def rollup_after(self) -> int | None:
        """After how many deltas reading them one by one costs more than a rollup; ``None``: never.

        A store that fetches rows says 128 or so; one that has them at hand needs no rollups.
        """
        ...

    def commit(self, batch: Batch) -> None:
        """Append the batch atomically and durably, or raise ``Conflict`` and change nothing.

        The conflict names the seq that was wanted and the head that the thread has.
        """
        ...

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of the checkpoint ``seq`` (default: the head); ``None`` if it is not there.

        The cost follows the size of the state, not the length of the history.
        """
        ...

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint of this thread, or ``None``."""
        ...

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads (``b""``), from below ``before`` if given.

        What is appended once the first entry was taken is not listed.
        """
        ...

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Entries oldest first, with payloads, from above ``after``; for copies and followers.

        What pruning dropped is not there; what it rewrote comes as it is now.
        """
        ...

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first: by start, ties by run id, the greater one first.

        A record is the newest that was committed for its run. What a reader does to it stays
        with the reader.
        """
        ...

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run of this thread, or ``None``."""
        ...

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run of this thread, or ``None``."""
        ...

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads that have a run, by thread id, from above ``after`` if given.

        ``status`` is that of a thread's newest run; any other text lists nothing.
        """
        ...

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """The manifest that a run stored under this fingerprint, or ``None``.

        Whatever was committed to this thread is found; a store may share what other threads of
        the tenant stored, and never what another tenant did. The first one stored is kept.
        """
        ...

    def delete(self, key: ThreadKey, *, head: int | None = None) -> bool:
        """Remove the thread and everything of it. ``False`` if there was none.

        With ``head``, only if that is still its head; otherwise ``Conflict``. A writer that
        still holds the old head is refused afterwards. Manifests may stay: they belong to the
        tenant.
        """
        ...

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries, drop every entry below ``cut`` and return how many were dropped.

        ``rewritten`` are snapshots of what they replace; one that has nothing to replace is
        ignored. The caller gives one for the first entry that stays, and for each rollup that
        stays and reaches below it. ``Conflict`` if the head is no longer ``head``.
        ``InvalidRequest`` if ``cut`` or anything rewritten is above the head's ``roll_seq``: the
        head's writer may still roll up what is there.
        """
        ...

    def close(self) -> None:
        """Release what the store holds. Every later call raises ``Unavailable``.

        Closing again does nothing.
        """
        ...


@runtime_checkable
class GroupStore(Store, Protocol):
    """A store that can write the batches of many threads in one transaction."""

    @property
    def writers(self) -> int:
        """How many calls of ``commit`` go on side by side; with more than that a group pays."""
        ...

    def commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        """Commit each batch as ``commit`` would, all in one transaction; the outcome of each.

        A batch that conflicts leaves no trace and has its ``Conflict`` in its place; the others
        are written. Anything else is raised: then none is known to be written. Batches of one
        thread are taken in the order given.
        """
        ...


@runtime_checkable
class TransactionStore(Store, Protocol):
    """A store that lets somebody else write in the transaction of a commit."""

    def transact(self, key: ThreadKey, work: Callable[[Any], Batch]) -> None:
        """Call ``work`` with a connection inside a transaction; commit what it wrote and its batch.

        Both are written, or neither. What ``work`` raises ends the transaction and is raised.
        The batch is one of results of this thread.
        """
        ...
