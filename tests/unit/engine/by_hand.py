"""The engine by hand: plans without a store or a driver, and effects answered one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Annotated, Any, TypedDict

from milecastle import END, START, ExecutionConfig, StateGraph, ThreadKey, append
from milecastle.app.threads.log import log_codec_for
from milecastle.engine.effects import Commit, Effect, Emit
from milecastle.engine.journal import Journal
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.position import Position, fresh_position, restore
from milecastle.engine.run import Run
from milecastle.graph.structure import CompiledGraph
from milecastle.model.run import RunRecord
from milecastle.model.task import RunTask
from milecastle.ports.store import Store
from milecastle.testing import ManualClock

KEY = ThreadKey("tenant", "thread")

Effects = Generator[Effect, Any, Ending]


class State(TypedDict):
    n: int
    log: Annotated[list[str], append]


def note(state: State, name: str) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": [name]}


def say(state: State, name: str) -> dict[str, Any]:
    return {"log": [name]}


def always(answer: Any) -> Callable[[Any], Any]:
    """A router or predicate with the same answer to every state."""

    def answering(state: Any) -> Any:
        return answer

    return answering


def line(*names: str, **functions: Any) -> CompiledGraph:
    """A graph that runs these nodes one after the other."""
    graph: StateGraph[State] = StateGraph(State)
    for name in names:
        graph.add_node(name, functions.get(name, note))
    graph.add_edges(START, *names, END)
    return graph.compile().graph


def fan(*names: str, **functions: Any) -> CompiledGraph:
    """A graph that runs these nodes in parallel."""
    graph: StateGraph[State] = StateGraph(State)
    for name in names:
        graph.add_node(name, functions.get(name, say))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile().graph


def record(graph: CompiledGraph, **fields: Any) -> RunRecord:
    given: dict[str, Any] = {
        "run_id": "run",
        "key": KEY,
        "graph": graph.name,
        "fingerprint": graph.fingerprint,
        "mode": "incremental",
        "status": "running",
        "retry_count": 0,
        "previous_run_id": None,
        "started_at": 1,
    }
    return RunRecord(**{**given, **fields})


def journal_for(graph: CompiledGraph, position: Position | None = None, **options: Any) -> Journal:
    position = position or fresh_position(graph.schema)
    given: dict[str, Any] = {
        "record": record(graph),
        "codec": log_codec_for(graph),
        "clock": ManualClock(),
        "position": position,
        "head": position.seq,
    }
    return Journal(**{**given, **options})


def plan_for(
    graph: CompiledGraph,
    *,
    update: Mapping[str, Any] | None = None,
    position: Position | None = None,
    journal: Journal | None = None,
    **options: Any,
) -> RunPlan:
    return RunPlan(
        graph=graph,
        config=options.pop("config", ExecutionConfig()),
        run_id="run",
        position=position or fresh_position(graph.schema),
        clock=ManualClock(),
        journal=journal,
        update={"n": 0} if update is None and position is None else update,
        **options,
    )


def effects_of(graph: CompiledGraph, *, stored: bool = False, **options: Any) -> Effects:
    """The effects of a run from its input."""
    journal = journal_for(graph) if stored else None
    return Run(plan_for(graph, journal=journal, **options)).effects()


def answer(graph: CompiledGraph, effect: Effect, store: Store | None = None) -> Any:
    """What a driver would answer."""
    if isinstance(effect, RunTask):
        return graph.nodes[effect.node].call(dict(effect.state), effect.run.config, None)
    if isinstance(effect, Commit) and store is not None:
        store.commit(effect.batch)
    return None


def names_of(graph: CompiledGraph, *, store: Store | None = None) -> tuple[list[str], Ending]:
    """Perform the effects of sync nodes, one task at a time; their names, and the ending."""
    effects = effects_of(graph, stored=store is not None)
    names: list[str] = []
    outcome: Any = None
    while True:
        try:
            effect = effects.send(outcome)
        except StopIteration as stop:
            ending: Ending = stop.value
            return names, ending
        names.append(effect.event.type if isinstance(effect, Emit) else type(effect).__name__)
        outcome = answer(graph, effect, store)


def head_of(graph: CompiledGraph, store: Store) -> Position:
    chain = store.read(KEY)
    assert chain is not None
    return restore(chain, log_codec_for(graph), graph.schema)
