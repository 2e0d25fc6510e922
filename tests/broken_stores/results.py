"""Stores that break a promise on the results of tasks."""

from __future__ import annotations

import time

import msgspec.structs

from milecastle.model.checkpoint import TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Chain
from tests.broken_stores.store import BrokenStore


class LosesResults(BrokenStore, caught_by=("test_results_come_with_the_head",)):
    """One result is enough."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give the first result."""
        chain = super().read(key, seq)
        return Chain(chain.entries, chain.results[:1]) if chain else None


class GivesResultsWithEverything(
    BrokenStore, caught_by=("test_results_come_with_no_older_checkpoint",), seen_by_model=True
):
    """Results belong to the thread."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give them with any checkpoint."""
        chain = super().read(key, seq)
        return Chain(chain.entries, tuple(self._logs[key].results.values())) if chain else None


class KeepsResultsForEver(
    BrokenStore, caught_by=("test_results_end_with_the_step",), seen_by_model=True
):
    """Results outlast the step."""

    def commit(self, batch: Batch) -> None:
        """Put back what the step ended."""
        log = self._logs.get(batch.key)
        before = dict(log.results) if log and batch.entries else {}
        super().commit(batch)
        now = self._logs[batch.key]
        now.results = before | now.results


class EndsResultsAtATakeover(
    BrokenStore, caught_by=("test_results_outlast_what_holds_the_step",), seen_by_model=True
):
    """Any entry ends the results."""

    def commit(self, batch: Batch) -> None:
        """Drop them."""
        super().commit(batch)
        if batch.entries:
            self._logs[batch.key].results = {each.task: each for each in batch.results}


class EndsResultsAtAnAnswer(
    BrokenStore, caught_by=("test_results_outlast_what_holds_the_step",), seen_by_model=True
):
    """Only a takeover leaves them."""

    def commit(self, batch: Batch) -> None:
        """Drop them at every other entry."""
        super().commit(batch)
        if any(entry.source != "takeover" for entry in batch.entries):
            self._logs[batch.key].results = {each.task: each for each in batch.results}


class KeepsEveryResult(
    BrokenStore,
    caught_by=("test_a_later_result_of_a_task_replaces_the_earlier",),
    seen_by_model=True,
):
    """A result is known by its task and its head."""

    def __init__(self) -> None:
        super().__init__()
        self._earlier: dict[ThreadKey, list[TaskResult]] = {}

    def commit(self, batch: Batch) -> None:
        """Put what is replaced aside."""
        log = self._logs.get(batch.key)
        known = log.results if log and not batch.entries else {}
        earlier = [known[each.task] for each in batch.results if each.task in known]
        super().commit(batch)
        self._earlier.setdefault(batch.key, []).extend(earlier)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give what was put aside too."""
        chain = super().read(key, seq)
        if chain is None or not chain.results:
            return chain
        return Chain(chain.entries, (*self._earlier[key], *chain.results))


class KeepsTheFirstResult(
    BrokenStore,
    caught_by=("test_a_later_result_of_a_task_replaces_the_earlier",),
    seen_by_model=True,
):
    """A task has one result, and that is it."""

    def commit(self, batch: Batch) -> None:
        """Drop results of tasks that have one."""
        log = self._logs.get(batch.key)
        known = log.results if log and not batch.entries else {}
        new = tuple(each for each in batch.results if each.task not in known)
        super().commit(msgspec.structs.replace(batch, results=new))


class WritesResultsAnew(
    BrokenStore, caught_by=("test_adding_results_costs_what_is_added_and_not_what_is_there",)
):
    """All results of a head are one value, written whole."""

    def commit(self, batch: Batch) -> None:
        """Take a moment for each."""
        super().commit(batch)
        if batch.results:
            time.sleep(len(self._logs[batch.key].results) * 1e-5)


class GivesResultsWithTheState(BrokenStore, caught_by=("test_a_state_is_read_without_results",)):
    """A chain is a chain."""

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give all of it."""
        return self.read(key, seq)


class CountsWhatBeginsAlike(BrokenStore, caught_by=("test_results_are_counted_by_their_task",)):
    """An item begins with the name of its task."""

    def count_results(self, key: ThreadKey, task: str) -> int:
        """Count by the beginning."""
        return sum(one.task.startswith(task) for one in self.results(key))
