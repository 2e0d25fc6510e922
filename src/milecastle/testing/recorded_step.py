"""Running nodes on a state that was recorded, without a store: for tests made from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import copy_context
from typing import Any

from milecastle.app.application import App
from milecastle.app.clock import SystemClock
from milecastle.drivers.calling import call_task
from milecastle.engine.applying import apply_updates, read_outcome
from milecastle.engine.asking import Paused
from milecastle.engine.desk import Desk
from milecastle.engine.effects import RunTask
from milecastle.engine.hidden import ANSWERS
from milecastle.engine.plan import RunPlan
from milecastle.engine.position import Position
from milecastle.engine.progress import Progress
from milecastle.engine.tasks import task_id
from milecastle.errors import InvalidRequest

__all__ = ["run_step"]


def run_step(
    app: App[Any],
    nodes: Sequence[str],
    state: Mapping[str, Any],
    *,
    answers: Mapping[str, Any] | None = None,
    config: Any = None,
) -> dict[str, Any]:
    """Run the nodes of one step on ``state``; the channels that changed, with their new values.

    ``nodes`` run one after the other and see the same state, as in a step; no edge is taken.
    ``answers`` are those to questions, by label: ``"review/0"`` is the first one of ``review``.
    """
    schema = app.graph.schema
    before = schema.complete(dict(state))
    desk = _desk(app, before, dict(answers or {}), config)
    updates: list[tuple[str, Mapping[str, Any]]] = []
    for name in nodes:
        node = app.graph.nodes[name]
        if node.subgraph is not None:
            raise InvalidRequest(f"node '{name}' is a subgraph: test the nodes inside of it")
        task = RunTask(node, schema.present(before), desk, task_id(name), config)
        desk.context(task)
        returned = copy_context().run(_call, task)
        updates.append((name, read_outcome(schema, name, returned, before).update))
    values = dict(before)
    apply_updates(schema, values, updates, None)
    return {
        name: value for name, value in values.items() if name not in state or state[name] != value
    }


def _desk(app: App[Any], values: dict[str, Any], answers: dict[str, Any], config: Any) -> Desk:
    plan = RunPlan(
        graph=app.graph,
        config=app.graph.config,
        run_id="recorded",
        position=Position(values=values, hidden={ANSWERS: answers}),
        clock=SystemClock(),
        node_config=config,
    )
    return Desk(plan, Progress(plan), None)


def _call(task: RunTask) -> Any:
    try:
        returned = call_task(task)
        if not task.node.is_async:
            return returned
        import asyncio

        return asyncio.run(returned)
    except Paused:
        raise InvalidRequest(
            f"node '{task.node.name}' waits for an answer or a time: give answers={{label: ...}}"
        ) from None
