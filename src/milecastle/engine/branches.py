"""Branches: the tasks of a step with several, run side by side.

A result is committed as soon as it is there while others still run, so that a crash, or the
failure of a sibling, repeats only unfinished work.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from milecastle.engine.applying import read_update
from milecastle.engine.effects import AwaitTasks, Commit, Effect, Finished, RunTask, RunTasks
from milecastle.engine.progress import Progress
from milecastle.engine.saving import Saver
from milecastle.engine.telling import Teller
from milecastle.errors import MilecastleError
from milecastle.graph.schema import StateSchema
from milecastle.model.checkpoint import TaskResult

__all__ = ["Branches"]

Update = Mapping[str, Any]


class Branches:
    """The tasks of one step. ``updates`` and ``failures`` fill as they end.

    ``refused`` are the failures that are not the node's own: what it returned was no update.
    """

    def __init__(
        self,
        schema: StateSchema,
        progress: Progress,
        saver: Saver | None,
        teller: Teller | None,
        updates: Mapping[str, Update],
    ) -> None:
        self._schema = schema
        self._values = progress.values
        self._step = progress.step + 1
        self._saver = saver
        self._teller = teller
        self.updates = dict(updates)
        self.failures: dict[str, BaseException] = {}
        self.refused: set[str] = set()

    def run(self, tasks: Sequence[RunTask]) -> Generator[Effect, Any, None]:
        """Run the tasks until each has ended."""
        remaining = len(tasks)
        finished: Sequence[Finished] = (yield RunTasks(tuple(tasks))) if tasks else ()
        while remaining:
            remaining -= len(finished)
            kept: list[TaskResult] = []
            for item in finished:
                yield from self._settle(item, kept)
            if kept and self._saver and (remaining or self.failures):
                batch = self._saver.results(kept)
                yield Commit(batch)
                self._saver.saved(batch)
            if remaining:
                finished = yield AwaitTasks()

    def _settle(self, item: Finished, kept: list[TaskResult]) -> Generator[Effect, Any, None]:
        name, error = item.task.node.name, item.error
        if error is None:
            try:
                update = read_update(self._schema, name, item.update, self._values)
                result = self._saver.result(name, update) if self._saver else None
            except MilecastleError as refused:
                error = refused
                self.refused.add(name)
            else:
                self.updates[name] = update
                if result is not None:
                    kept.append(result)
        if error is not None:
            self.failures[name] = error
        if self._teller is not None:
            yield self._teller.node_ended(name, self._step, item.update, error)
