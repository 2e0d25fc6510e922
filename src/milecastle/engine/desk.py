"""The desk: where the tasks of a run turn to, to ask, to sleep, and to have something recorded.

What is recorded is a task result of its own: a row under the head, named after the step and the
task. It outlasts whatever leaves the thread in its step, and ends with the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from milecastle.engine.asking import Parked
from milecastle.engine.context import MISSING, Context, Origin
from milecastle.engine.effects import RunTask
from milecastle.engine.hidden import ANSWERS, ASKED, FAILURE, SLEEPS
from milecastle.engine.pausing import is_held
from milecastle.engine.plan import RunPlan
from milecastle.engine.progress import Progress
from milecastle.engine.saving import Saver
from milecastle.engine.tasks import Task, outcome_row
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import TaskResult, to_datetime
from milecastle.model.event import Event
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch

__all__ = ["Desk", "open_interrupts"]


class Desk:
    """Answers, times and records of the tasks of the step that a run is in."""

    def __init__(self, plan: RunPlan, progress: Progress, saver: Saver | None) -> None:
        self._plan = plan
        self._progress = progress
        self._saver = saver
        self._journal = plan.journal
        self._records: dict[str, Mapping[str, Any]] = {}
        self.recall(plan.position.results)
        goes_on = plan.opening in ("takeover", "answer")
        self._reruns = plan.position.reruns + goes_on

    @property
    def key(self) -> ThreadKey | None:
        """The thread of the run; ``None`` without a store."""
        return self._journal.key if self._journal else None

    def values(self, state: Any) -> dict[str, Any]:
        """What a task was given, by key."""
        schema = self._plan.graph.schema
        return dict(state) if schema.form == "typed-dict" else schema.fields_of(state)

    @property
    def settled(self) -> int:
        """The seq of the entry that began this step; 0 without a store."""
        return self._journal.settled if self._journal else 0

    def context(self, task: RunTask) -> Context:
        """The context of a task, made when it is first needed."""
        if task.context is None:
            plan, progress = self._plan, self._progress
            task.context = Context(
                run_id=plan.run_id,
                node=task.node.name,
                task=task.id,
                step=progress.step + 1,
                thread=self.key,
                config=plan.node_config,
                attempt=task.attempt,
                origin=self._origin(),
                failures=progress.hidden.get(FAILURE, {}),
                desk=self,
            )
        return task.context

    def _origin(self) -> Origin:
        """Where the state comes from: this run, or the one that left the position."""
        plan, progress = self._plan, self._progress
        entry = plan.position.entry
        found = entry is not None and plan.update is None and progress.step == entry.step
        run_id = entry.run_id if found and entry else plan.run_id
        return Origin(run_id, progress.nodes, to_datetime(self.time()))

    def time(self) -> int:
        """When the state was produced: when it was saved, or else now."""
        is_saved = self._saver is not None and self._saver.is_saved
        return self._progress.since if is_saved else self._plan.clock.now()

    # ---- what was recorded

    def recall(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what the tasks of the step have left; if a person said so, attempts count anew."""
        fresh = self._plan.fresh_attempts
        self._records = {
            row: kept
            for row, kept in rows.items()
            if not (fresh and row.partition("!")[0].isdigit())
        }

    def outcome(self, task: str) -> Mapping[str, Any] | None:
        """What a task of this step returned before the run was cut short, if it did."""
        return self._records.get(self.outcome_row(task)) if self._records else None

    def outcome_row(self, task: str) -> str:
        """The name under which the outcome of a task is kept."""
        return outcome_row(self._progress.step + 1, task)

    def attempts(self, task: str) -> int:
        """How often a task of this step was started before."""
        if self._journal is None:
            return 0
        return self._marked(task)[0]

    def pauses(self, task: str) -> int:
        """How many of these attempts ended because the task had to wait, which is no failure."""
        return self._marked(task)[1]

    def mark(self, task: str, attempt: int) -> TaskResult | None:
        """The row that says that an attempt begins."""
        return self._mark(task, [attempt, self.pauses(task)])

    def mark_pause(self, task: str, attempt: int) -> TaskResult | None:
        """The row that says that an attempt ended because the task has to wait."""
        return self._mark(task, [attempt, self.pauses(task) + 1])

    def _marked(self, task: str) -> list[int]:
        kept = self._records.get(self._attempts_row(task))
        return kept["value"] if kept else [0, 0]

    def _mark(self, task: str, counts: list[int]) -> TaskResult | None:
        name = self._attempts_row(task)
        self._records[name] = {"value": counts}
        return None if self._journal is None else self._journal.kept(name, counts, task)

    @property
    def reruns(self) -> int:
        """How often this step was gone on with before; 0 once the run has left its first step."""
        return self._reruns if self._progress.step == self._plan.position.step else 0

    def recorded(self, task: str, name: str) -> Any:
        """What a task recorded under this name; ``MISSING`` if it did not."""
        kept = self._records.get(self._record_row(task, name))
        return kept["value"] if kept else MISSING

    def record(self, task: str, name: str, value: Any) -> None:
        """Keep a value under this name, durably."""
        row = self._record_row(task, name)
        batch = self._row_batch(row, value, task)
        if batch is not None and self._plan.services is not None:
            self._plan.services.commit(batch)
        self._records[row] = {"value": value}

    async def arecord(self, task: str, name: str, value: Any) -> None:
        """``record`` on an event loop."""
        row = self._record_row(task, name)
        batch = self._row_batch(row, value, task)
        if batch is not None and self._plan.services is not None:
            await self._plan.services.acommit(batch)
        self._records[row] = {"value": value}

    def transact(self, task: str, name: str, function: Callable[[Any], Any]) -> Any:
        """Let ``function`` write with a connection; what it returns is kept together with that."""
        journal, services = self._journal, self._plan.services
        if journal is None or services is None:
            raise InvalidRequest(
                "ctx.transaction() needs a store: compile(store='postgresql://...')"
            )
        row = self._record_row(task, name)
        made: list[Any] = []

        def work(connection: Any) -> Batch:
            made[:] = [function(connection)]
            return journal.rows((journal.kept(row, made[0], task),))

        services.transact(journal.key, work)
        self._records[row] = {"value": made[0]}
        return made[0]

    def _record_row(self, task: str, name: str) -> str:
        return f"{self._progress.step + 1}?{task}/{name}"

    def _attempts_row(self, task: str) -> str:
        return f"{self._progress.step + 1}!{task}"

    def _row_batch(self, row: str, value: Any, task: str) -> Batch | None:
        journal = self._journal
        if journal is None:
            return None
        return journal.rows((journal.kept(row, value, task),))

    # ---- people and times

    def answer(self, label: str) -> Any:
        """The answer to a question, as plain data; ``MISSING`` if there is none yet."""
        return self._progress.hidden.get(ANSWERS, {}).get(label, MISSING)

    def sleep(self, context: Context, number: int, until: int | None, seconds: float) -> None:
        """Return if the time has come; raise ``Parked`` if not.

        A length of time counts from when the task first came here.
        """
        label = f"{context.task}/{number}"
        known = self._progress.hidden.get(SLEEPS, {}).get(label)
        now = self._plan.clock.now()
        begun = known[1] if known else now + round(seconds * 1_000_000)
        end: int = begun if until is None else until
        if now < end:
            raise Parked(label, end)

    def holds(self, task: Task) -> bool:
        """Whether a task waits for an answer that is not there, or a time that has not come."""
        hidden = self._progress.hidden
        if ASKED not in hidden and SLEEPS not in hidden:
            return False
        return is_held(task, hidden, self._plan.clock.now())

    def answers_within(self, task: str) -> dict[str, Any]:
        """The answers that belong to the subgraph of a task, by its own ids."""
        prefix = f"{task}/"
        given: dict[str, Any] = self._progress.hidden.get(ANSWERS, {})
        return {
            label.removeprefix(prefix): answer
            for label, answer in given.items()
            if label.startswith(prefix)
        }

    # ---- telling

    def event(self, context: Context, value: Any) -> Event:
        """What a node emits, as an event."""
        return Event(
            type="emit",
            run_id=context.run_id,
            key=context.thread,
            step=context.step,
            node=context.node,
            update=value,
            data={"task": context.task},
        )

    def emit(self, context: Context, value: Any) -> None:
        """Tell a value to who reads the stream."""
        if self._plan.services is not None and self._plan.telling:
            self._plan.services.emit(self.event(context, value))

    async def aemit(self, context: Context, value: Any) -> None:
        """``emit`` on an event loop; waits until the reader has caught up."""
        if self._plan.services is not None and self._plan.telling:
            await self._plan.services.aemit(self.event(context, value))


def open_interrupts(hidden: Mapping[str, Any], place: str) -> tuple[Interrupt, ...]:
    """The questions of a checkpoint that have no answer yet; ids begin with its ``place``."""
    answers = hidden.get(ANSWERS, {})
    return tuple(_interrupts(hidden.get(ASKED, {}), answers, place))


def _interrupts(
    asked: Mapping[str, list[Any]], answers: Mapping[str, Any], place: str
) -> Iterator[Interrupt]:
    for label, (_, node, question, show, schema, asks, *refused) in asked.items():
        if label not in answers:
            yield Interrupt(
                id=f"{place}:{label}",
                node=node,
                question=question,
                show=show,
                answer=schema,
                asks=asks,
                refused=refused[0] if refused else None,
            )
