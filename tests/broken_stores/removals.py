"""Stores that break a promise on removing: delete, prune, close."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec.structs

from milecastle.errors import Conflict
from milecastle.model.checkpoint import DELTA, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from tests.broken_stores.store import BrokenStore


class DeletesRunsOnly(
    BrokenStore, caught_by=("test_deleting_leaves_no_entry",), seen_by_model=True
):
    """The log stays."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Delete everything but the entries."""
        log = self._logs.get(key)
        if log is not None:
            log.runs, log.failures, log.results = {}, {}, {}
        return log is not None


class LeavesRuns(BrokenStore, caught_by=("test_deleting_leaves_no_run",), seen_by_model=True):
    """Runs are stored separately and forgotten there."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Put the runs back."""
        log = self._logs.get(key)
        done = super().delete(key, head=head, head_id=head_id)
        if log is not None:
            self.force(Batch(key=key, head=0, runs=tuple(log.runs.values())))
        return done


class LeavesFailures(BrokenStore, caught_by=("test_deleting_leaves_no_failure",)):
    """Failures are stored separately and forgotten there."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Put the failures back."""
        log = self._logs.get(key)
        done = super().delete(key, head=head, head_id=head_id)
        for failure in log.failures.values() if log else ():
            self.force(Batch(key=key, head=0, failure=failure))
        return done


class LeavesResults(BrokenStore, caught_by=("test_deleting_leaves_no_result",)):
    """Results are stored separately and forgotten there."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Put the results back."""
        log = self._logs.get(key)
        done = super().delete(key, head=head, head_id=head_id)
        self.force(Batch(key=key, head=0, results=tuple(log.results.values()) if log else ()))
        return done


class DeletesNothingGladly(
    BrokenStore, caught_by=("test_deleting_nothing_says_so",), seen_by_model=True
):
    """Done is done."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Say yes."""
        super().delete(key, head=head, head_id=head_id)
        return True


class DeletesAtAnyHead(
    BrokenStore, caught_by=("test_deleting_is_refused_when_the_head_moved",), seen_by_model=True
):
    """Does not look at the head."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Leave the head aside."""
        return super().delete(key)


class DeletesAnyEntryOfTheSeq(
    BrokenStore, caught_by=("test_deleting_is_refused_when_the_head_is_another_entry",)
):
    """Does not look at the id of the head."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Ignore the id."""
        return super().delete(key, head=head)


class RefusesToDeleteAtAHead(
    BrokenStore, caught_by=("test_deleting_at_the_head_that_is_there",), seen_by_model=True
):
    """Takes the head for the seq that comes next."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Look for one more."""
        return super().delete(key, head=None if head is None else head - 1, head_id=head_id)


class LooksBeforeItDeletes(
    BrokenStore, caught_by=("test_a_writer_and_who_deletes_at_its_head_do_not_both_win",)
):
    """Looks at the head, and deletes a moment later."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Leave a moment in which another may write."""
        log = self._logs.get(key)
        if head is not None and head != (log.head if log else 0):
            return super().delete(key, head=head, head_id=head_id)
        time.sleep(0.0005)
        return super().delete(key)


class DeletesWhatHasEntries(
    BrokenStore, caught_by=("test_a_thread_with_only_records_is_deleted",), seen_by_model=True
):
    """No entry, no thread."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Leave a thread that has only records."""
        return self.read(key) is not None and super().delete(key, head=head, head_id=head_id)


class DeletesByPrefix(BrokenStore, caught_by=("test_deleting_leaves_other_threads_alone",)):
    """Names that begin alike go together."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Delete them all."""
        alike = [other for other in self._logs if str(other).startswith(str(key))]
        return [super(DeletesByPrefix, self).delete(other) for other in alike].count(True) > 0


class DeletesInEveryTenant(
    BrokenStore, caught_by=("test_deleting_touches_no_other_tenant",), seen_by_model=True
):
    """A thread's name is enough."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Delete the thread for everybody."""
        done = super().delete(key, head=head, head_id=head_id)
        for other in [other for other in self._logs if other.thread == key.thread]:
            super().delete(other)
        return done


class NeverBeginsAnew(
    BrokenStore, caught_by=("test_a_deleted_thread_may_begin_anew",), seen_by_model=True
):
    """A name is used once."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: set[ThreadKey] = set()

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Note the name."""
        self._deleted.add(key)
        return super().delete(key, head=head, head_id=head_id)

    def commit(self, batch: Batch) -> None:
        """Refuse what was deleted."""
        if batch.key in self._deleted:
            raise Conflict(tenant=batch.key.tenant, thread=batch.key.thread, expected=1, head=0)
        super().commit(batch)


