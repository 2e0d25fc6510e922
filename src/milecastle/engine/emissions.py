"""Stored emissions: values a step's tasks emit with ``keep``, as rows of the step.

Rules:

- Values from all of a step's tasks have one order, by offset: a reader with one needs those
  behind it. A row has one chunk's values, is named after the first one's offset, and has the
  seq of the entry that began the step: so two steps' values have an order, too.
- Each attempt of a task has a number that no earlier one of the step has, in whatever run that
  was. So a reader sees that the task begins again.
- A value is encoded when it is emitted: what cannot be stored fails there, and what its owner
  changes later is not changed here.
- The rows end with the step. An entry that leaves the thread in its step, or a failure, takes the
  values along that are not stored yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.engine.journal import Journal
from milecastle.model.checkpoint import TaskResult
from milecastle.model.task import RunTask
from milecastle.ports.services import Chunks, Services
from milecastle.ports.store import Batch

Unsaved = tuple[int, list[Any]]
"""Values, and the offset of the first."""


class Emissions:
    """One step's emissions. ``rows`` are those that earlier runs left in it."""

    def __init__(
        self, step: int, journal: Journal, rows: Mapping[str, Mapping[str, Any]], services: Services
    ) -> None:
        mark = emission_mark(step)
        found = [kept["value"][1] for row, kept in rows.items() if row.startswith(mark)]
        self._mark = mark
        self._began = journal.settled
        self._journal = journal
        self._attempts: dict[str, tuple[int, int]] = {}
        self._earlier = [one for values in found for one in values]
        self._chunks = services.chunks(len(self._earlier), self._batch)

    def keep(self, task: RunTask, value: Any) -> Chunks:
        body = self._journal.codec.encode_state({"value": value}, node=task.node)
        known, number = self._attempts.get(task.id) or (0, self._last_attempt(task.id))
        begins = known != task.attempt
        if begins:
            number = max(number + 1, task.attempt)
            self._attempts[task.id] = task.attempt, number
        self._chunks.add([task.id, task.node, number, begins, body])
        return self._chunks

    def close(self) -> Unsaved:
        return self._chunks.close()

    def rows(self, unsaved: Unsaved) -> tuple[TaskResult, ...]:
        return self._batch(*unsaved).results if unsaved[1] else ()

    def _last_attempt(self, task: str) -> int:
        return max((one[2] for one in self._earlier if one[0] == task), default=0)

    def _batch(self, offset: int, values: list[Any]) -> Batch:
        row = f"{self._mark}#{offset}"
        return self._journal.rows((self._journal.kept(row, [self._began, values], row),))


def emission_offset(row: str) -> int | None:
    step, mark, offset = row.partition(">#")
    return int(offset) if mark and step.isdigit() else None


def emission_mark(step: int) -> str:
    return f"{step}>"
