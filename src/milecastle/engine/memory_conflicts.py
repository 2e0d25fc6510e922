"""Repeating a step whose commit was refused because a memory item has another version.

The store has written nothing, so the run returns to where it was before that commit. Tasks that
wrote the item run again and read it again; the others have ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from milecastle.engine.applying import Outcome, pack
from milecastle.engine.remembering import Writes, merged
from milecastle.engine.run_state import RunState
from milecastle.errors import MemoryChanged

REPEATS: Final = 3
"""How often a step is repeated; then its node fails."""


class BeforeCommit:
    def __init__(self, run: RunState, step: Mapping[str, Writes]) -> None:
        progress, journal, saver = run.progress, run.journal, run.saver
        if journal is None or saver is None:
            raise AssertionError("memory is written by commits")
        self._run = run
        self._journal = journal
        self._saver = saver
        self._writes = step
        names = [name for name in progress.__slots__ if name != "guard"]
        self._progress = {name: getattr(progress, name) for name in names}
        self._reserved = {**progress.reserved}
        self._version = progress.guard.version
        self._before = journal.before_commit(), saver.before_commit()
        self._received = run.received.before_commit()

    def remember(self) -> None:
        self._saver.remember(merged(self._writes))

    def rewind(self, changed: MemoryChanged, outcomes: Mapping[str, Outcome]) -> str:
        """Undo the step; the outcomes of its other tasks count, as if they were resumed.

        Return the task whose write was refused.
        """
        run, progress = self._run, self._run.progress
        for name, value in self._progress.items():
            setattr(progress, name, value)
        progress.reserved = self._reserved
        progress.guard.version = self._version
        journal, saver = self._before
        self._journal.rewind(journal)
        self._saver.rewind(saver)
        again = [
            task
            for task, writes in self._writes.items()
            if changed.place in [write.place for write in writes]
        ]
        run.received.rewind(self._received, again)
        for task, outcome in outcomes.items():
            row = run.records.outcome_row(task)
            if task in again:
                run.records.rows.pop(row, None)
            else:
                run.records.rows[row] = pack(outcome)
        return again[0]
