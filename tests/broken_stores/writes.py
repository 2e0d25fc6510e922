"""Stores that break a promise on writing: the fence, atomicity, durability, the bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec.structs

from milecastle.errors import Conflict
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord
from milecastle.ports.store import Batch, Store
from tests.broken_stores.store import BrokenStore


class OverwritesATakenSeq(
    BrokenStore, caught_by=("test_a_taken_seq_is_refused",), seen_by_model=True
):
    """The last writer wins."""

    def commit(self, batch: Batch) -> None:
        """Take back what is there from the batch's first entry on."""
        log = self._logs.get(batch.key)
        if log and 0 < batch.head < log.head and batch.entries:
            log.entries = [entry for entry in log.entries if entry.seq <= batch.head]
        super().commit(batch)


class AcceptsAGap(BrokenStore, caught_by=("test_a_gap_is_refused",), seen_by_model=True):
    """Any seq above the head will do."""

    def commit(self, batch: Batch) -> None:
        """Write whatever is above the head."""
        log = self._logs.get(batch.key)
        ahead = log is not None and batch.head > log.head
        self.force(batch) if ahead and batch.entries else super().commit(batch)


class AcceptsAnyBeginning(
    BrokenStore,
    caught_by=("test_a_thread_begins_with_seq_one", "test_a_writer_of_a_deleted_thread_is_refused"),
    seen_by_model=True,
):
    """A new thread may begin anywhere."""

    def commit(self, batch: Batch) -> None:
        """Write to a new thread without a look."""
        self.force(batch) if batch.key not in self._logs else super().commit(batch)


class MeetsOldWriters(
    BrokenStore, caught_by=("test_a_writer_of_a_thread_that_was_begun_anew_is_refused",)
):
    """Takes a head of the same seq for the same head."""

    def commit(self, batch: Batch) -> None:
        """Compare seqs only."""
        super().commit(msgspec.structs.replace(batch, head_id=None))


class LeavesOutAllButTheFirst(
    BrokenStore, caught_by=("test_several_entries_may_follow_one_that_was_just_written",)
):
    """Writes single entries in a shorter way, and takes every batch behind a known head for one."""

    def commit(self, batch: Batch) -> None:
        """Write one entry."""
        if batch.head_id is not None:
            batch = msgspec.structs.replace(batch, entries=batch.entries[:1])
        super().commit(batch)


class TrustsTheHead(
    BrokenStore,
    caught_by=("test_an_entry_that_is_not_above_the_head_is_refused",),
    seen_by_model=True,
):
    """Looks at what the batch says of its entries, and not at the entries."""

    def commit(self, batch: Batch) -> None:
        """Compare heads only."""
        log = self._logs.get(batch.key)
        head = log.head if log else 0
        self.force(batch) if batch.head == head else super().commit(batch)


class KeepsTheFirstEntry(
    BrokenStore,
    caught_by=(
        "test_a_second_entry_with_a_taken_seq_takes_the_first_with_it",
        "test_a_second_entry_above_a_gap_takes_the_first_with_it",
        "test_a_refused_batch_leaves_no_entry",
    ),
    seen_by_model=True,
):
    """Writes entry by entry, and stops at the one that does not fit."""

    def commit(self, batch: Batch) -> None:
        """Keep the first entry, whatever becomes of the second."""
        try:
            super().commit(batch)
        except Conflict:
            first = Batch(key=batch.key, head=batch.head, entries=batch.entries[:1])
            super().commit(first)
            raise


class FencesEntriesOnly(
    BrokenStore, caught_by=("test_a_batch_without_entries_is_fenced_too",), seen_by_model=True
):
    """Records and results are not held to the fence."""

    def commit(self, batch: Batch) -> None:
        """Write what has no entries without a look."""
        super().commit(batch) if batch.entries else self.force(batch)


class IgnoresBatchesWithoutEntries(
    BrokenStore,
    caught_by=(
        "test_a_batch_without_entries_is_kept_at_the_head",
        "test_a_run_may_be_recorded_before_any_entry",
    ),
):
    """No entry, no write."""

    def commit(self, batch: Batch) -> None:
        """Drop what has no entries."""
        if batch.entries:
            super().commit(batch)


