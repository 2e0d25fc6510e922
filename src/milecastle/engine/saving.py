"""Saving: when to write an entry, and a failing run's last batch.

While a batch is made, and on its way, the run records nothing else: if the commit fails, the thread
belongs to another run, or the outcome is unknown, and this run must not write again. A signal may
interrupt a batch's making at any line; a half-built batch is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec.structs

from milecastle.engine.emissions import Emissions, Unsaved
from milecastle.engine.failure_records import describe
from milecastle.engine.journal import Journal
from milecastle.engine.plan import Progress, RunPlan
from milecastle.engine.received import Received
from milecastle.errors import RunCancelled, UnserializableState
from milecastle.model.checkpoint import HOLDING, Source, TaskResult
from milecastle.model.memory import ItemPlace, MemoryWrite
from milecastle.model.run import Failure, RunStatus, TaskFailure
from milecastle.ports.store import Batch


class Saver:
    """Makes one run's batches. ``saved`` must be called after each commit.

    ``holds`` is set by a node that got its context in a step whose beginning was not saved: its
    records and its key are under an older entry, so a failure must not move on from that one.
    ``emissions`` are those stored with the current step, if its tasks have any. ``memory`` is
    written with the next entry.
    """

    def __init__(
        self, plan: RunPlan, journal: Journal, progress: Progress, received: Received
    ) -> None:
        self._journal = journal
        self._received = received
        self._progress = progress
        self._interval = plan.interval
        self._clock = plan.clock
        self._note = plan.note
        self._assignment = journal.assignment
        self._queues = plan.queues
        entry = plan.position.entry
        brings = plan.update is not None or plan.opening in ("update", "fork")
        is_at_head = not brings and entry is not None and entry.seq == journal.head
        self._began = plan.position if is_at_head else None
        self._unsaved = 0
        self._step = progress.step
        self.holds = False
        self.may_record = True
        self.emissions: dict[int, Emissions] = {}
        self.memory: dict[ItemPlace, MemoryWrite] = {}

    def remember(self, writes: Iterable[MemoryWrite]) -> None:
        self.memory.update((write.place, write) for write in writes)

    def before_commit(self) -> tuple[int, int, str, bool]:
        return self._step, self._unsaved, self._note, self.holds

    def rewind(self, before: tuple[int, int, str, bool]) -> None:
        self._step, self._unsaved, self._note, self.holds = before
        self.may_record, self.memory = True, {}

    def batch(self, source: Source, wake_at: int | None = None) -> Batch | None:
        progress = self._progress
        self._step = progress.step
        self._unsaved += 1
        if self._received.is_used and source == "step":
            self._received.apply()
        releases = self._assignment is not None and (self._queues or self._is_draining)
        status: RunStatus | None = None
        if source == "step" and progress.next:
            if releases:
                status = "queued"
            elif self._unsaved < self._interval and not self.memory:
                return None
        elif source == "interrupt":
            status = "interrupted"
        elif source == "sleep":
            status = "sleeping"
        elif not progress.next and not progress.route:
            status = "completed"
        elif releases:
            status = "queued"
        return self._append(source, status, wake_at)

    def call_batch(self, note: str) -> Batch | None:
        self._note = self._note or note
        return self.batch("step")

    def give_up(self, status: RunStatus) -> Batch:
        self._note = "the code makes other calls than the record"
        return self._append("takeover", status)

    def flush(self) -> Batch | None:
        return self._append("step") if self._unsaved else None

    def _append(
        self, source: Source, status: RunStatus | None = None, wake_at: int | None = None
    ) -> Batch:
        journal = self._journal
        head, record, may_record = journal.head, journal.record, self.may_record
        self.may_record = False
        left = self._end_emissions() if self.emissions else []
        try:
            batch = self._entry(source, status, wake_at)
        except BaseException:
            self._unsaved = 0  # what cannot be written is not part of what a failure leaves
            if journal.head == head and journal.record is record:
                self.may_record = may_record
            raise
        self._note = ""
        return _with_emissions(batch, left) if left and source in HOLDING else batch

    def _entry(
        self, source: Source, status: RunStatus | None = None, wake_at: int | None = None
    ) -> Batch:
        batch = self._journal.append(self._progress, source, self._note, status, wake_at)
        if self.memory:
            batch = msgspec.structs.replace(batch, memory=tuple(self.memory.values()))
            self.memory = {}
        if not self._received.is_used:
            return batch
        consumes = (*batch.consumes, *self._received.take())
        return msgspec.structs.replace(batch, consumes=consumes)

    def _end_emissions(self) -> list[tuple[Emissions, Unsaved]]:
        left = [(one, one.close()) for one in self.emissions.values()]
        self.emissions.clear()
        return left

    @property
    def _is_draining(self) -> bool:
        return self._assignment is not None and self._assignment.is_draining()

    @property
    def is_lost(self) -> bool:
        return self._assignment is not None and self._assignment.is_lost()

    @property
    def is_saved(self) -> bool:
        return not self._unsaved

    def saved(self, batch: Batch) -> None:
        if batch.entries:
            self._unsaved = 0
            self.holds = False
            entry = batch.entries[-1]
            if entry.source != "takeover":
                self._progress.since = entry.created_at
        self.may_record = self._journal.record.status == "running"

    def result(self, row: str, update: Mapping[str, Any], node: str) -> TaskResult:
        return self._journal.result(row, update, node)

    def results(self, kept: list[TaskResult]) -> Batch:
        self.may_record = False
        return self._journal.results(tuple(kept))

    def last_batch(
        self,
        error: BaseException,
        run_id: str,
        attempt: int = 1,
        tasks: tuple[TaskFailure, ...] = (),
    ) -> Batch:
        """The batch recording how the run ended, with every unsaved step.

        ``tasks`` are its step's failed tasks, if there are several.
        """
        if self._step != self._progress.step:  # it ended before it was decided what runs next
            self._unsaved, self.memory = 0, {}
        stopped = isinstance(error, RunCancelled) or not isinstance(error, Exception)
        waiting = self._progress.next
        node = getattr(error, "node", None) or (waiting[0] if len(waiting) == 1 else None)
        now = self._clock.now()
        failure: Failure | None = describe(
            error, run_id=run_id, node=node, time=now, attempt=attempt, tasks=tasks
        )
        if stopped and self._is_draining:
            failure = None  # another worker continues from here
            self._journal.turn("queued")
        elif stopped:
            self._journal.turn("cancelled")
        else:
            self._journal.fail(error, failure)
        left = self._end_emissions() if self.emissions else []
        if not self._unsaved:
            return _with_emissions(self._close(failure), left)
        try:
            source: Source = "takeover" if self.holds else "step"
            batch = self._entry(source)
        except UnserializableState:
            return self._close(failure)
        return msgspec.structs.replace(batch, failure=failure)

    def _close(self, failure: Failure | None) -> Batch:
        """The batch without any step. A run with no entry yet leaves one where it began.

        So a log's head always belongs to the newest active run.
        """
        if self._journal.known or self._began is None:
            return self._journal.close(failure)
        return msgspec.structs.replace(self._journal.mark(self._began), failure=failure)


def _with_emissions(batch: Batch, left: list[tuple[Emissions, Unsaved]]) -> Batch:
    rows = [row for emissions, unsaved in left for row in emissions.rows(unsaved)]
    return msgspec.structs.replace(batch, results=(*batch.results, *rows)) if rows else batch
