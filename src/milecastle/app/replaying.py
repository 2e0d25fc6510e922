"""Replay: run new code against a thread's record, without writing and without calling steps.

Nothing can be written: the run has no store. A flow is run against its newest run's recorded
calls. In a graph the edges are evaluated on each recorded state; no node is called.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from milecastle.app.runner import Runner
from milecastle.app.runs.calls import Call
from milecastle.app.runs.planned import PlannedRun
from milecastle.app.threads.archived import whole_history
from milecastle.app.threads.log import Threads
from milecastle.codec.deltas import LogCodec
from milecastle.engine.effects import Evaluate
from milecastle.engine.pauses import BeyondRecord
from milecastle.engine.plan import RunPlan
from milecastle.engine.position import Position
from milecastle.engine.reserved_channels import CALLS
from milecastle.engine.routing import Way, find_next, in_order
from milecastle.errors import InvalidRequest, MilecastleError, ResumeRefused
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import END
from milecastle.support.printable import quoted

ReplayVerdict = Literal["same", "differs", "continues"]


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's replay with this version's code.

    ``same``: it makes the recorded calls, or takes the recorded paths, and the nodes
    called write what is recorded. ``continues``: so it does,
    and then goes beyond the record. ``differs``: it does not, and ``detail`` says where.
    ``calls`` counts recorded calls, or a graph's evaluated steps.
    """

    thread: str
    run_id: str
    verdict: ReplayVerdict
    calls: int
    detail: str = ""


def replay_thread(
    runner: Runner[Any], threads: Threads, key: ThreadKey, called: Collection[str] = ()
) -> Replay:
    nodes = runner.graph.nodes
    for name in called:
        if name not in nodes or nodes[name].subgraph is not None or nodes[name].is_flow:
            why = "is a subgraph or a flow" if name in nodes else "is not in this graph"
            raise InvalidRequest(
                f"node {quoted(name)} {why}: nodes= takes names of nodes that are functions"
            )
    if runner.graph.has_flow:
        return _replay_flow(runner, threads, key)
    return _replay_graph(runner, threads, key, frozenset(called))


def _replay_flow(runner: Runner[Any], threads: Threads, key: ThreadKey) -> Replay:
    head, _ = threads.existing(key)
    history = list(whole_history(threads.store, key))
    open_entries = (entry for entry in history if entry.next)
    at = next(open_entries, history[-1])
    position = head if at.seq == head.seq else threads.existing(key, at.seq)[0]
    calls = len({record[0] for record in position.reserved.get(CALLS, ())})

    def report(verdict: ReplayVerdict, detail: str = "") -> Replay:
        return Replay(
            thread=key.thread, run_id=at.run_id, verdict=verdict, calls=calls, detail=detail
        )

    codec = threads.for_thread(key, threads.store.read(key)).codec
    planned = _planned(runner, threads, position, at.run_id, runner.graph, codec)
    try:
        ending = planned.finish()
    except BeyondRecord as beyond:
        return report("continues", f"then {beyond}")
    except ResumeRefused as refused:
        return report("differs", "; ".join(refused.reasons))
    except MilecastleError as error:
        failed = any(
            run.run_id == at.run_id and run.status == "failed" for run in threads.store.runs(key)
        )
        return report("same" if failed else "differs", error.message)
    if not head.next and ending.status == "completed":
        encode = threads.codec.encode_state
        if encode(ending.values) != encode(head.values):
            return report("differs", "its result is not the recorded one")
    return report("same")


def _planned(
    runner: Runner[Any],
    threads: Threads,
    position: Position,
    run_id: str,
    graph: CompiledGraph,
    replay: LogCodec | None = None,
) -> PlannedRun:
    plan = RunPlan(
        graph=graph,
        config=graph.config,
        run_id=run_id,
        position=position,
        clock=threads.clock,
        node_config=position.config,
        replay=replay,
    )
    return PlannedRun(
        Call(),
        plan,
        store=None,
        committer=None,
        observers=(),
        executors=runner.executors,
        begin=_no_subgraph,
    )


def _no_subgraph(effect: object) -> RunPlan:
    raise AssertionError("a flow has no subgraphs")


def _replay_graph(
    runner: Runner[Any], threads: Threads, key: ThreadKey, called: frozenset[str]
) -> Replay:
    run_id, steps = threads.existing(key)[1].run_id, 0
    kept: set[str | None] = set()
    for entry in reversed(list(whole_history(threads.store, key))):
        is_called = entry.parent_id in kept and called.issuperset(entry.nodes)
        kept.add(entry.id)
        if entry.source != "step" or not (is_called or _is_known(runner, entry)):
            continue
        position, _ = threads.existing(key, entry.seq)
        steps += 1
        if is_called:
            when, detail = "in", _other_step(runner, threads, key, position, entry)
        else:
            when, detail = "after", _other_way(runner, position, entry)
        if detail:
            detail = f"{when} step {entry.step} ({', '.join(entry.nodes)}) {detail}"
            return Replay(
                thread=key.thread, run_id=run_id, verdict="differs", calls=steps, detail=detail
            )
    return Replay(thread=key.thread, run_id=run_id, verdict="same", calls=steps)


def _other_step(
    runner: Runner[Any],
    threads: Threads,
    key: ThreadKey,
    recorded: Position,
    entry: Entry | CheckpointMetadata,
) -> str:
    before, _ = threads.existing(key, entry.parent_id)
    before = msgspec.structs.replace(before, was_seen=True)  # it goes on, and stops after a step
    nodes = frozenset(entry.nodes)
    graph = msgspec.structs.replace(
        runner.graph, interrupt_before=frozenset(), interrupt_after=nodes
    )
    try:
        ending = _planned(runner, threads, before, entry.run_id, graph).finish()
    except MilecastleError as error:
        cause = error.__cause__ or error
        return f"it now raises {type(cause).__name__}"
    if ending.step == before.step:
        return f"it now waits: {ending.status}"
    encode = threads.codec.encode_state
    names = {**recorded.values, **ending.values}
    other = tuple(
        name
        for name in names
        if encode({name: recorded.values.get(name)}) != encode({name: ending.values.get(name)})
    )
    if other:
        return f"it now writes another {_listed(other)}"
    if set(ending.next) != set(entry.next):
        return f"it led to {_listed(entry.next)}, and now leads to {_listed(ending.next)}"
    return ""


def _is_known(runner: Runner[Any], entry: Entry | CheckpointMetadata) -> bool:
    """True if its edges decide where it led: not a node that returned a ``Command``."""
    nodes = runner.graph.nodes
    return all(name in nodes and not nodes[name].policy.goto for name in entry.nodes)


def _other_way(runner: Runner[Any], position: Position, entry: Entry) -> str:
    graph, way = runner.graph, Way()
    state = graph.schema.present(position.values)
    try:
        for name in entry.nodes:
            for effect in find_next(graph, name, state, way):
                what = "is async" if isinstance(effect, Evaluate) else "needs the store"
                return f"it cannot be replayed: an edge {what}"
    except Exception as error:
        return f"its edges raise {type(error).__name__}"
    targets = [*way.names, *(send.node for send in way.sends)]
    found = in_order(graph, targets or [END])
    if set(found) == set(entry.next):
        return ""
    return f"it led to {_listed(entry.next)}, and now leads to {_listed(found)}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "the end"
