"""The table of routes: everything that can be asked of a server, and with which scope."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from starlette.responses import Response

from milecastle.fleet.prometheus import CONTENT_TYPE
from milecastle.server import events, graphs, health, jobs, runs, threads
from milecastle.server.documents import (
    AnswersRequest,
    BulkRequest,
    DeleteQuery,
    DiffQuery,
    EmittedEvent,
    EventsQuery,
    ForkRequest,
    GraphsDocument,
    HistoryQuery,
    InboxDocument,
    InboxQuery,
    JobDocument,
    MissedEvent,
    RestEvent,
    ResumeRequest,
    RunRequest,
    RunsQuery,
    StartDocument,
    StartQuery,
    StateEvent,
    TagRequest,
    ThreadQuery,
    ThreadRunsQuery,
    ThreadsQuery,
    UpdateRequest,
    WaitQuery,
    WholeStateQuery,
)
from milecastle.server.json_answers import json_answer
from milecastle.server.mounting import mount_point
from milecastle.server.openapi import describe
from milecastle.server.request import ApiRequest, Endpoint
from milecastle.support.prepared import prepared
from milecastle.views.documents import (
    CancelDocument,
    DeleteDocument,
    DiffDocument,
    GraphDocument,
    HistoryDocument,
    LsDocument,
    RunDocument,
    RunsDocument,
    ShowDocument,
    SubmitDocument,
    TagDocument,
    WrittenDocument,
)

__all__ = ["ENDPOINTS", "openapi"]

_TEXT: Final = "text/plain"
_THREAD: Final = "/v1/threads/{thread}"
_HANDED: Final[dict[int, Any]] = {200: RunDocument, 202: SubmitDocument}


@cache
def _described() -> dict[str, Any]:
    return describe(ENDPOINTS, (StateEvent, EmittedEvent, MissedEvent, RestEvent))


async def openapi(request: ApiRequest) -> Response:
    """This description."""
    servers = [{"url": mount_point(request.http.scope) or "/"}]
    return await json_answer(request.service, lambda: {**_described(), "servers": servers})


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        method="GET",
        path="/",
        handler=health.start,
        summary="Exchange the token of the start URL for a cookie.",
        scope=None,
        query=StartQuery,
        answers={200: StartDocument, 303: ""},
        problems=(401,),
        stores=False,
    ),
    Endpoint(
        method="GET",
        path="/healthz",
        handler=health.health,
        summary="Whether this process answers.",
        scope=None,
        answers={200: _TEXT},
        stores=False,
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        handler=health.readiness,
        summary="Whether the store and the queue answer.",
        scope=None,
        answers={200: _TEXT, 503: _TEXT},
        stores=False,
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        handler=health.metrics,
        summary="The queue of the caller's tenant, in the text format of Prometheus.",
        scope="read",
        answers={200: CONTENT_TYPE},
    ),
    Endpoint(
        method="GET",
        path=health.OPENAPI,
        handler=openapi,
        summary="This description.",
        scope="read",
        answers={200: "application/json"},
        stores=False,
    ),
    Endpoint(
        method="GET",
        path="/v1/graphs",
        handler=graphs.list_graphs,
        summary="List the graphs that this server runs.",
        scope="read",
        answers={200: GraphsDocument},
        stores=False,
    ),
    Endpoint(
        method="GET",
        path="/v1/graphs/{graph}",
        handler=graphs.show_graph,
        summary="Show a graph: manifest, drawing, JSON schema of inputs.",
        scope="read",
        answers={200: GraphDocument},
        problems=(404,),
        stores=False,
    ),
    Endpoint(
        method="GET",
        path="/v1/threads",
        handler=threads.list_threads,
        summary="List threads, by name.",
        scope="read",
        query=ThreadsQuery,
        answers={200: LsDocument},
    ),
    Endpoint(
        method="GET",
        path=_THREAD,
        handler=threads.show,
        summary="Show a thread with its state.",
        scope="read",
        query=ThreadQuery,
        answers={200: ShowDocument},
        problems=(404,),
    ),
    Endpoint(
        method="DELETE",
        path=_THREAD,
        handler=threads.delete,
        summary="Delete a thread, its runs and its subgraphs.",
        scope="admin",
        query=DeleteQuery,
        answers={200: DeleteDocument},
        problems=(404, 409),
    ),
    Endpoint(
        method="GET",
        path=f"{_THREAD}/state",
        handler=threads.whole_state,
        summary="Download the state of a thread, or one channel of it, however large.",
        scope="read",
        query=WholeStateQuery,
        answers={200: "application/json"},
        problems=(404, 409, 500),
    ),
    Endpoint(
        method="GET",
        path=f"{_THREAD}/history",
        handler=threads.history,
        summary="List the checkpoints of a thread, newest first.",
        scope="read",
        query=HistoryQuery,
        answers={200: HistoryDocument},
        problems=(404,),
    ),
    Endpoint(
        method="GET",
        path=f"{_THREAD}/diff",
        handler=threads.diff,
        summary="Show the differences between two checkpoints, by path.",
        scope="read",
        query=DiffQuery,
        answers={200: DiffDocument},
        problems=(404, 409, 500),
    ),
    Endpoint(
        method="GET",
        path=f"{_THREAD}/events",
        handler=events.events,
        summary="Follow a thread by Server-Sent Events.",
        scope="read",
        query=EventsQuery,
        answers={200: "text/event-stream"},
        problems=(404, 409, 500),
    ),
    Endpoint(
        method="GET",
        path=f"{_THREAD}/runs",
        handler=runs.list_runs_of_thread,
        summary="List the runs of a thread, newest first.",
        scope="read",
        query=ThreadRunsQuery,
        answers={200: RunsDocument},
        problems=(404,),
    ),
    Endpoint(
        method="POST",
        path=f"{_THREAD}/runs",
        handler=runs.submit,
        summary="Hand a run over to the workers; with wait, answer with its result.",
        scope="run",
        query=WaitQuery,
        body=RunRequest,
        answers=_HANDED,
        problems=(409, 422, 500),
    ),
    Endpoint(
        method="POST",
        path=f"{_THREAD}/answers",
        handler=runs.answer,
        summary="Answer open questions of a thread, and let a worker resume it.",
        scope="answer",
        query=WaitQuery,
        body=AnswersRequest,
        answers=_HANDED,
        problems=(404, 409, 422, 500),
    ),
    Endpoint(
        method="POST",
        path=f"{_THREAD}/resume",
        handler=runs.resume,
        summary="Hand a thread over to the workers again.",
        scope="run",
        query=WaitQuery,
        body=ResumeRequest,
        answers=_HANDED,
        problems=(404, 409, 500),
    ),
    Endpoint(
        method="POST",
        path=f"{_THREAD}/cancel",
        handler=threads.cancel,
        summary="Close the unfinished run of a thread.",
        scope="run",
        answers={200: CancelDocument},
        problems=(404, 409, 500),
    ),
    Endpoint(
        method="POST",
        path=f"{_THREAD}/fork",
        handler=threads.fork,
        summary="Go back to a checkpoint, in the same thread or in a new one.",
        scope="run",
        body=ForkRequest,
        answers={200: WrittenDocument},
        problems=(404, 409, 500),
    ),
    Endpoint(
        method="POST",
        path=f"{_THREAD}/tags",
        handler=threads.tag,
        summary="Add and remove tags of a thread.",
        scope="run",
        body=TagRequest,
        answers={200: TagDocument},
        problems=(404, 409),
    ),
    Endpoint(
        method="POST",
        path=f"{_THREAD}/update",
        handler=threads.update,
        summary="Change the state of a thread by adding a checkpoint.",
        scope="admin",
        body=UpdateRequest,
        answers={200: WrittenDocument},
        problems=(404, 409, 422, 500),
    ),
    Endpoint(
        method="GET",
        path="/v1/questions",
        handler=threads.list_questions,
        summary="List the open questions, by thread: the inbox.",
        scope="read",
        query=InboxQuery,
        answers={200: InboxDocument},
    ),
    Endpoint(
        method="GET",
        path="/v1/runs",
        handler=runs.list_runs,
        summary="List runs: the current ones by status, or all, newest first.",
        scope="read",
        query=RunsQuery,
        answers={200: RunsDocument},
    ),
    Endpoint(
        method="POST",
        path="/v1/runs/retry",
        handler=jobs.retry_runs,
        summary="Retry many runs that failed or were cancelled, by a job.",
        scope="run",
        body=BulkRequest,
        answers={202: JobDocument},
    ),
    Endpoint(
        method="POST",
        path="/v1/runs/cancel",
        handler=jobs.cancel_runs,
        summary="Cancel many runs that have not ended, by a job.",
        scope="run",
        body=BulkRequest,
        answers={202: JobDocument},
    ),
    Endpoint(
        method="POST",
        path="/v1/runs/delete",
        handler=jobs.delete_runs,
        summary="Delete many threads, by the status of their current runs, by a job.",
        scope="admin",
        body=BulkRequest,
        answers={202: JobDocument},
    ),
    Endpoint(
        method="GET",
        path="/v1/jobs/{job}",
        handler=jobs.show_job,
        summary="Show how far a job is.",
        scope="read",
        answers={200: JobDocument},
        problems=(404, 409, 500),
    ),
)

for _endpoint in ENDPOINTS:  # requests are read into these by any thread
    prepared(_endpoint.query)
    if _endpoint.body is not None:
        prepared(_endpoint.body)
