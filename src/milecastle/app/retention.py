"""Retention: what may go from a tenant's threads, and letting it go.

Rules:

- A checkpoint goes only if every rule that is given lets it go.
- A thread goes whole only by age alone, and only when its newest run ended: who waits for an
  answer, sleeps or runs keeps at least the head, and whatever its writer still rests on.
- It goes only if its head is still the one that was seen before anything else was looked at. A
  run, an update and a fork begin with an entry, so that nothing acknowledged goes unseen.
- The threads of its subgraphs go with it, and never before it: it may need them to go on. Only
  its runs write to them, so that its fence is theirs; each goes at the head that it had before
  the thread went, or stays, and is then an orphan for the next time.
- A thread that is written to meanwhile stays: its pruning is tried again, and then both are left
  for the next time.
- The key of an encrypted thread goes once the thread is gone, never before: a key is all that is
  left of a sweep that died in between, and an erasure of that name takes it. A thread that begins
  anew under the name keeps the key (``Keyring.eraser``).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from milecastle.app.children import delete_with_children, is_child, root_of
from milecastle.app.pruning import find_cut, prune_thread
from milecastle.codec.deltas import LogCodec
from milecastle.errors import Conflict, InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import TRANSITIONS
from milecastle.ports.store import Store

if TYPE_CHECKING:
    from milecastle.app.keyring import Keyring

__all__ = ["Retention", "RetentionReport", "apply_retention"]

_THREADS = 1000
_ATTEMPTS = 3


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What to keep of each thread: the last checkpoints, the young ones, or both.

    ``keep_last`` keeps the newest n, whatever their age. ``older_than`` keeps what is younger;
    alone, it also lets a thread go whole whose newest run ended longer ago. ``threads`` are the
    only ones to look at; by default all.
    """

    keep_last: int | None = None
    older_than: timedelta | None = None
    threads: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.keep_last is None and self.older_than is None:
            raise InvalidRequest("a retention needs keep_last, older_than or both")
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidRequest(f"keep_last must be at least 1, not {self.keep_last}")
        if self.older_than is not None and self.older_than < timedelta(0):
            raise InvalidRequest(f"older_than must not be negative: {self.older_than}")


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What went, or with ``dry_run`` what would go.

    ``threads`` were looked at; ``pruned`` of them lost ``dropped`` checkpoints; ``deleted`` went
    whole, with their subgraphs. ``busy`` were written to meanwhile: they come next time.
    """

    threads: int
    pruned: int
    dropped: int
    deleted: tuple[str, ...]
    busy: tuple[str, ...]
    dry_run: bool


def apply_retention(
    store: Store,
    codec: LogCodec,
    tenant: str,
    retention: Retention,
    *,
    now: int,
    dry_run: bool = False,
    encryption: Keyring | None = None,
) -> RetentionReport:
    """Let go of what a retention does not keep; ``now`` is in microseconds since 1970.

    Raises:
        CodecError: a state holds a type that ``codec`` does not know.
    """
    sweep = _Sweep(store, codec, retention, now, dry_run, encryption)
    for key in _keys(store, tenant, retention):
        sweep.visit(key)
    return sweep.report()


class _Sweep:
    """One pass over the threads of a tenant."""

    def __init__(
        self,
        store: Store,
        codec: LogCodec,
        retention: Retention,
        now: int,
        dry_run: bool,
        encryption: Keyring | None,
    ) -> None:
        self._store = store
        self._codec = codec
        self._keep_last = retention.keep_last
        age = retention.older_than
        self._limit = None if age is None else now - age // timedelta(microseconds=1)
        self._dry_run = dry_run
        self._encryption = encryption
        self._gone: ThreadKey | None = None
        self._threads = 0
        self._dropped: list[int] = []
        self._deleted: list[str] = []
        self._busy: list[str] = []

    def visit(self, key: ThreadKey) -> None:
        """Do with a thread what is due."""
        if is_child(key) and root_of(key) == self._gone:
            return
        self._threads += 1
        head = self._find_end(key)
        if head is not None:
            self._let_go(key, head)
            return
        dropped = self._prune_patiently(key)
        if dropped is None:
            self._busy.append(key.thread)
        elif dropped:
            self._dropped.append(dropped)

    def report(self) -> RetentionReport:
        """What was done."""
        return RetentionReport(
            threads=self._threads,
            pruned=len(self._dropped),
            dropped=sum(self._dropped),
            deleted=tuple(self._deleted),
            busy=tuple(self._busy),
            dry_run=self._dry_run,
        )

    def _find_end(self, key: ThreadKey) -> int | None:
        """The head of a thread that goes whole: its newest run ended, and nothing happened since.

        The head is read first: whatever is written from then on moves it.
        """
        if self._limit is None or self._keep_last is not None:
            return None
        newest = next(iter(self._store.history(key, limit=1)), None)
        runs = self._store.runs(key, limit=1)
        if not runs or TRANSITIONS[runs[0].status]:
            return None
        if is_child(key) and self._store.runs(root_of(key), limit=1):
            return None
        times = runs[0].started_at, runs[0].ended_at or 0, newest.created_at if newest else 0
        return (newest.seq if newest else 0) if max(times) < self._limit else None

    def _let_go(self, key: ThreadKey, head: int) -> None:
        if not self._dry_run:
            erase = self._encryption.eraser(key) if self._encryption else None
            try:
                if not delete_with_children(self._store, key, head=head):
                    return
            except Conflict as conflict:
                if conflict.head:  # without a head, somebody else deleted it
                    self._busy.append(key.thread)
                return
            if erase:
                erase()
        self._gone = key
        self._deleted.append(key.thread)

    def _prune_patiently(self, key: ThreadKey) -> int | None:
        """Prune a thread beside its writers; ``None`` if they left no gap for it."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._prune(key)
            except Conflict:
                continue
            except InvalidRequest:  # another pruning came in between; once more shows the rest
                if attempt == _ATTEMPTS:
                    raise
        return None

    def _prune(self, key: ThreadKey) -> int:
        keep = self._to_keep(key)
        if not self._dry_run:
            return prune_thread(self._store, self._codec, key, keep_last=keep)
        chain = self._store.read(key)
        cut = find_cut(chain.entries[-1], keep) if chain else 0
        return sum(1 for _ in self._store.history(key, before=cut))

    def _to_keep(self, key: ThreadKey) -> int:
        """How many of the newest checkpoints stay: down to the oldest one that is young."""
        keep = self._keep_last or 1
        if self._limit is not None:
            for place, entry in enumerate(self._store.history(key), 1):
                if entry.created_at >= self._limit:
                    keep = max(keep, place)
        return keep


def _keys(store: Store, tenant: str, retention: Retention) -> Iterator[ThreadKey]:
    if retention.threads is not None:
        for thread in retention.threads:
            yield ThreadKey(tenant, thread)
        return
    last: str | None = None
    while page := store.threads(tenant, limit=_THREADS, after=last):
        yield from (info.key for info in page)
        last = page[-1].key.thread
