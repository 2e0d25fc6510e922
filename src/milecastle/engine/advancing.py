"""Advancing: after a step, choose the next nodes, and commit both together.

If a router raises, the step is still committed and the router is called again on resume: nothing is
skipped and no node is repeated.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from milecastle.codec.deltas import Operations
from milecastle.engine.applying import (
    ReducerFailed,
    apply_update,
    pack_goto,
    refuse_unmade,
    unpack_goto,
)
from milecastle.engine.effects import Commit, Effect
from milecastle.engine.reserved_channels import FAILURE, GOTOS, RESERVED, SENDS
from milecastle.engine.routing import NOT_ASKED, Way, find_next, follow_goto, in_order
from milecastle.engine.run_state import RunState
from milecastle.engine.tasks import as_sends
from milecastle.errors import InvalidUpdate, RoutingError, RunError
from milecastle.graph.edges import Exits, Router
from milecastle.graph.sending import Send
from milecastle.model.checkpoint import Source
from milecastle.model.manifest import END

Gotos = Mapping[str, Sequence[str | Send | None]]

_ASK = Exits()
"""Exits that must be evaluated one by one: those of several nodes, or when events are emitted."""


class Advance:
    """Leads a run from one step to the next. ``failures`` are for a node run by ``on_error``."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._graph = run.graph
        asks = run.run_events or run.graph.defers
        self._exits: Mapping[str, Exits] = {} if asks else run.graph.exits
        self._progress = run.progress
        self._answer: Any = NOT_ASKED
        self._raised: Exception | None = None
        self.failures: dict[str, Any] = {}

    def straight(self, names: tuple[str, ...]) -> bool:
        """Decide the next nodes by one edge or one router; ``False`` if that takes more.

        So it does if events are wanted.
        """
        progress = self._progress
        if len(names) != 1 or progress.reserved:
            return False
        exits = self._exits.get(names[0], _ASK)
        if exits.straight is not None:
            progress.next, progress.route = exits.straight, ()
            return True
        return exits.sole is not None and self._ask(exits.sole)

    def after(
        self, names: tuple[str, ...], source: Source, gotos: Gotos | None = None
    ) -> Generator[Effect, Any, None]:
        """Decide the next nodes after these, and commit the step.

        Only for those that do not lead ``straight`` on.
        """
        progress, run, way = self._progress, self._run, Way()
        problem = yield from self._find(names, gotos, way)
        progress.nodes = () if source == "input" else names
        saver = run.saver
        if saver is not None and (batch := saver.batch(source)) is not None:
            yield Commit(batch)
            saver.saved(batch)
            if run.run_events:
                yield run.run_events.saved(batch.entries[-1])
        if problem is not None:
            raise problem
        if run.run_events:
            yield from run.run_events.moved(names, way.looked, progress.step, progress.values)

    def again(self) -> Generator[Effect, Any, None]:
        """The step is committed, but its next nodes are not known: evaluate again.

        Only for nodes that do not lead ``straight`` on.
        """
        progress, run = self._progress, self._run
        names = progress.route
        kept: dict[str, Any] = progress.reserved.get(GOTOS, {})
        self.failures = progress.reserved.get(FAILURE, {})
        way = Way()
        problem = yield from self._find(names, {n: unpack_goto(kept[n]) for n in kept}, way)
        if problem is not None:
            raise problem
        if run.run_events:
            yield from run.run_events.moved(names, way.looked, progress.step, progress.values)

    def _ask(self, router: Router) -> bool:
        progress = self._progress
        try:
            returned = router.function(self._run.schema.present(progress.values))
        except Exception as error:
            self._raised = error
            return False
        target = router.targets.get(returned) if type(returned) is str else None
        if target is None:
            self._answer = returned
            return False
        progress.next, progress.route = () if target == END else (target,), ()
        return True

    def _find(
        self, names: tuple[str, ...], gotos: Gotos | None, way: Way
    ) -> Generator[Effect, Any, RunError | None]:
        progress, graph = self._progress, self._graph
        held = self._held(names)
        state = self._run.schema.present(progress.values)
        name = names[0]
        answer, raised = self._answer, self._raised
        self._answer, self._raised = NOT_ASKED, None
        try:
            if raised is not None:
                raise raised
            for name in names:
                own = (gotos or {}).get(name)
                if own is not None:
                    follow_goto(graph, name, [to for to in own if to is not None], way)
                if own is None or None in own:
                    yield from find_next(graph, name, state, way, answer)
            sends = as_sends(graph, [*way.names, *held], way.sends, progress.values)
            self._apply(names, way.updates)
        except Exception as error:
            progress.next, progress.route = held, names
            return self._unrouted(names, name, state, error, gotos)
        targets = [*way.names, *(send.node for send in way.sends), *held]
        progress.next, progress.route = in_order(graph, targets or [END]), ()
        self._hide(sends)
        return None

    def _held(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not self._graph.defers:
            return ()
        return tuple(name for name in self._progress.next if name not in names)

    def _apply(self, names: tuple[str, ...], updates: Sequence[Mapping[str, Any]]) -> None:
        if not updates:
            return
        progress, journal = self._progress, self._run.journal
        values = dict(progress.values)
        operations: Operations = []
        for update in updates:
            if apply_update(self._run.schema, values, names[0], update, operations):
                progress.guard.version += 1
        refuse_unmade(self._run.schema, values, names[0])
        progress.values = values
        if journal is not None:
            journal.note(operations)

    def _hide(self, sends: list[Any] | None) -> None:
        progress, journal = self._progress, self._run.journal
        operations: Operations = []
        for name in RESERVED if progress.reserved else ():
            operations += progress.hide(name, None)
        if sends:
            operations += progress.hide(SENDS, sends)
        if self.failures:
            operations += progress.hide(FAILURE, self.failures)
            self.failures = {}
        if journal is not None and operations:
            journal.note(operations)

    def _unrouted(
        self, names: tuple[str, ...], name: str, state: Any, error: Exception, gotos: Gotos | None
    ) -> RunError:
        progress, journal = self._progress, self._run.journal
        if not self._graph.defers:
            progress.next = ()
        progress.route = names
        self._hide(None)
        if gotos:
            operations = progress.hide(GOTOS, {n: pack_goto(own) for n, own in gotos.items()})
            if journal is not None:
                journal.note(operations)
        if isinstance(error, RoutingError | InvalidUpdate):
            return error
        if isinstance(error, ReducerFailed):
            return self._run.reducer_error(error)
        what = f"routing from node '{name}' failed"
        return self._run.error(what, name, progress.step, state, error)
