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
from typing import Any, Literal

from milecastle.codec.deltas import Operations
from milecastle.codec.plain import kind_of
from milecastle.engine.applying import apply_update, apply_updates, read_update
from milecastle.engine.branches import Branches
from milecastle.engine.context import Context, Origin
from milecastle.engine.effects import Commit, Effect, RunTask, Stopped
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.progress import Progress
from milecastle.engine.routing import Looked, find_next, in_order, targets_of
from milecastle.engine.saving import Saver
from milecastle.engine.telling import Teller
from milecastle.errors import (
    ExecutionError,
    InvalidRequest,
    InvalidUpdate,
    MilecastleError,
    RoutingError,
    RunError,
)
from milecastle.graph.edges import Exits, Router
from milecastle.model.checkpoint import Source, to_datetime
from milecastle.model.manifest import START

__all__ = ["Run"]

Update = Mapping[str, Any]

_ASK = Exits()
"""Exits that must be asked one by one: those of several nodes, or when somebody listens."""


class Run:
    """Drives one thread through a graph, from a position to an end, an interrupt or a failure."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._graph = plan.graph
        self._schema = plan.graph.schema
        self._progress = Progress(plan)
        self._journal = plan.journal
        self._saver = Saver(plan, plan.journal, self._progress) if plan.journal else None
        self._teller = Teller(plan) if plan.telling else None
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
            yield from self._advance((START,), "input")
        elif plan.opening is not None:
            yield from self._save(plan.opening)
        if progress.route:
            yield from self._advance(progress.route, None)

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

    def _go_on(self) -> Generator[Effect, Any, Ending]:
        """Step after step, until nothing is left to run."""
        progress, schema, journal = self._progress, self._schema, self._journal
        guard, teller, nodes = progress.guard, self._teller, self._graph.nodes
        pauses = bool(self._graph.interrupt_before or self._graph.interrupt_after)
        while names := progress.next:
            if pauses and (waiting := self._pausing()):
                return (yield from self._interrupt(waiting))
            guard.enter_step(names)
            values = dict(progress.values)
            operations: Operations | None = None if journal is None else []
            if len(names) == 1:
                name = names[0]
                state = schema.present(values)
                node = nodes[name]
                task = RunTask(node, state) if node.positional else self._task(name, state)
                if teller:
                    yield from teller.node_start(name, progress.step + 1, guard)
                try:
                    returned = yield task
                except Exception as error:
                    if teller:
                        yield teller.node_ended(name, progress.step + 1, None, error)
                    raise self._node_error(name, state, error) from error
                if teller:
                    yield teller.node_ended(name, progress.step + 1, returned, None)
                if kind_of(returned) is not dict:
                    returned = read_update(schema, name, returned, values)
                changed = apply_update(schema, values, name, returned, operations)
            else:
                updates = yield from self._run_side_by_side(names)
                changed = apply_updates(schema, values, updates, operations)
            if changed:
                guard.version += 1
            progress.step += 1
            progress.values = values
            if journal is not None and operations:
                journal.note(operations)
            yield from self._advance(names, "step")
        return (yield from self._complete())

    def _run_side_by_side(
        self, names: tuple[str, ...]
    ) -> Generator[Effect, Any, Sequence[tuple[str, Update]]]:
        """Run the tasks of a step with several; their updates in the order of ``names``."""
        progress = self._progress
        known = {name: progress.results[name] for name in names if name in progress.results}
        tasks: list[RunTask] = []
        for name in names:
            if name in known:
                continue
            tasks.append(self._task(name, self._schema.present(progress.values)))
            if self._teller:
                yield from self._teller.node_start(name, progress.step + 1, progress.guard)
        branches = Branches(self._schema, progress, self._saver, self._teller, known)
        yield from branches.run(tasks)
        self._raise_first(names, branches)
        progress.results = {}
        return [(name, branches.updates[name]) for name in names]

    def _raise_first(self, names: tuple[str, ...], branches: Branches) -> None:
        failed = [name for name in names if name in branches.failures]
        if not failed:
            return
        name, error = failed[0], branches.failures[failed[0]]
        if name not in branches.refused:
            error = self._node_error(name, self._schema.present(self._progress.values), error)
        if len(failed) > 1:
            error.add_note(f"in the same step these failed as well: {', '.join(failed[1:])}")
        raise error

    def _task(self, name: str, state: Any) -> RunTask:
        node = self._graph.nodes[name]
        if node.positional:
            return RunTask(node, state)
        context = self._context(name) if node.wants_context else None
        return RunTask(node, state, self._plan.node_config, context)

    def _context(self, name: str) -> Context:
        plan, progress = self._plan, self._progress
        return Context(
            run_id=plan.run_id,
            node=name,
            step=progress.step + 1,
            thread=self._journal.key if self._journal else None,
            config=plan.node_config,
            attempt=1,
            origin=self._origin(),
        )

    def _origin(self) -> Origin:
        """Where the state comes from: this run, or the one that left the position."""
        plan, progress = self._plan, self._progress
        entry = plan.position.entry
        found = entry is not None and plan.update is None and progress.step == entry.step
        run_id = entry.run_id if found and entry else plan.run_id
        return Origin(run_id, progress.nodes, to_datetime(self._time()))

    def _time(self) -> int:
        """When the state was produced: when it was saved, or else now."""
        saved = self._saver is not None and self._saver.is_saved
        return self._progress.since if saved else self._plan.clock.now()

    def _node_error(self, name: str, state: Any, cause: BaseException) -> ExecutionError:
        return self._error(f"node '{name}' failed", name, self._progress.step + 1, state, cause)

    def _error(
        self, what: str, name: str, step: int, state: Any, cause: BaseException
    ) -> ExecutionError:
        where = f" (thread '{self._journal.key.thread}')" if self._journal else ""
        error = ExecutionError(
            f"{what} at step {step} with {type(cause).__name__}{where}",
            node=name,
            step=step,
            path=self._progress.guard.path,
            state=state,
            cause=cause,
        )
        error.__cause__ = cause
        return error

    def _advance(
        self, names: tuple[str, ...], source: Source | None
    ) -> Generator[Effect, Any, None]:
        """Find what runs next and commit the step; ``source`` is ``None`` if that was done.

        If a router raises, the step is committed all the same and the router is asked again on
        resume: nothing is skipped and no node is repeated.
        """
        progress, saver, teller = self._progress, self._saver, self._teller
        looked: list[Looked] = []
        problem: RunError | None = None
        exits = self._graph.exits[names[0]] if len(names) == 1 and teller is None else _ASK
        if exits.straight is not None:
            progress.next, progress.route = exits.straight, ()
        elif exits.sole is not None:
            problem = self._ask(exits.sole, names)
        else:
            problem = yield from self._route(names, looked)
        if source is not None:
            progress.nodes = () if source == "input" else names
            if saver is not None and (batch := saver.batch(source)) is not None:
                yield Commit(batch)
                saver.saved(batch)
                if teller:
                    yield teller.saved(batch)
        if problem is not None:
            raise problem
        if teller:
            yield from teller.moved(names, looked, progress.step, progress.values)

    def _route(
        self, names: tuple[str, ...], looked: list[Looked]
    ) -> Generator[Effect, Any, RunError | None]:
        """Evaluate the edges of these nodes; what went wrong, if anything did."""
        progress = self._progress
        state = self._schema.present(progress.values)
        targets: list[str] = []
        name = names[0]
        try:
            for name in names:
                targets += yield from find_next(self._graph, name, state, looked)
        except Exception as error:
            return self._unrouted(names, name, state, error)
        progress.next, progress.route = in_order(self._graph, targets), ()
        return None

    def _ask(self, router: Router, names: tuple[str, ...]) -> RunError | None:
        """What ``_route`` does, for the common case of one node with one router."""
        progress = self._progress
        state = self._schema.present(progress.values)
        try:
            targets = targets_of(router, router.function(state))
        except Exception as error:
            return self._unrouted(names, names[0], state, error)
        progress.next, progress.route = in_order(self._graph, targets), ()
        return None

    def _unrouted(
        self, names: tuple[str, ...], name: str, state: Any, error: Exception
    ) -> RunError:
        self._progress.next, self._progress.route = (), names
        if isinstance(error, RoutingError):
            return error
        what = f"finding the way on from node '{name}' failed"
        return self._error(what, name, self._progress.step, state, error)

    def _save(self, source: Source) -> Generator[Effect, Any, None]:
        """Commit an entry, if one is due."""
        saver = self._saver
        batch = saver.batch(source) if saver else None
        if saver is None or batch is None:
            return
        yield Commit(batch)
        saver.saved(batch)
        if self._teller:
            yield self._teller.saved(batch)

    def _pausing(self) -> list[str]:
        """The nodes at which the run must stop now."""
        if self._skip_interrupt:
            self._skip_interrupt = False
            return []
        before = [name for name in self._progress.next if name in self._graph.interrupt_before]
        after = [name for name in self._progress.nodes if name in self._graph.interrupt_after]
        return before + after

    def _interrupt(self, waiting: list[str]) -> Generator[Effect, Any, Ending]:
        yield from self._save("interrupt")
        self._at_rest = True
        if self._teller:
            progress = self._progress
            yield from self._teller.interrupted(waiting, progress.step, progress.values)
        return self._ending("interrupted")

    def _complete(self) -> Generator[Effect, Any, Ending]:
        if self._journal and self._journal.record.status != "completed":
            yield from self._save("step")
        self._at_rest = True
        if self._teller:
            yield self._teller.event("graph_complete", step=self._progress.step)
        return self._ending("completed")

    def _ending(self, status: Literal["completed", "interrupted"]) -> Ending:
        progress = self._progress
        return Ending(
            status=status,
            values=progress.values,
            nodes=progress.nodes,
            next=progress.next,
            step=progress.step,
            time=self._time(),
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
