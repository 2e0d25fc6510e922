"""Calling a step of a flow elsewhere, from the thread that waits for it.

The step is the only node of a graph of its own, so it runs as any node does. The flow does the
rest: it retries, records the result, and says when the wait is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any, Final, cast

import msgspec.structs

from milecastle.compute.executor_choice import site_of
from milecastle.compute.finding import reference_to
from milecastle.compute.task_client import RemoteTasks
from milecastle.engine.context import RunningTask, current_task
from milecastle.engine.flow import FlowRun
from milecastle.engine.pauses import StepRefused
from milecastle.errors import InvalidRequest
from milecastle.graph.structure import CompiledGraph

_GLANCE: Final = 0.1
"""How often, in seconds, to look whether the flow has stopped, or the step is out of time."""


def call_elsewhere(
    graph_in: Callable[[str], CompiledGraph | None], flow: FlowRun, /, *args: Any, **named: Any
) -> Any:
    running, ended = cast("RunningTask", current_task.get()), Event()
    graph = cast("CompiledGraph", graph_in(flow.name))
    if graph.nodes[flow.name].is_async and not flow.is_async:
        raise InvalidRequest("a flow that calls an async step is async, too: async def")
    run = msgspec.structs.replace(running.task.run, fingerprint=graph.fingerprint, path=())
    state = {"args": [*args], "named": named}
    task = msgspec.structs.replace(running.task, run=run, state=state)
    ports = {run.run_id: running.place.port}
    remote = RemoteTasks(graph, ports, partial(reference_to, graph, flow.name), site_of, ended.set)
    try:
        remote.start([task])
        while not (found := remote.take()):
            ended.wait(_GLANCE)
            ended.clear()
            flow.check()
    finally:
        remote.close()
    [finished] = found
    if finished.error is None:
        return finished.update["result"]
    raise StepRefused(finished.error) if finished.refused else finished.error
