"""Stores that break a promise on following a log: entries oldest first, with payloads."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec.structs

from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from tests.broken_stores.store import BrokenStore

OLDEST_FIRST = "test_entries_are_read_oldest_first_with_payloads"


class FollowsNewestFirst(BrokenStore, caught_by=(OLDEST_FIRST,), seen_by_model=True):
    """As a history is listed."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Turn the page round."""
        return list(super().entries(key, after=after, limit=limit))[::-1]


class FollowsWithoutPayloads(BrokenStore, caught_by=(OLDEST_FIRST,), seen_by_model=True):
    """As a history has them."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Leave the payloads out."""
        found = super().entries(key, after=after, limit=limit)
        return [msgspec.structs.replace(entry, payload=b"") for entry in found]


class FollowsOnePage(BrokenStore, caught_by=(OLDEST_FIRST,)):
    """A hundred are enough."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Give a hundred at most."""
        return super().entries(key, after=after, limit=100 if limit is None else limit)


class FollowsBatches(
    BrokenStore, caught_by=("test_entries_of_one_batch_are_read_apart",), seen_by_model=True
):
    """A batch is one thing."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[ThreadKey, set[int]] = {}

    def commit(self, batch: Batch) -> None:
        """Note where it ends."""
        super().commit(batch)
        if batch.entries:
            self._ends.setdefault(batch.key, set()).add(batch.entries[-1].seq)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Give the last of each."""
        found = super().entries(key, after=after)
        return [entry for entry in found if entry.seq in self._ends[key]][:limit]


class FollowsAfterAgain(
    BrokenStore, caught_by=("test_entries_are_read_from_above_a_seq",), seen_by_model=True
):
    """Off by one."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Give ``after`` too."""
        return super().entries(key, after=after - 1, limit=limit)


class FollowsWithoutALimit(
    BrokenStore, caught_by=("test_entries_are_limited",), seen_by_model=True
):
    """All is all."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Give everything."""
        return super().entries(key, after=after)


class FollowsEverybody(
    BrokenStore, caught_by=("test_entries_are_those_of_one_thread",), seen_by_model=True
):
    """A thread's name is enough."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Give what any tenant has."""
        found: list[Entry] = []
        for other in [other for other in self._logs if other.thread == key.thread]:
            found += super().entries(other, after=after)
        return found[:limit]


class FollowsByPlace(
    BrokenStore, caught_by=("test_entries_are_read_as_pruning_left_them",), seen_by_model=True
):
    """Takes a seq for a place in the list."""

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Count from the first entry that is there."""
        found = list(super().entries(key))[max(0, after) :]
        return found[:limit]


class FollowsWhatWasWritten(
    BrokenStore, caught_by=("test_entries_are_read_as_pruning_left_them",), seen_by_model=True
):
    """Followers read another copy, which pruning does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[tuple[ThreadKey, str], Entry] = {}

    def commit(self, batch: Batch) -> None:
        """Write twice."""
        super().commit(batch)
        self._written.update(((batch.key, entry.id), entry) for entry in batch.entries)

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Give the copy."""
        found = super().entries(key, after=after, limit=limit)
        return [self._written[key, entry.id] for entry in found]


class FollowsWhatIsNotWhole(
    BrokenStore, caught_by=("test_what_is_followed_beside_a_writer_is_every_entry_once",)
):
    """Shows an entry before its payload is there."""

    def commit(self, batch: Batch) -> None:
        """Write the entry, and a moment later its payload."""
        bare = tuple(msgspec.structs.replace(entry, payload=b"") for entry in batch.entries)
        super().commit(msgspec.structs.replace(batch, entries=bare))
        time.sleep(0.0005)
        log = self._logs[batch.key]
        for place, entry in enumerate(batch.entries, len(log.entries) - len(bare)):
            log.entries[place] = entry


class GivesABatchOneRun(
    BrokenStore, caught_by=("test_a_first_batch_may_hold_entries_of_several_runs",)
):
    """Every entry of a batch is said to be of the run of the first."""

    def commit(self, batch: Batch) -> None:
        """Write the batch with one run for all."""
        entries = tuple(
            msgspec.structs.replace(entry, run_id=batch.entries[0].run_id)
            for entry in batch.entries
        )
        super().commit(msgspec.structs.replace(batch, entries=entries))
