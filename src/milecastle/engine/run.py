"""The engine: one run of a graph, as a generator of effects.

Rules:

- It does no I/O and knows no clock, thread, event loop or store: it yields effects and receives
  their outcomes, so sync and async runs, and the simulator, share every line of it.
- A step is committed before the next one starts. If a commit fails, nothing more is written.
- What raises between two commits ends the run: the failure is recorded, then raised.
- On the hot path nothing is copied but the outer dict of the state.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from milecastle.codec.deltas import Operations
from milecastle.codec.plain import kind_of
from milecastle.engine.advancing import Advance
from milecastle.engine.applying import apply_update, apply_updates, read_outcome
from milecastle.engine.asking import Paused
from milecastle.engine.desk import open_interrupts
from milecastle.engine.effects import Commit, Effect, Recall, RunTask, Stopped
from milecastle.engine.hidden import ANSWERS, ASKED, SENDS, SLEEPS
from milecastle.engine.parts import Parts
from milecastle.engine.pausing import (
    note_pause,
    still_answered,
    still_asked,
    still_asleep,
    wake_time,
)
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.step import Step
from milecastle.engine.tasks import task_id, tasks_of
from milecastle.errors import (
    InvalidRequest,
    InvalidUpdate,
    MilecastleError,
    RunError,
)
from milecastle.graph.nodes import Node
from milecastle.graph.sending import Send
from milecastle.model.checkpoint import HOLDING, Source
from milecastle.model.interrupt import Interrupt
from milecastle.model.manifest import START

__all__ = ["Run"]

Update = Mapping[str, Any]
Gotos = Mapping[str, Sequence[str | Send | None]]


class Run:
    """Drives one thread through a graph, from a position to an end, a rest or a failure."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._graph = plan.graph
        self._schema = plan.graph.schema
        self._parts = parts = Parts(plan)
        self._progress = parts.progress
        self._journal = plan.journal
        self._saver = parts.saver
        self._teller = parts.teller
        self._desk = parts.desk
        self._advance = Advance(parts)
        self._skip_interrupt = plan.update is None and plan.position.was_seen
        self._at_rest = False

    def effects(self) -> Generator[Effect, Any, Ending]:
        """The run. Drivers perform what it yields; its return value is how it came to rest."""
        try:
            yield from self._open()
            return (yield from self._go_on())
        except GeneratorExit:
            raise  # the process is going away: nothing may be written any more
        except BaseException as error:
            if self._at_rest:
                raise  # who reads the stream left after the end: the run stays as it is
            raised = yield from self._fail(error)
            raise raised from raised.__cause__

    def _open(self) -> Generator[Effect, Any, None]:
        """Take the input, or the thread, and find out what runs first."""
        plan, progress = self._plan, self._progress
        if self._teller:
            yield from self._teller.opening(progress.next)
        if plan.update is not None:
            self._take_input(plan.update)
            progress.nodes = ()
            if self._teller:
                yield self._teller.event("state_created")
            yield from self._advance.after((START,), "input")
        elif plan.opening is not None:
            self._take_answers(plan.answers)
            yield from self._announce(plan.opening)
        if progress.route:
            yield from self._advance.again()

    def _take_input(self, update: Update) -> None:
        progress = self._progress
        operations: Operations = []
        values = dict(progress.values)
        try:
            apply_update(self._schema, values, START, update, operations)
            self._refuse_missing(values)
        except InvalidUpdate as error:
            if self._saver:
                self._saver.may_record = False  # nothing has begun, so nothing has failed
            raise InvalidRequest(f"the input does not fit the state: {error.message}") from None
        progress.values = values
        if self._journal:
            self._journal.note(operations)

    def _refuse_missing(self, values: Update) -> None:
        missing = self._schema.missing(values)
        if missing:
            names = ", ".join(map(repr, missing))
            raise InvalidUpdate(f"it leaves out {names}, which has no default", node=START)

    def _take_answers(self, answers: Mapping[str, Any]) -> None:
        if answers:
            known = self._progress.hidden.get(ANSWERS, {})
            self._note(self._progress.hide(ANSWERS, {**known, **answers}))

    def _note(self, operations: Operations) -> None:
        if self._journal is not None and operations:
            self._journal.note(operations)

    def _go_on(self) -> Generator[Effect, Any, Ending]:
        """Step after step, until nothing is left to run, or something must be waited for."""
        progress, graph, schema, desk = self._progress, self._graph, self._schema, self._desk
        guard, teller, journal = progress.guard, self._teller, self._journal
        again, stops = bool(desk.reruns), graph.stops
        known = journal is None or journal.known
        while names := progress.next:
            if stops:
                names = self._ready(names)
                if waiting := self._pausing(names):
                    return (yield from self._interrupt(waiting))
            if not known:
                known = yield from self._claim(names)
            guard.enter_step(names)
            values = dict(progress.values)
            operations: Operations | None = None if journal is None else []
            gotos: Gotos | None = None
            node = graph.nodes[names[0]]
            if len(names) == 1 and not (progress.hidden or again or self._is_special(node)):
                task = RunTask(node, schema.present(values), desk, names[0])
                if not node.positional:
                    self._furnish(task)
                if teller:
                    yield from teller.node_start(node.name, progress.step + 1, guard)
                try:
                    returned = yield task
                except BaseException as error:
                    return (yield from self._not_returned(task, error))
                if teller:
                    yield teller.node_ended(node.name, progress.step + 1, returned, None)
                if kind_of(returned) is not dict:
                    returned, gotos = self._read(node.name, returned, values)
                changed = apply_update(schema, values, node.name, returned, operations)
            else:
                step = Step(self._parts, tasks_of(graph, names, progress.hidden.get(SENDS)))
                yield from step.run()
                self._raise_first(step)
                if not step.is_clean:
                    ran = step.ran | step.outcomes.keys()
                    return (yield from self._rest(ran, step.asked, step.sleeps, [*step.tasks]))
                changed = apply_updates(schema, values, step.updates, operations)
                gotos, again = self._gotos(step), False
            guard.version += changed
            progress.step += 1
            progress.values = values
            if journal is not None and operations:
                journal.note(operations)
            yield from self._advance.after(names, "step", gotos)
        return (yield from self._complete())

    def _is_special(self, node: Node) -> bool:
        """Whether a node needs more than to be called; in a stream it may emit while it runs."""
        return not node.simple or (node.wants_context and self._plan.streaming)

    def _furnish(self, task: RunTask) -> None:
        """Give a task what its node asks for besides the state."""
        task.config = self._plan.node_config
        if task.node.wants_context:
            self._desk.context(task)

    def _not_returned(self, task: RunTask, error: BaseException) -> Generator[Effect, Any, Ending]:
        """A task that waits, or failed, or was stopped."""
        name = task.node.name
        if isinstance(error, Paused):
            return (yield from self._rest_alone(name, error))
        if not isinstance(error, Exception):
            task.abandon()
            raise error
        if self._teller:
            yield self._teller.node_ended(name, self._progress.step + 1, None, error)
        raise self._parts.node_error(name, task.state, error) from error

    def _read(self, name: str, returned: Any, values: Update) -> tuple[Update, Gotos | None]:
        """What a node returned that is no plain dict: its update, and where it leads itself."""
        outcome = read_outcome(self._schema, name, returned, values)
        return outcome.update, None if outcome.goto is None else {name: outcome.goto}

    def _ready(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The nodes of this step: those that are deferred wait until no other is left."""
        if not self._graph.defers:
            return names
        nodes = self._graph.nodes
        return tuple(name for name in names if not nodes[name].policy.defer) or names

    def _raise_first(self, step: Step) -> None:
        failed = [task for task in step.tasks if task in step.failures]
        if not failed:
            return
        task, error = step.tasks[failed[0]], step.failures[failed[0]]
        if task.id not in step.refused:
            state = task.state(self._schema, self._progress.values)
            error = self._parts.node_error(task.node.name, state, error)
        if len(failed) > 1:
            error.add_note(f"in the same step these failed as well: {', '.join(failed[1:10])}")
        raise error

    def _gotos(self, step: Step) -> Gotos | None:
        """Where nodes of a step lead by their own word; ``None`` in a list: by the edges too."""
        gotos: dict[str, list[Any]] = {}
        failures: dict[str, Any] = {}
        by_edges: set[str] = set()
        for id, task in step.tasks.items():
            name, outcome = task.node.name, step.outcomes[id]
            if outcome.goto is None:
                by_edges.add(name)
                continue
            gotos.setdefault(name, []).extend(outcome.goto)
            if outcome.failure is not None:
                failures[outcome.failure[0]] = list(outcome.failure[1:])
        self._advance.failures = failures
        if not gotos:
            return None
        return {
            name: [*targets, *([None] if name in by_edges else [])]
            for name, targets in gotos.items()
        }

    def _save(self, source: Source, wake_at: int | None = None) -> Generator[Effect, Any, None]:
        """Commit an entry, if one is due."""
        saver = self._saver
        batch = saver.batch(source, wake_at) if saver else None
        if saver is None or batch is None:
            return
        yield Commit(batch)
        saver.saved(batch)
        if self._teller:
            yield self._teller.saved(batch)

    def _claim(self, names: tuple[str, ...]) -> Generator[Effect, Any, bool]:
        """Announce a run that goes on, if its tasks may leave rows; whether the log knows it."""
        node = self._graph.nodes[names[0]]
        if self._journal is None or self._journal.known:
            return True
        plain = len(names) == 1 and not self._progress.hidden
        if plain and node.simple and not node.wants_context:
            return False
        yield from self._announce("takeover")
        return True

    def _announce(self, source: Source) -> Generator[Effect, Any, None]:
        """Let the log say that this run has the thread, before anything else is written.

        Rows that tasks leave are under the head and do not move it: without an entry two runs
        could write them side by side. What was left until then is read again.
        """
        yield from self._save(source)
        if source in HOLDING and self._plan.recall is not None:
            self._parts.desk.recall((yield Recall(self._plan.recall)))

    # ---- coming to rest

    def _pausing(self, names: tuple[str, ...]) -> list[str]:
        """The nodes at which the run must stop now."""
        if self._skip_interrupt:
            self._skip_interrupt = False
            return []
        before = [name for name in names if name in self._graph.interrupt_before]
        after = [name for name in self._progress.nodes if name in self._graph.interrupt_after]
        return before + after

    def _interrupt(self, waiting: list[str]) -> Generator[Effect, Any, Ending]:
        yield from self._save("interrupt")
        self._at_rest = True
        found = tuple(Interrupt(id=f"{self._place}:{name}", node=name) for name in waiting)
        return (yield from self._tell_rest(found, None))

    def _rest_alone(self, name: str, signal: Paused) -> Generator[Effect, Any, Ending]:
        asked: dict[str, list[Any]] = {}
        sleeps: dict[str, list[Any]] = {}
        task = task_id(name)
        note_pause(task, signal, asked, sleeps)
        return (yield from self._rest({task}, asked, sleeps, [task]))

    def _rest(
        self,
        ran: set[str],
        asked: dict[str, list[Any]],
        sleeps: dict[str, list[Any]],
        order: Sequence[str],
    ) -> Generator[Effect, Any, Ending]:
        """Leave the step as it is: some of its tasks wait."""
        progress, hidden = self._progress, self._progress.hidden
        if asked.keys() & hidden.get(ANSWERS, {}).keys():
            self._note(progress.hide(ANSWERS, still_answered(hidden, asked) or None))
        self._note(progress.hide(ASKED, still_asked(hidden, ran, asked, order) or None))
        self._note(progress.hide(SLEEPS, still_asleep(hidden, ran, sleeps) or None))
        wake_at = wake_time(hidden, self._plan.clock.now())
        found = open_interrupts(hidden, self._place)
        yield from self._save("interrupt" if found else "sleep", wake_at)
        self._at_rest = True
        return (yield from self._tell_rest(found, wake_at))

    def _tell_rest(
        self, found: tuple[Interrupt, ...], wake_at: int | None
    ) -> Generator[Effect, Any, Ending]:
        progress = self._progress
        if self._teller:
            if found:
                yield from self._teller.interrupted(found, progress.step, progress.values)
            else:
                yield self._teller.asleep(progress.step, wake_at)
        return self._ending("interrupted" if found else "sleeping", found, wake_at)

    @property
    def _place(self) -> str:
        return f"{self._desk.settled}.{self._progress.step + 1}"

    def _complete(self) -> Generator[Effect, Any, Ending]:
        if self._journal and self._journal.record.status != "completed":
            yield from self._save("step")
        self._at_rest = True
        if self._teller:
            yield self._teller.event("graph_complete", step=self._progress.step)
        return self._ending("completed")

    def _ending(
        self, status: Any, found: tuple[Interrupt, ...] = (), wake_at: int | None = None
    ) -> Ending:
        progress = self._progress
        return Ending(
            status=status,
            values=progress.values,
            nodes=progress.nodes,
            next=progress.next,
            step=progress.step,
            time=self._desk.time(),
            interrupts=found,
            wake_at=wake_at,
            hidden=progress.hidden,
        )

    def _fail(self, error: BaseException) -> Generator[Effect, Any, BaseException]:
        """Record why the run ended; the exception to raise."""
        if isinstance(error, Stopped):
            error = error.reason
        if isinstance(error, RunError) and self._journal:
            error.thread = error.thread or self._journal.key.thread
            error.run_id = error.run_id or self._plan.run_id
        if self._saver and self._saver.may_record:
            try:
                yield Commit(self._saver.last_batch(error, self._plan.run_id))
            except MilecastleError as unsaved:
                error.add_note(f"the failure could not be recorded: {unsaved}")
        if self._teller:
            yield from self._teller.failed(error, self._progress.step, self._progress.guard)
        return error
