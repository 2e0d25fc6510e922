"""Records: the rows that tasks of the current step leave under the head of the log.

A record is a separate task result: a row that is named after the step and the task. It
outlasts whatever leaves the thread in its step, and ends with the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.engine.plan import Progress, RunPlan
from milecastle.engine.reserved_channels import SLEEPS
from milecastle.engine.tasks import outcome_row
from milecastle.model.checkpoint import TaskResult
from milecastle.model.task import RunTask
from milecastle.ports.store import Batch
from milecastle.ports.task import MISSING


class Records:
    """Outcomes, attempts and recorded values of the tasks of the step that a run is in.

    ``first_reruns`` is how often the run's first step was resumed before.
    """

    def __init__(self, plan: RunPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._journal = plan.journal
        self._rows: dict[str, Mapping[str, Any]] = {}
        if plan.position.results:
            self.recall(plan.position.results)
        resumed = plan.opening in ("takeover", "answer") or SLEEPS in plan.position.reserved
        self.first_reruns = 0 if plan.fresh_attempts else plan.position.reruns + resumed

    def recall(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the tasks of the step have left; ``fresh_attempts`` leaves out the counts."""
        fresh = self._plan.fresh_attempts
        self._rows = {
            row: kept
            for row, kept in rows.items()
            if not (fresh and row.partition("!")[0].isdigit())
        }

    def renewed(self) -> tuple[TaskResult, ...]:
        """What lets the next run of this step count its attempts from 1, if this one may."""
        journal, rows = self._journal, self._plan.position.results
        if journal is None or not self._plan.fresh_attempts:
            return ()
        names = [name for name in rows if name.partition("!")[0].isdigit()]
        return tuple(journal.kept(name, [0, 0], name.partition("!")[2]) for name in names)

    def rewritten(self) -> tuple[TaskResult, ...]:
        """The rows of the step, to be written with an entry that removes them."""
        journal = self._journal
        return (
            tuple(journal.result(row, kept, row) for row, kept in self._rows.items())
            if journal
            else ()
        )

    def outcome(self, task: str) -> Mapping[str, Any] | None:
        """What a task of this step returned before the run was interrupted, if it did."""
        return self._rows.get(self.outcome_row(task)) if self._rows else None

    def outcome_row(self, task: str) -> str:
        """The name under which the outcome of a task is stored."""
        return outcome_row(self._progress.step + 1, task)

    def attempts(self, task: str) -> int:
        """How often a task of this step was started before."""
        if self._journal is None:
            return 0
        return self._marked(task)[0]

    def pauses(self, task: str) -> int:
        """How many of these attempts ended because the task had to wait, which is not a failure."""
        return self._marked(task)[1]

    def mark(self, task: str, attempt: int) -> TaskResult | None:
        """The row that records the start of an attempt."""
        return self._mark(task, [attempt, self.pauses(task)])

    def mark_pause(self, task: str, attempt: int) -> TaskResult | None:
        """The row that says that an attempt ended because the task has to wait."""
        return self._mark(task, [attempt, self.pauses(task) + 1])

    def forget_attempts(self, task: str) -> None:
        """A task has its outcome: its attempts are needed by nobody in this run."""
        self._rows.pop(self._attempts_row(task), None)

    def _marked(self, task: str) -> list[int]:
        kept = self._rows.get(self._attempts_row(task))
        return kept["value"] if kept else [0, 0]

    def _mark(self, task: str, counts: list[int]) -> TaskResult | None:
        name = self._attempts_row(task)
        self._rows[name] = {"value": counts}
        return None if self._journal is None else self._journal.kept(name, counts, task)

    @property
    def reruns(self) -> int:
        """How often this step was resumed before; 0 once the run has left its first step."""
        return self.first_reruns if self._progress.step == self._plan.position.step else 0

    def recorded(self, task: RunTask, name: str) -> Any:
        """What a task recorded under this name; ``MISSING`` if it did not."""
        kept = self._rows.get(self.row(task, name))
        return kept["value"] if kept else MISSING

    def keep(self, task: RunTask, name: str, value: Any) -> None:
        """A value was recorded under this name."""
        self._rows[self.row(task, name)] = {"value": value}

    def batch(self, task: RunTask, name: str, value: Any) -> Batch | None:
        """The batch that records a value; ``None`` without a store."""
        journal = self._journal
        if journal is None:
            return None
        return journal.rows((journal.kept(self.row(task, name), value, task.id),))

    def row(self, task: RunTask, name: str) -> str:
        """The name of the row of a recorded value."""
        return f"{task.step}?{task.id}/{name}"

    def _attempts_row(self, task: str) -> str:
        return f"{self._progress.step + 1}!{task}"


def attempts_at(step: int, rows: Mapping[str, Mapping[str, Any]]) -> int:
    """The attempt that the step after ``step`` was in, by the rows of its tasks; at least 1."""
    mark = f"{step + 1}!"
    return max((kept["value"][0] for row, kept in rows.items() if row.startswith(mark)), default=1)
