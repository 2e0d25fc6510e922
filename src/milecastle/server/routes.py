"""The HTTP API: all endpoints, in the OpenAPI document's order, declared at their handlers."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from starlette.responses import Response

from milecastle.server import events, graphs, health, jobs, runs, threads
from milecastle.server.documents import EmittedEvent, MissedEvent, StateEvent, StoppedEvent
from milecastle.server.json_answers import json_answer
from milecastle.server.mounting import mount_point
from milecastle.server.openapi import describe
from milecastle.server.request import ApiRequest, Endpoint
from milecastle.support.prepared import prepared


@cache
def _described() -> dict[str, Any]:
    return describe(ENDPOINTS, (StateEvent, EmittedEvent, MissedEvent, StoppedEvent))


@Endpoint("GET", health.OPENAPI, "read", answers={200: "application/json"}, stores=False)
async def openapi(request: ApiRequest) -> Response:
    """This description."""
    servers = [{"url": mount_point(request.http.scope) or "/"}]
    return await json_answer(request.service, lambda: {**_described(), "servers": servers})


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    health.start,
    health.health,
    health.readiness,
    health.metrics,
    openapi,
    graphs.list_graphs,
    graphs.show_graph,
    threads.list_threads,
    threads.show,
    threads.delete,
    threads.whole_state,
    threads.history,
    threads.diff,
    events.events,
    runs.list_runs_of_thread,
    runs.submit,
    runs.result,
    runs.answer,
    runs.list_answers,
    runs.send,
    runs.list_messages,
    runs.retry,
    threads.cancel,
    threads.fork,
    threads.tag,
    threads.update,
    threads.list_questions,
    runs.list_runs,
    jobs.retry_runs,
    jobs.cancel_runs,
    jobs.delete_runs,
    jobs.show_job,
)

for _endpoint in ENDPOINTS:  # requests are read into these by any thread
    prepared(_endpoint.query)
    if _endpoint.body is not None:
        prepared(_endpoint.body)
