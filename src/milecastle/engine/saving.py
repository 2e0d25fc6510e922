"""Saving: when an entry is due, and what a run leaves behind when it fails.

While a batch is made, and on its way, the run records nothing else: if the commit fails, the thread
belongs to somebody else, or the outcome is unknown, and this run must not write again. A signal may
interrupt the making of a batch at any line; what is half made is not built upon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec.structs

from milecastle.engine.failing import describe
from milecastle.engine.journal import Journal
from milecastle.engine.plan import RunPlan
from milecastle.engine.progress import Progress
from milecastle.errors import RunCancelled, UnserializableState
from milecastle.model.checkpoint import Source, TaskResult
from milecastle.model.run import RunStatus
from milecastle.ports.store import Batch

__all__ = ["Saver"]


class Saver:
    """Makes the batches of one run. After each commit, ``saved`` must be told."""

    def __init__(self, plan: RunPlan, journal: Journal, progress: Progress) -> None:
        self._journal = journal
        self._progress = progress
        self._interval = plan.interval
        self._clock = plan.clock
        self._note = plan.note
        self._unsaved = 0
        self.may_record = True

    def batch(self, source: Source, wake_at: int | None = None) -> Batch | None:
        """The batch for what just happened; ``None`` if the interval says to wait."""
        progress, journal = self._progress, self._journal
        self._unsaved += 1
        if source == "step" and progress.next and self._unsaved < self._interval:
            return None
        status: RunStatus | None = None
        if source == "interrupt":
            status = "interrupted"
        elif source == "sleep":
            status = "sleeping"
        elif not progress.next and not progress.route:
            status = "completed"
        head, record, may_record = journal.head, journal.record, self.may_record
        self.may_record = False
        try:
            batch = journal.append(progress, source, self._note, status, wake_at)
        except BaseException:
            self._unsaved = 0  # what cannot be written is no part of what a failure leaves
            if journal.head == head and journal.record is record:
                self.may_record = may_record
            raise
        self._note = ""
        return batch

    @property
    def is_saved(self) -> bool:
        """Whether the newest state was committed."""
        return not self._unsaved

    def saved(self, batch: Batch) -> None:
        """The batch was committed. A run that came to rest has nothing more to record."""
        if batch.entries:
            self._unsaved = 0
            if batch.entries[-1].source != "takeover":
                self._progress.since = batch.entries[-1].created_at
        self.may_record = self._journal.record.status == "running"

    def result(self, row: str, update: Mapping[str, Any], node: str) -> TaskResult | None:
        """A result to keep; ``None`` if the step that it belongs to was not saved itself."""
        return None if self._unsaved else self._journal.result(row, update, node)

    def results(self, kept: list[TaskResult]) -> Batch:
        """The batch that keeps results while their siblings run."""
        self.may_record = False
        return self._journal.results(tuple(kept))

    def last_batch(self, error: BaseException, run_id: str) -> Batch:
        """The batch that records how the run ended, with every step that was not saved yet."""
        self.may_record = False
        if isinstance(error, RunCancelled) or not isinstance(error, Exception):
            failure = None
            self._journal.turn("cancelled")
        else:
            waiting = self._progress.next
            node = getattr(error, "node", None) or (waiting[0] if len(waiting) == 1 else None)
            failure = describe(error, run_id=run_id, node=node, time=self._clock.now())
            self._journal.turn("failed")
        if not self._unsaved:
            return self._journal.close(failure)
        try:
            batch = self._journal.append(self._progress, "step", self._note)
        except UnserializableState:
            return self._journal.close(failure)
        return msgspec.structs.replace(batch, failure=failure)