class KeepsOneEntryOfABatch(
    BrokenStore,
    caught_by=("test_a_batch_may_hold_several_entries", "test_a_batch_keeps_all_of_its_parts"),
):
    """A batch is one entry."""

    def commit(self, batch: Batch) -> None:
        """Drop all entries but the first."""
        super().commit(msgspec.structs.replace(batch, entries=batch.entries[:1]))


class ForgetsTheOldest(
    BrokenStore, caught_by=("test_entries_are_appended_one_above_the_other",), seen_by_model=True
):
    """Keeps three entries."""

    def commit(self, batch: Batch) -> None:
        """Drop what is older."""
        super().commit(batch)
        log = self._logs[batch.key]
        log.entries = log.entries[-3:]


class VagueConflict(BrokenStore, caught_by=("test_a_conflict_says_what_was_wanted_and_what_is",)):
    """Refuses without saying what."""

    def commit(self, batch: Batch) -> None:
        """Raise a conflict that says nothing."""
        try:
            super().commit(batch)
        except Conflict:
            raise Conflict(tenant="", thread="", expected=0, head=0) from None


class LocksUpAfterAConflict(
    BrokenStore, caught_by=("test_a_refused_writer_may_read_and_try_again",)
):
    """One conflict, and the thread is closed to everybody."""

    def __init__(self) -> None:
        super().__init__()
        self._refused: set[ThreadKey] = set()

    def commit(self, batch: Batch) -> None:
        """Refuse everybody after the first."""
        if batch.key in self._refused:
            raise Conflict(tenant=batch.key.tenant, thread=batch.key.thread, expected=0, head=0)
        try:
            super().commit(batch)
        except Conflict:
            self._refused.add(batch.key)
            raise


class LeakingStore(BrokenStore):
    """Keeps one part of a batch that it refuses."""

    part: ClassVar[str]

    def commit(self, batch: Batch) -> None:
        """Write the part first, and look at the head afterwards."""
        try:
            super().commit(batch)
        except Conflict:
            self.force(Batch(key=batch.key, head=0, **{self.part: getattr(batch, self.part)}))
            raise


class LeaksResults(LeakingStore, caught_by=("test_a_refused_batch_leaves_no_result",)):
    """Results are written apart."""

    part = "results"


class LeaksRecords(
    LeakingStore,
    caught_by=(
        "test_a_refused_batch_leaves_no_record",
        "test_a_refused_first_batch_leaves_no_thread",
    ),
    seen_by_model=True,
):
    """Records are written apart."""

    part = "runs"


class LeaksFailures(
    LeakingStore, caught_by=("test_a_refused_batch_leaves_no_failure",), seen_by_model=True
):
    """Failures are written apart."""

    part = "failure"


class LeaksManifests(
    LeakingStore, caught_by=("test_a_refused_batch_leaves_no_manifest",), seen_by_model=True
):
    """Manifests are written apart."""

    part = "manifest"


class ForgetsAtACrash(
    BrokenStore,
    caught_by=(
        "test_what_was_committed_is_there_after_a_crash",
        "test_the_fence_holds_after_a_crash",
    ),
    seen_by_model=True,
):
    """Nothing was durable."""

    def crashed(self) -> Store:
        """Begin with nothing."""
        return type(self)()


class WritesBeforeItLooks(
    BrokenStore, caught_by=("test_what_was_refused_is_not_there_after_a_crash",)
):
    """What was refused is on disk nevertheless."""

    def __init__(self) -> None:
        super().__init__()
        self._refused: list[Batch] = []

    def commit(self, batch: Batch) -> None:
        """Note what is refused."""
        try:
            super().commit(batch)
        except Conflict:
            self._refused.append(batch)
            raise

    def crashed(self) -> Store:
        """Find what was refused."""
        for batch in self._refused:
            self.force(batch)
        return self


class KeepsResultsInMemory(BrokenStore, caught_by=("test_results_outlast_a_crash",)):
    """Results are not written at all."""

    def crashed(self) -> Store:
        """Forget them."""
        for log in self._logs.values():
            log.results = {}
        return self


