"""The engine: one run as a generator of effects.

Rules:

- It does no I/O and knows no clock, thread, event loop or store: it yields effects and receives
  their outcomes, so sync and async runs, and the simulator, share every line of it.
- A step is committed before the next one starts. If a commit fails, nothing more is written.
- An exception between two commits ends the run: the failure is recorded, then raised.
- On the hot path nothing is copied but the outer dict of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec.structs

from milecastle.codec.deltas import Operations
from milecastle.codec.plain import kind_of
from milecastle.engine.advancing import Advance, Gotos
from milecastle.engine.applying import (
    ReducerFailed,
    apply_guarded,
    apply_update,
    apply_updates,
    as_request,
    prepared,
    read_outcome,
    refuse_unmade,
)
from milecastle.engine.effects import (
    AwaitTasks,
    Commit,
    Effect,
    Leave,
    Recall,
    StartTasks,
    Stopped,
)
from milecastle.engine.memory_conflicts import REPEATS, BeforeCommit
from milecastle.engine.pauses import FlowStopped, Paused, Released
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.remembering import Writes
from milecastle.engine.reserved_channels import ANSWERED_BY, ANSWERS, SENDS, TIMED_OUT, WAITS
from milecastle.engine.run_state import RunState
from milecastle.engine.saving import Saver
from milecastle.engine.step import Step
from milecastle.engine.task_port import RunTaskPort
from milecastle.engine.tasks import ready_nodes, task_id, tasks_of
from milecastle.engine.waiting import Kept, kept_wait, open_interrupts, still_waits, wake_time
from milecastle.errors import (
    InvalidUpdate,
    MemoryChanged,
    MilecastleError,
    RunError,
    StoreError,
    with_readable_threads,
)
from milecastle.model.checkpoint import HOLDING, Source
from milecastle.model.interrupt import Interrupt
from milecastle.model.manifest import START
from milecastle.model.run import Segment, TaskFailure
from milecastle.model.task import RunTask
from milecastle.ports.services import Services
from milecastle.ports.store import Batch

Update = Mapping[str, Any]


class Run(RunState):
    """Drives one thread through a graph, from a position to an end, a pause or a failure."""

    def __init__(self, plan: RunPlan, services: Services | None = None) -> None:
        super().__init__(plan)
        self._services = services
        self._apply = apply_guarded if self.schema.is_guarded else apply_update
        self._inboxes: Mapping[str, str] = {}
        if not plan.path and plan.journal is not None:
            self._inboxes = self.schema.inboxes
        self._skip_interrupt = plan.update is None and plan.position.was_seen
        self._at_rest = False
        self._merged: tuple[int, Mapping[str, Update]] = (0, {})
        self._step: Step | None = None
        if not plan.queues:
            self.task_port = RunTaskPort(
                plan, self.progress, self.saver, self.records, self.received, services
            )

    def effects(self) -> Generator[Effect, Any, Ending]:
        if self.run_events and self._services:
            self._begin_segment(self._services)
        try:
            if self.plan.queues:
                return (yield from self._queue())
            advance = Advance(self)
            yield from self._open(advance)
            return (yield from self._go_on(advance))
        except GeneratorExit:
            raise  # the process is going away: nothing may be written any more
        except BaseException as error:
            if self._at_rest:
                raise  # the reader of the stream stopped after the end: the run stays as it is
            raised = yield from self._fail(error)
            raise raised from raised.__cause__
        finally:
            self._step = None  # it refers to this run: a circle
            if self.run_events and self._services:
                self._services.end_segment(self.plan.run_id)

    def _begin_segment(self, services: Services) -> None:
        plan, journal = self.plan, self.journal
        segment = Segment(
            run_id=plan.run_id,
            graph=plan.graph.name,
            key=journal.key if journal else None,
            carried=journal.record.carried if journal else {},
            parent=plan.parent,
            queues=plan.queues,
        )
        stored = services.begin_segment(segment)
        if journal is not None:
            journal.carry(stored)

    def _open(self, advance: Advance) -> Generator[Effect, Any, None]:
        plan, progress = self.plan, self.progress
        if self.run_events:
            yield from self.run_events.opening(progress.next)
        if plan.update is not None:
            self._take_input(plan.update)
            refused = (yield from self._drain_first()) if self._inboxes else None
            progress.nodes = ()
            if self.run_events:
                yield self.run_events.created(self.progress.values)
            if not advance.straight((START,)):
                yield from advance.after((START,), "input")
            elif self.saver is not None and (batch := self.saver.batch("input")) is not None:
                yield Commit(batch)
                self.saver.saved(batch)
            if refused is not None:
                raise refused
        elif plan.opening is not None:
            self._end_waits()
            self._release(plan.released)
            yield from self._announce(plan.opening)
        if progress.route and not self._is_released and not advance.straight(progress.route):
            yield from advance.again()

    def _queue(self) -> Generator[Effect, Any, Ending]:
        plan, progress = self.plan, self.progress
        if plan.update is not None:
            self._take_input(plan.update)
            if self.run_events:
                yield self.run_events.created(progress.values)
            progress.nodes, progress.next, progress.route = (), (), (START,)
            yield from self._save("input")
        elif plan.opening is not None:
            self._end_waits()
            self._release(plan.released)
            yield from self._save(plan.opening)
        self._at_rest = True
        return self._ending("queued")

    @property
    def _is_released(self) -> bool:
        return self.journal is not None and self.journal.record.status == "queued"

    def _take_input(self, update: Update) -> None:
        progress = self.progress
        operations: Operations = []
        values = dict(progress.values)
        try:
            apply_update(self.schema, values, START, update, operations)
            if self.schema.form != "typed-dict":
                if missing := self.schema.missing(values):
                    names = ", ".join(map(repr, missing))
                    raise InvalidUpdate(f"it lacks {names}, which has no default", node=START)
                refuse_unmade(self.schema, values, START)
        except (InvalidUpdate, ReducerFailed) as error:
            if self.saver:
                self.saver.may_record = False  # nothing has started, so nothing has failed
            raise as_request("input", error) from error.__cause__
        progress.values = values
        if self.journal:
            self.journal.note(operations)

    def _end_waits(self) -> None:
        plan = self.plan
        for name, new in ((ANSWERS, plan.answers), (TIMED_OUT, plan.timed_out)):
            if new:
                known = self.progress.reserved.get(name, {})
                self._note(self.progress.hide(name, {**known, **new}))
        if plan.answers or plan.timed_out:
            self._note(self.progress.hide(ANSWERED_BY, dict(plan.answered_by) or None))

    def _release(self, tasks: tuple[str, ...]) -> None:
        if tasks:
            waits: Kept = self.progress.reserved.get(WAITS, {})
            kept = {label: found for label, found in waits.items() if found[0] not in tasks}
            self._note(self.progress.hide(WAITS, kept or None))

    def _note(self, operations: Operations | None) -> None:
        if self.journal is not None and operations:
            self.journal.note(operations)

    def _go_on(self, advance: Advance) -> Generator[Effect, Any, Ending]:
        progress, graph, schema, saver = self.progress, self.graph, self.schema, self.saver
        run_events, journal, task_port = self.run_events, self.journal, self.task_port
        guard, run, remembered = progress.guard, task_port.run, task_port.remembered
        again, apply = bool(self.records.first_reruns), self._apply
        stops = graph.defers or graph.interrupt_before or graph.interrupt_after
        known, skipping = journal is None or journal.known, self.plan.interval > 1 and saver
        assigned = journal is not None and journal.assignment is not None
        streams = self.plan.streaming is not None
        repeats = 0
        while (names := progress.next) and not (assigned and self._is_released):
            if stops:
                names = ready_nodes(graph, names)
                if not repeats and (waiting := self._pausing(names)):
                    return (yield from self._interrupt(waiting))
            if not known or (skipping and not skipping.is_saved):
                known = yield from self._claim(names)
                if assigned and self._is_released:
                    continue  # the worker drains, and has released it with this entry
            if not repeats:
                sends = progress.reserved.get(SENDS) if progress.reserved else None
                guard.enter_step(names, sends)
            values = dict(progress.values)
            operations: Operations | None = None if journal is None else []
            gotos: Gotos | None = None
            step, point = None, None
            node = graph.nodes[name := names[0]]
            if node.is_flow or (
                len(names) == 1
                and node.simple
                and not (progress.reserved or again)
                and not (streams and node.wants_context)  # it may emit while it runs
            ):
                task = RunTask(run, name, progress.values, name, progress.step + 1)
                if node.wants_context:
                    task.facts = task_port.facts(task)
                if run_events:
                    yield from run_events.node_start(name, name)
                try:
                    if node.is_flow and streams:
                        returned = cast(Any, (yield from self._call_beside(task)))
                    else:
                        returned = yield task
                    if schema.prepares:
                        returned = prepared(schema, returned)
                except BaseException as error:
                    return (yield from self._not_returned(task, error))
                if run_events:
                    yield run_events.node_ended(name, name, returned, None)
                if kind_of(returned) is not dict:
                    outcome = read_outcome(graph, name, returned, values)
                    returned = outcome.update
                    gotos = None if outcome.goto is None else {name: outcome.goto}
                changed = apply(schema, values, name, returned, operations)
                if remembered.is_used:
                    point = self._before_commit({task.id: remembered.take(task)})
            else:
                step = self._begin_step(names)
                yield from step.run()
                self._raise_first(step)
                if journal is not None:
                    journal.time(step.times(names if step.is_clean else progress.next))
                if not step.is_clean:
                    return (yield from self._rest(step.ran, step.waits, [*step.tasks]))
                changed = self._apply_all(step, values, operations)
                gotos, again = self._gotos(step, advance), False
                if saver is not None and (memory := step.memory):
                    point = self._before_commit(memory)
            if self._inboxes:
                changed = (yield from self._drain(values, operations)) or changed
            guard.version += changed
            progress.step, progress.values = progress.step + 1, values
            if journal is not None and operations:
                journal.note(operations)
            if point is not None:
                point.remember()
            try:
                if gotos is None and advance.straight(names):
                    progress.nodes = names
                    if saver is not None and (batch := saver.batch("step")) is not None:
                        yield Commit(batch)
                        saver.saved(batch)
                else:
                    yield from advance.after(names, "step", gotos)
            except MemoryChanged as stale:
                if point is None:
                    raise
                writer = point.rewind(stale, step.outcomes if step else {})
                repeats += 1
                if repeats > REPEATS:
                    state = progress.values
                    if step is not None:
                        name = step.tasks[writer].node.name
                        state = step.tasks[writer].state(state)
                    raise self.node_error(name, state, stale) from stale
                continue
            repeats = 0
        return (yield from self._complete())

    def _before_commit(self, memory: Mapping[str, Writes]) -> BeforeCommit | None:
        return BeforeCommit(self, memory) if any(memory.values()) else None

    def _call_beside(self, task: RunTask) -> Generator[Effect, Any, Any]:
        yield StartTasks((task,))
        while not (finished := (yield AwaitTasks())):
            pass
        if finished[0].error is not None:
            raise finished[0].error
        return finished[0].update

    def _drain_first(self) -> Generator[Effect, Any, Exception | None]:
        """Apply the messages that came before the input, with it.

        If that fails, the input is stored alone before the run does: it can then be retried.
        """
        values, operations = dict(self.progress.values), list[Any]()
        try:
            yield from self._drain(values, operations)
        except StoreError:
            raise
        except Exception as error:
            return error
        self.progress.values = values
        self._note(operations)
        return None

    def _drain(
        self, values: dict[str, Any], operations: Operations | None
    ) -> Generator[Effect, Any, bool]:
        """Apply the messages that came for the state's inboxes; the step's commit consumes them."""
        found = yield from self._read(partial(self.received.drain, [*self._inboxes]))
        for message in found:
            update = prepared(self.schema, {self._inboxes[message.topic]: [message.value]})
            self._apply(self.schema, values, f"inbox '{message.topic}'", update, operations)
            if message.carried and self._services is not None:
                self._services.message_received(self.plan.run_id, message.carried)
        self.received.consume(found)
        return bool(found)

    def _begin_step(self, names: tuple[str, ...]) -> Step:
        tasks = tasks_of(self.graph, names, self.progress.reserved.get(SENDS))
        self._step = Step(self, tasks, lambda plan: Run(plan, self._services).effects())
        return self._step

    def _not_returned(self, task: RunTask, error: BaseException) -> Generator[Effect, Any, Ending]:
        name = task.node
        if isinstance(error, Paused):
            return (yield from self._rest_alone(name, error))
        if isinstance(error, Released):
            return (yield from self._complete())
        if isinstance(error, FlowStopped):
            yield from self._stop_flow(error)
            raise error.error
        if not isinstance(error, Exception):
            self.task_port.stop()
            raise error
        if self.run_events:
            yield self.run_events.node_ended(name, task.id, None, error)
        raise self.node_error(name, task.state, error) from error

    def _stop_flow(self, stopped: FlowStopped) -> Generator[Effect, Any, None]:
        """Leave the thread as it is, and to others if this run has written that it has it."""
        self.task_port.stop()
        saver, journal = self.saver, self.journal
        if saver is None or journal is None:
            return
        if stopped.differs and journal.known:
            batch = saver.give_up("interrupted" if journal.assignment is None else "queued")
            yield Commit(batch)
            saver.saved(batch)
        saver.may_record = False

    def _apply_all(self, step: Step, values: dict[str, Any], operations: Operations | None) -> bool:
        try:
            return apply_updates(self.schema, values, step.updates, operations)
        except (InvalidUpdate, ReducerFailed) as error:
            if error.node in step.tasks:
                error.node = step.tasks[error.node].node.name
            raise

    def _raise_first(self, step: Step) -> None:
        failed = [task for task in step.tasks if task in step.failures]
        if not failed:
            return
        task, error = step.tasks[failed[0]], step.failures[failed[0]]
        if task.id not in step.refused:
            state = task.state(self.progress.values)
            error = self.node_error(task.node.name, state, error)
        if len(failed) > 1:
            error.add_note(f"these also failed in the same step: {', '.join(failed[1:10])}")
        raise error

    def _gotos(self, step: Step, advance: Advance) -> Gotos | None:
        """A step's targets by its nodes' own ``Command``.

        ``None`` in a list: also by the edges.
        """
        gotos: dict[str, list[Any]] = {}
        failures: dict[str, Any] = {}
        by_edges: set[str] = set()
        if self.plan.leave is not None:
            self._merged = self.progress.step + 1, dict(step.updates)
        for id, task in step.tasks.items():
            name, outcome = task.node.name, step.outcomes[id]
            if outcome.goto is None:
                by_edges.add(name)
                continue
            gotos.setdefault(name, []).extend(outcome.goto)
            if outcome.failure is not None:
                whose = name if id == task_id(name) else id
                failures[whose] = list(outcome.failure[1:])
        advance.failures = failures
        if not gotos:
            return None
        return {
            name: [*targets, *([None] if name in by_edges else [])]
            for name, targets in gotos.items()
        }

    def _save(self, source: Source, wake_at: int | None = None) -> Generator[Effect, Any, None]:
        saver = self.saver
        batch = saver.batch(source, wake_at) if saver else None
        if saver is None or batch is None:
            return
        records = self.records
        rows = records.renewed() if self.plan.queues else ()
        if self.plan.rewrites and source == self.plan.opening:
            rows = records.rewritten()
        if rows:
            batch = msgspec.structs.replace(batch, results=(*batch.results, *rows))
        yield from self._commit(saver, batch)

    def _commit(self, saver: Saver, batch: Batch) -> Generator[Effect, Any, None]:
        yield Commit(batch)
        saver.saved(batch)
        if self.run_events:
            yield self.run_events.saved(batch.entries[-1])

    def _claim(self, names: tuple[str, ...]) -> Generator[Effect, Any, bool]:
        """Save the last step, or that the run was resumed, before tasks that may write rows.

        Rows belong to the step after the newest entry: they need that entry, and its id. Return
        whether the run is in the log.
        """
        node, journal, saver = self.graph.nodes[names[0]], self.journal, self.saver
        if journal is None or saver is None:
            return True
        if node.is_flow:
            return journal.known  # its records are entries
        plain = len(names) == 1 and not self.progress.reserved
        if plain and node.simple and not node.wants_context:
            return journal.known
        if (batch := saver.flush()) is not None:
            yield from self._commit(saver, batch)
        elif not journal.known:
            yield from self._announce("takeover")
        return True

    def _announce(self, source: Source) -> Generator[Effect, Any, None]:
        """Record in the log this run owns the thread, before anything else is written.

        Rows that tasks leave are under the head and do not move it: without an entry two runs could
        write them in parallel. Rows left until then are read again.
        """
        yield from self._save(source)
        if source in HOLDING and self.plan.recall is not None:
            self.records.recall((yield from self._read(self.plan.recall)))

    def _read(self, read: Callable[[], Any]) -> Generator[Effect, Any, Any]:
        try:
            return (yield Recall(read))
        except StoreError:
            if self.saver is not None:
                self.saver.may_record = False
            raise

    # ---- stopping

    def _pausing(self, names: tuple[str, ...]) -> list[str]:
        if self._skip_interrupt:
            self._skip_interrupt = False
            return []
        before = [name for name in names if name in self.graph.interrupt_before]
        return before + self._just_ran()

    def _just_ran(self) -> list[str]:
        return [name for name in self.progress.nodes if name in self.graph.interrupt_after]

    def _interrupt(self, waiting: list[str]) -> Generator[Effect, Any, Ending]:
        yield from self._save("interrupt")
        self._at_rest = True
        return (yield from self._tell_rest(self._interrupts(waiting), None))

    def _interrupts(self, names: Sequence[str]) -> tuple[Interrupt, ...]:
        return tuple(Interrupt(id=f"{self._place}:{name}", node=name) for name in names)

    def _rest_alone(self, name: str, signal: Paused) -> Generator[Effect, Any, Ending]:
        task = task_id(name)
        new = {one.label: kept_wait(task, one) for one in signal.each}
        return (yield from self._rest({task}, new, [task]))

    def _rest(
        self, ran: set[str], new: Kept, order: Sequence[str]
    ) -> Generator[Effect, Any, Ending]:
        progress, reserved = self.progress, self.progress.reserved
        waits = still_waits(reserved, ran, new, order)
        if any(wait[3] for wait in waits.values()):
            yield from self._note_seen(waits, ran - {wait[0] for wait in new.values()})
        given: dict[str, Any] = reserved.get(ANSWERS, {})
        if new.keys() & given.keys():  # answers that a node refused: it asks again
            kept = {label: answer for label, answer in given.items() if label not in new}
            self._note(progress.hide(ANSWERS, kept or None))
        self._note(progress.hide(WAITS, waits or None))
        over = ran - {wait[0] for wait in new.values()}
        is_flow = self.graph.nodes[progress.next[0]].is_flow
        wake_at = wake_time(reserved, over, is_flow=is_flow)
        found = open_interrupts(reserved, self._place)
        yield from self._save("interrupt" if found else "sleep", wake_at)
        self._at_rest = True
        return (yield from self._tell_rest(found, wake_at))

    def _note_seen(self, waits: Kept, ended: set[str]) -> Generator[Effect, Any, None]:
        """Write into each wait for messages the last seen number.

        Tasks that ``ended`` may have left messages that others wait for: those are read first.
        """
        topics = {topic for wait in waits.values() for topic, _ in wait[3]}
        if ended:
            yield from self._read(partial(self.received.load, sorted(topics)))
        for wait in waits.values():
            wait[3] = [[topic, self.received.seen(topic, known)] for topic, known in wait[3]]

    def _tell_rest(
        self, found: tuple[Interrupt, ...], wake_at: int | None
    ) -> Generator[Effect, Any, Ending]:
        ending = self._ending("interrupted" if found else "sleeping", found, wake_at)
        if found:
            yield from self._tell_interrupts(ending)
        elif self.run_events:
            yield self.run_events.asleep(ending.step, wake_at)
        return ending

    def _tell_interrupts(self, ending: Ending) -> Generator[Effect, Any, None]:
        if self.plan.leave is not None:
            step, results = self._merged
            yield Leave(self.plan.leave, ending, results if step == ending.step else {})
        if self.run_events:
            yield from self.run_events.interrupted(ending.interrupts, ending.step, ending.values)

    @property
    def _place(self) -> str:
        return f"{self.journal.settled if self.journal else 0}.{self.progress.step + 1}"

    def _complete(self) -> Generator[Effect, Any, Ending]:
        status = self.journal.record.status if self.journal else "completed"
        if status == "queued":
            self._at_rest = True
            return self._ending("queued")
        if status != "completed":
            yield from self._save("step")
        self._at_rest = True
        if self.graph.interrupt_after and (waiting := self._just_ran()):
            # There is nothing to wait for: the event and the file are for information.
            ended = self._ending("completed", self._interrupts(waiting))
            yield from self._tell_interrupts(ended)
        if self.run_events:
            yield self.run_events.completed(self.progress.step, self.progress.nodes)
        return self._ending("completed")

    def _ending(
        self, status: Any, found: tuple[Interrupt, ...] = (), wake_at: int | None = None
    ) -> Ending:
        progress, saver = self.progress, self.saver
        is_saved = saver is not None and saver.is_saved
        return Ending(
            status=status,
            values=progress.values,
            nodes=progress.nodes,
            next=progress.next,
            step=progress.step,
            time=progress.since if is_saved else self.plan.clock.now(),
            interrupts=found,
            wake_at=wake_at,
            reserved=progress.reserved,
            config=self.plan.node_config,
        )

    def _fail(self, error: BaseException) -> Generator[Effect, Any, BaseException]:
        if isinstance(error, Stopped):
            error = error.reason
        if isinstance(error, ReducerFailed):
            error = self.reducer_error(error)
        if isinstance(error, RunError | StoreError):
            self._locate(error)
        if self.saver and self.saver.may_record and not self.saver.is_lost:
            try:
                step, attempt, tasks = self._step, 1, tuple[TaskFailure, ...]()
                if step and step.number == self.progress.step + 1:
                    attempt, tasks = step.attempt, step.failed
                yield Commit(self.saver.last_batch(error, self.plan.run_id, attempt, tasks))
            except MilecastleError as unsaved:
                error.add_note(f"the failure could not be recorded: {unsaved}")
        if self.run_events:
            yield from self.run_events.failed(error, self.progress.step)
        return error

    def _locate(self, error: RunError | StoreError) -> None:
        progress, path = self.progress, self.progress.guard.path
        if self.journal:
            error.thread = error.thread or self.journal.key.thread
            error.run_id = error.run_id or self.plan.run_id
        error.node = error.node or (path[-1] if path else None)
        error.path = error.path or tuple(path)
        if error.step is None:
            error.step = progress.step
        if error.state is None:
            error.state = self.schema.view(dict(progress.values))
        named = {"thread": error.thread, "node": error.node}
        facts = [f"{what} '{name}'" for what, name in named.items() if name]
        unsaid = [fact for fact in map(with_readable_threads, facts) if fact not in error.message]
        if unsaid:
            error.message += f" ({', '.join(unsaid)})"
