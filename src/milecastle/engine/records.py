"""Records: the rows that the current step's tasks leave under the log's head.

A record is a separate task result: a row named after the step and the task. It
outlasts any entry that leaves the thread in its step, and ends with the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.engine.plan import Progress, RunPlan
from milecastle.engine.tasks import outcome_row, received_row
from milecastle.engine.waiting import each_wait
from milecastle.model.checkpoint import TaskResult
from milecastle.model.task import RunTask
from milecastle.ports.task import MISSING


class Records:
    """Outcomes, attempts and recorded values for the current step's tasks.

    ``rows`` has them by name. ``first_reruns``: earlier resumes in the run's first step.
    """

    def __init__(self, plan: RunPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._journal = plan.journal
        self.rows: dict[str, Mapping[str, Any]] = {}
        if plan.position.results:
            self.recall(plan.position.results)
        reserved = plan.position.reserved
        resumed = plan.opening in ("takeover", "answer") or (
            bool(reserved)
            and any(wait.until is not None or wait.topics for _, wait in each_wait(reserved))
        )
        self.first_reruns = 0 if plan.fresh_attempts else plan.position.reruns + resumed

    def recall(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        fresh = self._plan.fresh_attempts
        self.rows = {
            row: kept
            for row, kept in rows.items()
            if not (fresh and row.partition("!")[0].isdigit())
        }

    def renewed(self) -> tuple[TaskResult, ...]:
        journal, rows = self._journal, self._plan.position.results
        if journal is None or not self._plan.fresh_attempts:
            return ()
        names = [name for name in rows if name.partition("!")[0].isdigit()]
        return tuple(journal.kept(name, [0, 0], name.partition("!")[2]) for name in names)

    def rewritten(self) -> tuple[TaskResult, ...]:
        journal = self._journal
        return (
            tuple(journal.result(row, kept, row) for row, kept in self.rows.items())
            if journal
            else ()
        )

    def outcome(self, task: str) -> Mapping[str, Any] | None:
        return self.rows.get(self.outcome_row(task)) if self.rows else None

    def outcome_row(self, task: str) -> str:
        return outcome_row(self._progress.step + 1, task)

    def received(self, task: str) -> list[int]:
        kept = self.rows.get(received_row(self._progress.step + 1, task)) if self.rows else None
        return kept["value"] if kept else []

    def attempts(self, task: str) -> int:
        if self._journal is None:
            return 0
        return self._marked(task)[0]

    def pauses(self, task: str) -> int:
        return self._marked(task)[1]

    def mark(self, task: str, attempt: int) -> TaskResult | None:
        return self._mark(task, [attempt, self.pauses(task)])

    def mark_pause(self, task: str, attempt: int) -> TaskResult | None:
        return self._mark(task, [attempt, self.pauses(task) + 1])

    def forget_attempts(self, task: str) -> None:
        self.rows.pop(self._attempts_row(task), None)

    def _marked(self, task: str) -> list[int]:
        kept = self.rows.get(self._attempts_row(task))
        return kept["value"] if kept else [0, 0]

    def _mark(self, task: str, counts: list[int]) -> TaskResult | None:
        name = self._attempts_row(task)
        self.rows[name] = {"value": counts}
        return None if self._journal is None else self._journal.kept(name, counts, task)

    @property
    def reruns(self) -> int:
        """Earlier resumes of this step; 0 once the run has left its first step."""
        return self.first_reruns if self._progress.step == self._plan.position.step else 0

    def recorded(self, task: RunTask, name: str) -> Any:
        kept = self.rows.get(self.row(task, name))
        return kept["value"] if kept else MISSING

    def keep(self, task: RunTask, name: str, value: Any) -> None:
        self.rows[self.row(task, name)] = {"value": value}

    def results(
        self, task: RunTask, name: str, value: Any, numbers: list[int]
    ) -> tuple[TaskResult, ...]:
        """Rows recording a value, and the messages the task has received; empty without a store.

        The messages are the task's from now on, even if the commit fails: it may be in the store.
        """
        journal = self._journal
        if journal is None:
            return ()
        kept = journal.kept(self.row(task, name), value, task.id)
        if not numbers:
            return (kept,)
        received = received_row(task.step, task.id)
        self.rows[received] = {"value": numbers}
        return kept, journal.kept(received, numbers, task.id)

    def row(self, task: RunTask, name: str) -> str:
        return f"{task.step}?{task.id}/{name}"

    def _attempts_row(self, task: str) -> str:
        return f"{self._progress.step + 1}!{task}"


def attempts_at(step: int, rows: Mapping[str, Mapping[str, Any]]) -> int:
    mark = f"{step + 1}!"
    return max((kept["value"][0] for row, kept in rows.items() if row.startswith(mark)), default=1)
