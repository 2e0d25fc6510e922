"""Launching a call: what was found in the store becomes the plan of a run, and its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from milecastle.app.answering import NOTHING_GIVEN, Given
from milecastle.app.calls import Call
from milecastle.app.children import child_key
from milecastle.app.starting import Start, start_child
from milecastle.app.streams import StreamMode, selector
from milecastle.app.threads import Threads
from milecastle.drivers.host import Host
from milecastle.engine.effects import Begin
from milecastle.engine.plan import RunPlan
from milecastle.engine.position import fresh_position
from milecastle.engine.run import Run
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.event import Event
from milecastle.model.policies import ExecutionOptions
from milecastle.ports.clock import Clock
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store

__all__ = ["Launcher", "Wish"]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a call asks for. ``mode`` is that of a stream; without one nobody reads along.

    ``run_id`` names a run that is not saved; every other finds its own.
    """

    input: Any = None
    thread: Any = None
    options: ExecutionOptions | None = None
    config: Any = None
    mode: StreamMode | None = None
    subgraphs: bool = False
    given: Given = NOTHING_GIVEN
    accept_changes: bool = False
    checkpoint: Any = None
    run_id: str | None = None


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """Makes calls of one app. ``hosting`` makes what makes a host, if that is not the usual one.

    ``children`` are the threads of subgraphs that were met: what a codec admits is found out once.
    """

    graph: CompiledGraph
    clock: Clock
    store: Store | None
    interval: int
    observers: tuple[Observer, ...]
    encryption: Any = None
    hosting: Callable[[Any], Callable[..., Host]] | None = None
    children: dict[int, Threads] = {}

    def launch(self, start: Start, wish: Wish) -> Call:
        """A call that a driver can perform."""
        config = self.graph.config.overridden(wish.options)
        key = start.journal.key if start.journal else None
        make_host = Host if self.hosting is None else self.hosting(wish.config)
        host = make_host(
            clock=self.clock,
            store=self.store,
            observers=self.observers,
            wanted=_filter(wish, start.run_id),
            cancel=wish.options.cancel if wish.options else None,
            timeout=config.timeout,
            max_parallel=config.max_parallel,
            begin=self._begin_child,
        )
        plan = self._plan(
            start,
            graph=self.graph,
            config=config,
            interval=self.interval,
            node_config=wish.config,
            telling=bool(self.observers or self.hosting) or wish.mode is not None,
            streaming=wish.mode is not None,
            services=host,
        )
        return Call(
            run_id=start.run_id,
            key=key,
            effects=Run(plan).effects(),
            host=host,
            is_async=self.graph.is_async,
            given=wish.given,
        )

    def _begin_child(self, effect: Begin, host: Host) -> RunPlan:
        """The plan of the run of a subgraph: its own thread, under that of its parent."""
        parent: RunPlan = effect.parent
        graph = effect.subgraph.graph
        update = graph.schema.read_input(effect.input)
        start = self._start_child(effect, graph, update)
        return self._plan(
            start,
            graph=graph,
            config=graph.config,
            interval=effect.subgraph.interval,
            node_config=parent.node_config,
            telling=parent.telling,
            streaming=parent.streaming,
            services=host,
            ended=start.waiting,
        )

    def _plan(self, start: Start, **surroundings: Any) -> RunPlan:
        """What was found, and what the run is given besides, as one plan."""
        return RunPlan(
            run_id=start.run_id,
            position=start.position,
            clock=self.clock,
            journal=start.journal,
            update=start.update,
            opening=start.opening,
            note=start.note,
            answers=start.answers,
            fresh_attempts=start.fresh_attempts,
            recall=start.recall,
            **surroundings,
        )

    def _start_child(self, effect: Begin, graph: CompiledGraph, update: Mapping[str, Any]) -> Start:
        journal = effect.parent.journal
        if self.store is None or journal is None:
            position = fresh_position(graph.schema)
            return Start(position=position, run_id=self.clock.new_id(), update=update)
        threads = self.children.get(id(graph))
        if threads is None:
            threads = Threads(graph, self.store, self.clock, self.encryption)
            self.children[id(graph)] = threads
        key = child_key(journal.key, effect.place, effect.task)
        return start_child(threads, key, update, effect.answers)


def _filter(wish: Wish, run_id: str) -> Callable[[Event], Event | None] | None:
    """What who reads the stream gets to see: of subgraphs nothing, unless it was asked for."""
    if wish.mode is None:
        return None
    select = selector(wish.mode)

    def wanted(event: Event) -> Event | None:
        if event.run_id != run_id and (event.type == "interrupt" or not wish.subgraphs):
            return None  # what a subgraph asks is told once, by the run that was called
        return select(event)

    return wanted
