"""A thread as plain data: what the state machine holds a store against."""

from __future__ import annotations

from milecastle.model.checkpoint import TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.testing.entries import Writer

__all__ = ["ThreadModel"]


class ThreadModel:
    """One thread as plain data. ``writer`` holds its entries and states."""

    def __init__(self, key: ThreadKey, number: int) -> None:
        self.writer = Writer(key, number)
        self.results: dict[str, TaskResult] = {}
        self.runs: dict[str, RunRecord] = {}
        self.failures: dict[str, Failure] = {}
        self.info: ThreadInfo | None = None
        self.tags: tuple[str, ...] = ()

    @property
    def head(self) -> int:
        """The newest seq; 0 if there is none."""
        return self.writer.head

    @property
    def exists(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self.writer.entries or self.runs)

    def newest_runs(self) -> list[RunRecord]:
        """The runs as a store lists them."""
        return list(self.runs.values())[::-1]
