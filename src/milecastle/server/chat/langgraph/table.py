"""The endpoints LangGraph's SDK calls. A fixed path comes before one with a name."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Final

import msgspec
from starlette.responses import Response

from milecastle.server.chat.langgraph import assistants, runs, threads
from milecastle.server.chat.langgraph.describing import answered
from milecastle.server.chat.langgraph.documents import (
    AssistantsRequest,
    CancelRunQuery,
    CheckpointRequest,
    GraphQuery,
    HistoryRequest,
    JoinQuery,
    ListRunsQuery,
    RunInput,
    SearchRequest,
    StateQuery,
    StateUpdate,
    ThreadInput,
)
from milecastle.server.documents import NoQuery
from milecastle.server.identity import TokenScope
from milecastle.server.limits import JSON
from milecastle.server.request import ApiRequest, Endpoint, Handler

_THREAD: Final = "/threads/{thread}"
_RUN: Final = f"{_THREAD}/runs/{{run}}"
_ASSISTANT: Final = "/assistants/{graph}"
_EVENTS: Final = "text/event-stream"


def _line(
    method: str,
    path: str,
    handler: Handler | Callable[[ApiRequest], Any],
    scope: TokenScope,
    *,
    body: type[msgspec.Struct] | None = None,
    query: type[msgspec.Struct] = NoQuery,
    answers: dict[int, Any] | None = None,
    also: tuple[TokenScope, ...] = (),
) -> Endpoint:
    return Endpoint(
        method=method,
        path=f"/langgraph{path}",
        scope=scope,
        also=also,
        query=query,
        body=body,
        answers=answers or {200: JSON},
        problems=(404, 409, 422, 500),
        stores=path != "/info" and not path.startswith("/assistants"),
        kinds=(JSON, "text/plain"),  # the proxy of the public front end sends its JSON as text
    )(handler if iscoroutinefunction(handler) else _off_loop(handler))


def _off_loop(make: Callable[[ApiRequest], Any]) -> Handler:
    @wraps(make)
    async def handler(request: ApiRequest) -> Response:
        return await answered(request, make, request)

    return handler


def _starting(path: str) -> tuple[Endpoint, ...]:
    also: tuple[TokenScope, ...] = ("read",)
    events = {200: _EVENTS}
    return (
        _line(
            "POST",
            f"{path}/runs/stream",
            runs.stream_run,
            "run",
            body=RunInput,
            also=also,
            answers=events,
        ),
        _line("POST", f"{path}/runs/wait", runs.wait_for_run, "run", body=RunInput, also=also),
        _line("POST", f"{path}/runs", runs.create_run, "run", body=RunInput, also=also),
    )


LANGGRAPH: Final[tuple[Endpoint, ...]] = (
    _line("GET", "/info", assistants.info, "read"),
    _line(
        "POST", "/assistants/search", assistants.search_assistants, "read", body=AssistantsRequest
    ),
    _line("GET", _ASSISTANT, assistants.get_assistant, "read"),
    _line("GET", f"{_ASSISTANT}/schemas", assistants.get_schemas, "read"),
    _line("GET", f"{_ASSISTANT}/graph", assistants.get_graph, "read", query=GraphQuery),
    _line("POST", "/threads", threads.create_thread, "run", body=ThreadInput, also=("read",)),
    _line("POST", "/threads/search", threads.search_threads, "read", body=SearchRequest),
    _line("GET", _THREAD, threads.get_thread, "read"),
    _line("DELETE", _THREAD, threads.drop_thread, "admin", answers={204: ""}),
    _line("POST", f"{_THREAD}/copy", threads.copy_thread, "run", also=("read",)),
    _line("POST", f"{_THREAD}/history", threads.get_history, "read", body=HistoryRequest),
    _line("GET", f"{_THREAD}/state", threads.get_state, "read", query=StateQuery),
    _line("POST", f"{_THREAD}/state", threads.post_state, "admin", body=StateUpdate),
    _line(
        "POST", f"{_THREAD}/state/checkpoint", threads.post_state_at, "read", body=CheckpointRequest
    ),
    _line("GET", f"{_THREAD}/state/{{checkpoint}}", threads.get_state_at, "read", query=StateQuery),
    *_starting(_THREAD),
    *_starting(""),
    _line("GET", f"{_THREAD}/runs", runs.list_runs, "read", query=ListRunsQuery),
    _line("GET", _RUN, runs.get_run, "read"),
    _line("GET", f"{_RUN}/join", runs.join_run, "read", query=JoinQuery),
    _line(
        "GET", f"{_RUN}/stream", runs.join_stream, "read", query=JoinQuery, answers={200: _EVENTS}
    ),
    _line(
        "POST",
        f"{_RUN}/cancel",
        runs.cancel_run,
        "run",
        query=CancelRunQuery,
        answers={202: "", 204: ""},
    ),
)