class CutsTooMuch(
    BrokenStore, caught_by=("test_pruning_drops_what_is_below_the_cut",), seen_by_model=True
):
    """Off by one."""

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
        """Drop the cut too."""
        dropped = super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )
        self._logs[key].entries.pop(0)
        return dropped


class PrunesOnce(BrokenStore, caught_by=("test_pruning_again_goes_on_from_there",)):
    """What was pruned is not pruned again."""

    def __init__(self) -> None:
        super().__init__()
        self._pruned: set[ThreadKey] = set()

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
        """Do nothing the second time."""
        if key in self._pruned:
            return 0
        self._pruned.add(key)
        return super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )


class IgnoresWhatIsRewritten(
    BrokenStore,
    caught_by=("test_a_rewritten_entry_is_a_snapshot_from_then_on",),
    seen_by_model=True,
):
    """Only drops."""

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
        """Leave what stays as it was."""
        return super().prune(
            key, head=head, cut=cut, rewritten=(), oldest=oldest, archived=archived
        )


class PrunesAtAnyHead(
    BrokenStore, caught_by=("test_pruning_is_refused_when_the_head_moved",), seen_by_model=True
):
    """Does not look at the head."""

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
        """Take the head that is there."""
        log = self._logs.get(key)
        return super().prune(
            key,
            head=log.head if log else 0,
            cut=cut,
            rewritten=rewritten,
            oldest=oldest,
            archived=archived,
        )


class ArchivesWhatWasPruned(BrokenStore, caught_by=("test_archiving_compares_the_oldest_entry",)):
    """Compares the head alone."""

    def prune(self, key: ThreadKey, **options: Any) -> int:
        """Forget the oldest entry."""
        options["oldest"] = None
        return super().prune(key, **options)


class PutsBackPayloadsOnly(BrokenStore, caught_by=("test_archived_entries_are_put_back",)):
    """Restores the oldest entry, and none below it."""

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        """Forget those below."""
        super().put_back(key, head=head, oldest=oldest, entries=entries[-1:])


class PutsBackAnywhere(BrokenStore, caught_by=("test_entries_are_put_back_in_their_place_only",)):
    """Looks at nothing."""

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        """Insert whatever is given."""
        log = self._logs[key]
        log.entries = [*entries, *log.entries[1:]]
        log.cuts = [entry.seq for entry in log.entries if entry.kind != DELTA]


class PrunesTheHead(
    BrokenStore,
    caught_by=("test_pruning_above_what_a_writer_may_roll_up_is_refused",),
    seen_by_model=True,
):
    """Cuts wherever it is asked to."""

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
        """Drop and rewrite without a look at ``roll_seq``."""
        log = self._logs[key]
        if log.head != head:
            return super().prune(
                key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
            )
        changed = {entry.seq: entry for entry in rewritten}
        before = len(log.entries)
        log.entries = [changed.get(each.seq, each) for each in log.entries if each.seq >= cut]
        log.cuts = [entry.seq for entry in log.entries if entry.kind != DELTA]
        return before - len(log.entries)


class PrunesEverything(BrokenStore, caught_by=("test_pruning_leaves_runs_failures_and_results",)):
    """What is old goes, of every kind."""

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
        """Drop results and failures too."""
        dropped = super().prune(
            key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
        )
        self._logs[key].results = {}
        self._logs[key].failures = {}
        return dropped


class PrunesInEveryTenant(BrokenStore, caught_by=("test_pruning_touches_no_other_tenant",)):
    """A thread's name is enough."""

    def prune(self, key: ThreadKey, **options: Any) -> int:
        """Drop what is below the cut for everybody."""
        for other, log in self._logs.items():
            if other.thread == key.thread and other != key:
                log.entries = [entry for entry in log.entries if entry.seq >= options["cut"]]
        return super().prune(key, **options)


class AcceptsADroppedSeq(BrokenStore, caught_by=("test_the_fence_holds_after_pruning",)):
    """A seq that is not there is free."""

    def commit(self, batch: Batch) -> None:
        """Take what was dropped for free."""
        log = self._logs.get(batch.key)
        if log and log.entries and batch.entries and batch.entries[0].seq < log.entries[0].seq:
            return
        super().commit(batch)


class PagesByPlace(
    BrokenStore, caught_by=("test_history_is_paged_after_pruning",), seen_by_model=True
):
    """Takes a seq for a place in the list."""

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Count from the first entry that is there."""
        log = self._logs.get(key)
        entries = list(log.entries) if log else []
        page = entries[: None if before is None else max(0, before - 1)][::-1][:limit]
        return iter([msgspec.structs.replace(entry, payload=b"") for entry in page])


class IgnoresClose(BrokenStore, caught_by=("test_a_closed_store_is_unavailable",)):
    """Never closed."""

    def close(self) -> None:
        """Do nothing."""
