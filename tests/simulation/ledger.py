"""What the processes of a simulation really did, and what they should have known."""

from __future__ import annotations

from milecastle.app.threads.children import is_child
from milecastle.engine.context import Context
from milecastle.engine.tasks import outcome_row
from milecastle.model.keys import ThreadKey
from milecastle.model.task import RunTask
from milecastle.ports.store import Batch
from tests.simulation.shaky_store import ShakyStore, Writer

__all__ = ["Ledger"]

Row = tuple[ThreadKey, str]


class Ledger:
    """Notes what was acknowledged, and what was done again although it was.

    A process that was superseded cannot know; it is not blamed for what it does.
    """

    def __init__(self, store: ShakyStore, intervals: tuple[int, int], wrong: list[str]) -> None:
        """``intervals`` are those of the graph and of its subgraph."""
        self.acknowledged: dict[ThreadKey, dict[int, str]] = {}
        self.store = store
        self.wrong = wrong
        self._intervals = intervals
        self._recorded: set[str] = set()
        self._doing: dict[Row, str] = {}

    def witness(self, writer: Writer) -> _Watch:
        """Who watches one process."""
        return _Watch(self, writer)

    def doing(self, ctx: Context, name: str) -> None:
        """A node does something that is to be recorded."""
        if ctx.thread is None:
            return
        what = f"{ctx.idempotency_key}/{name}"
        self._doing[ctx.thread, f"{ctx.step}?{ctx.task}/{name}"] = what
        if what in self._recorded and not self.store.is_fenced(ctx.thread):
            self.wrong.append(f"a recorded step was done again ({ctx.task}/{name})")

    def committed(self, batch: Batch) -> None:
        """The store acknowledged a batch."""
        acknowledged = self.acknowledged.setdefault(batch.key, {})
        for entry in batch.entries:
            acknowledged.setdefault(entry.seq, entry.id)
        for result in batch.results:
            if (batch.key, result.task) in self._doing:
                self._recorded.add(self._doing[batch.key, result.task])

    def saves_every_step(self, key: ThreadKey) -> bool:
        """Whether every step of this thread is saved when it ends."""
        return self._intervals[is_child(key)] == 1

    def is_durable(self, row: Row) -> bool:
        """Whether the outcome of a task is stored, or its step is committed."""
        key, name = row
        step = int(name.partition(":")[0])
        return name in self.store.kept.get(key, ()) or step <= self.store.steps.get(key, 0)


class _Watch:
    """The witness of one process."""

    def __init__(self, ledger: Ledger, writer: Writer) -> None:
        self._ledger = ledger
        self._writer = writer
        self._told: list[Row] = []

    def starting(self, task: RunTask) -> None:
        """A task is about to run: not one whose outcome is durable."""
        ledger, key = self._ledger, task.run.thread
        if key is None or ledger.store.is_fenced(key) or not ledger.saves_every_step(key):
            return
        if ledger.is_durable((key, outcome_row(task.step, task.id))):
            ledger.wrong.append(f"a finished task ran again ({task.id})")

    def ended(self, task: RunTask) -> None:
        """A task returned or raised."""

    def told(self, task: RunTask) -> None:
        """The engine is about to learn that a task ended well."""
        key = task.run.thread
        if key is not None and self._ledger.saves_every_step(key):
            self._told.append((key, outcome_row(task.step, task.id)))

    def waiting(self) -> None:
        """The engine waits for others: what was reported to it is durable by now."""
        told, self._told = self._told, []
        ledger = self._ledger
        for row in told:
            key = row[0]
            if key in self._writer.failed or ledger.store.is_fenced(key):
                continue  # it could not be saved, and the run of that thread is over
            if not ledger.is_durable(row):
                ledger.wrong.append(f"the result of a finished sibling was not saved ({row[1]})")

    def recording(self, batch: Batch) -> None:
        """A node did something, and is about to have it recorded."""

    def committed(self, batch: Batch) -> None:
        """The store acknowledged a batch."""
        self._ledger.committed(batch)