class DeletesInMemory(BrokenStore, caught_by=("test_a_deletion_outlasts_a_crash",)):
    """What was deleted is still on disk."""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: dict[ThreadKey, Any] = {}

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Note what is deleted."""
        self._deleted[key] = self._logs.get(key)
        return super().delete(key, head=head, head_id=head_id)

    def crashed(self) -> Store:
        """Find what was deleted."""
        self._logs.update(self._deleted)
        return self


class PrunesInMemory(BrokenStore, caught_by=("test_a_pruning_outlasts_a_crash",)):
    """What was pruned is still on disk."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[ThreadKey, list[Entry]] = {}

    def prune(self, key: ThreadKey, **options: Any) -> int:
        """Note what was there before."""
        self._before[key] = list(self._logs[key].entries)
        return super().prune(key, **options)

    def crashed(self) -> Store:
        """Find what was there before."""
        for key, entries in self._before.items():
            self._logs[key].entries = entries
        return self


class StripsPayloads(BrokenStore, caught_by=("test_payloads_come_back_byte_for_byte",)):
    """Takes payloads for text."""

    def commit(self, batch: Batch) -> None:
        """Cut white space and NULs off."""
        super().commit(_changed(batch, "payload", lambda payload: payload.rstrip(b"\0 \n")))


class CutsLargePayloads(BrokenStore, caught_by=("test_large_payloads_come_back_byte_for_byte",)):
    """A megabyte is enough."""

    def commit(self, batch: Batch) -> None:
        """Cut off the rest."""
        super().commit(_changed(batch, "payload", lambda payload: payload[: 2**20]))


class JoinsNamesWithCommas(BrokenStore, caught_by=("test_every_field_of_an_entry_comes_back",)):
    """No name has a comma, has it?"""

    def commit(self, batch: Batch) -> None:
        """Join and split."""
        super().commit(_changed(batch, "nodes", lambda names: tuple(",".join(names).split(","))))


class TrimsTaskNames(BrokenStore, caught_by=("test_every_field_of_a_result_comes_back",)):
    """Task names are words."""

    def commit(self, batch: Batch) -> None:
        """Cut white space off."""
        results = tuple(
            msgspec.structs.replace(result, task=result.task.strip()) for result in batch.results
        )
        super().commit(msgspec.structs.replace(batch, results=results))


class KeepsTimesAsFloats(BrokenStore, caught_by=("test_every_field_of_a_record_comes_back",)):
    """A float is as good as an int."""

    def commit(self, batch: Batch) -> None:
        """Round."""
        runs = tuple(
            msgspec.structs.replace(run, started_at=int(float(run.started_at)))
            for run in batch.runs
        )
        super().commit(msgspec.structs.replace(batch, runs=runs))


class ForgetsWhenToWake(BrokenStore, caught_by=("test_every_field_of_a_record_comes_back",)):
    """Sleeps on."""

    def commit(self, batch: Batch) -> None:
        """Drop the time."""
        runs = tuple(msgspec.structs.replace(run, wake_at=None) for run in batch.runs)
        super().commit(msgspec.structs.replace(batch, runs=runs))


class CutsTextAtNul(BrokenStore, caught_by=("test_every_field_of_a_failure_comes_back",)):
    """Text ends where C says that it ends."""

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """Cut the message."""
        found = super().failure(key, run_id)
        if found is None:
            return None
        return msgspec.structs.replace(found, message=found.message.partition("\0")[0])


class HandsOutItsOwnRecords(BrokenStore, caught_by=("test_a_record_is_not_changed_from_outside",)):
    """The reader gets what the store holds."""

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """Give the record itself."""
        log = self._logs.get(key)
        return log.runs.get(run_id) if log else None


def _changed(batch: Batch, field: str, change: Callable[[Any], Any]) -> Batch:
    """The batch with one field of each entry changed."""
    entries = tuple(
        msgspec.structs.replace(entry, **{field: change(getattr(entry, field))})
        for entry in batch.entries
    )
    return msgspec.structs.replace(batch, entries=entries)


class RepeatsInputs(BrokenStore, caught_by=("test_a_batch_is_refused_if_a_run_has_its_input",)):
    """An input may come again."""

    def commit(self, batch: Batch) -> None:
        """Do not look for it."""
        super().commit(msgspec.structs.replace(batch, unless=None))
