"""The MCP server: each graph is a tool, and a call to it is a task.

A client with the tasks extension gets a task, unless the run ends at once. Any other client waits
for the result, and cancels the run by leaving; a question is asked in the answer to its call, which
it repeats. A result that takes longer than it waits is left for the tool `result`.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from anyio import CancelScope
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver.server import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParams,
    Tool,
)

from milecastle.app.application import App
from milecastle.app.runs.submission import Handle
from milecastle.errors import MilecastleError, RunError
from milecastle.server.identity import Identity, TokenScope
from milecastle.server.mcp.tasks import PREFIX, Address, Tasks, UnknownTask, failed, refused
from milecastle.server.problems import Refused, shown_message
from milecastle.server.redaction import Redact, after_hook
from milecastle.server.request import require_scope
from milecastle.server.service import Service
from milecastle.version import __version__
from milecastle.views.graphs import input_schema
from milecastle.views.values import plain

EXTENSION: Final = "io.modelcontextprotocol/tasks"
VERSION: Final = "2026-07-28"
"""The first revision in which a server decides that a call becomes a task."""

_REFUSED: Final = -32003
_AT_ONCE: Final = 0.5
_PATIENCE: Final = 30.0
_SPAN: Final = 1.0
"""How long a waiting call sleeps at most before it looks again and reports progress."""

RESULT: Final = "result"
"""The tool that waits for an earlier call; a graph of this name takes its place."""

McpRequest = ServerRequestContext[Any, Any]
Recognize = Callable[[McpRequest], Identity]


class TaskParams(RequestParams):
    taskId: str  # noqa: N815 - the name on the wire


class UpdateParams(TaskParams):
    inputResponses: dict[str, Any]  # noqa: N815 - the name on the wire


class GraphTools:
    def __init__(self, service: Service, recognize: Recognize) -> None:
        self._service = service
        self._recognize = recognize
        self._tasks = Tasks(service)

    def server(self) -> Server[Any]:
        found: Server[Any] = Server(
            "milecastle", version=__version__, on_list_tools=self._list_tools
        )
        found.add_request_handler("tools/call", CallToolRequestParams, self._call)
        found.add_request_handler("tasks/get", TaskParams, self._get)
        found.add_request_handler("tasks/update", UpdateParams, self._update)
        found.add_request_handler("tasks/cancel", TaskParams, self._cancel)
        found.extensions[EXTENSION] = {}
        return found

    async def _list_tools(
        self, ctx: McpRequest, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        self._caller(ctx, "read")
        apps, redact = self._service.apps, self._service.redact
        tools = [_tool(app, redact) for app in apps.values()]
        if RESULT not in apps and not _has_tasks(ctx):
            tools.append(_RESULT_TOOL)
        return ListToolsResult(tools=tools)

    async def _call(self, ctx: McpRequest, params: CallToolRequestParams) -> dict[str, Any]:
        is_graph = params.name in self._service.apps
        caller = self._caller(ctx, "read" if params.name == RESULT and not is_graph else "run")
        if not is_graph and params.name != RESULT:
            raise MCPError(code=INVALID_PARAMS, message=f"there is no tool '{params.name}'")
        given = params.arguments or {}
        id: Any = getattr(params, "request_state", None)
        if id:
            self._caller(ctx, "answer")
            responses = plain_responses(getattr(params, "input_responses", None) or {})
            await self._off_loop(self._tasks.answer, caller, id, responses)
        elif not is_graph:
            id = str(given.get("thread")).removeprefix(PREFIX)
        if id or not is_graph:
            waited = self._waited(ctx, caller, id)
            return await (self._unless_left(ctx, caller, id, waited) if is_graph else waited)
        started: Any = None
        with CancelScope(shield=True):  # what is started has an id, and can be cancelled
            started = await self._off_loop(self._start, caller, params.name, given)
        if isinstance(started, dict):
            return cast("dict[str, Any]", started)
        id, handle = started
        answer = self._created if _has_tasks(ctx) else self._waited
        return await self._unless_left(ctx, caller, id, answer(ctx, caller, id, handle))

    def _start(self, caller: Identity, graph: str, given: Mapping[str, Any]) -> Any:
        """Start a run; a refused input is a result, so that the model can correct it."""
        try:
            return self._tasks.start(caller, graph, given)
        except MilecastleError as error:
            return refused(shown_message(error, self._service.redact))

    async def _unless_left(
        self, ctx: McpRequest, caller: Identity, id: str, answer: Awaitable[dict[str, Any]]
    ) -> dict[str, Any]:
        """The answer to a call; if the client leaves before it, the run is cancelled."""
        try:
            return await answer
        except asyncio.CancelledError:
            if has_left(ctx):
                with CancelScope(shield=True):
                    await self._off_loop(self._tasks.cancel, caller, id)
            raise

    async def _created(
        self, ctx: McpRequest, caller: Identity, id: str, handle: Handle[Any]
    ) -> dict[str, Any]:
        await self._ended(handle, _AT_ONCE)
        found = await self._look(ctx, caller, id)
        if found["status"] == "completed":
            result: dict[str, Any] = found["result"]
            return result
        found.pop("inputRequests", None)
        return {**found, "resultType": "task"}

    async def _waited(
        self, ctx: McpRequest, caller: Identity, id: str, handle: Handle[Any] | None = None
    ) -> dict[str, Any]:
        """Wait for a run until it ends or asks; report its progress, if the client wants it."""
        until = asyncio.get_running_loop().time() + _PATIENCE
        changes, said = 0, None
        while True:
            found = await self._look(ctx, caller, id)
            if found.get("statusMessage") != said:
                changes, said = changes + 1, found.get("statusMessage")
                await ctx.session.report_progress(changes, message=said)
            if found["status"] == "completed":
                result: dict[str, Any] = found["result"]
                return result
            if found["status"] == "cancelled":
                return failed("cancelled")
            if found["status"] == "input_required" and ctx.protocol_version >= VERSION:
                asked = {"inputRequests": found["inputRequests"], "requestState": id}
                return {**asked, "resultType": "input_required"}
            left = until - asyncio.get_running_loop().time()
            is_over = left <= 0 or self._service.closing.is_set()
            if is_over or found["status"] == "input_required":
                return _unfinished(id, found)
            if handle is None:
                await asyncio.sleep(min(left, 0.2))
            elif await self._ended(handle, min(left, _SPAN)):
                handle = None

    async def _ended(self, handle: Handle[Any], seconds: float) -> bool:
        """Wait until a run ends or pauses (true), the time has passed, or this server stops."""
        result = asyncio.ensure_future(handle.aresult())
        closing = asyncio.ensure_future(self._service.closing.wait())
        try:
            await asyncio.wait([result, closing], timeout=seconds, return_when=FIRST_COMPLETED)
        finally:
            closing.cancel()
            result.cancel()
        if result.done() and not result.cancelled():
            error = result.exception()
            if error is not None and not isinstance(error, RunError):
                raise error
            return True
        return False

    async def _get(self, ctx: McpRequest, params: TaskParams) -> dict[str, Any]:
        caller = self._caller_of(ctx, params, "read")
        return {**await self._look(ctx, caller, params.taskId), "resultType": "complete"}

    async def _update(self, ctx: McpRequest, params: UpdateParams) -> dict[str, Any]:
        caller = self._caller_of(ctx, params, "answer")
        responses = plain_responses(params.inputResponses)
        await self._off_loop(self._tasks.answer, caller, params.taskId, responses)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: McpRequest, params: TaskParams) -> dict[str, Any]:
        caller = self._caller_of(ctx, params, "run")
        await self._off_loop(self._tasks.cancel, caller, params.taskId)
        return {"resultType": "complete"}

    async def _look(self, ctx: McpRequest, caller: Identity, id: str) -> dict[str, Any]:
        if self._identity(ctx) != caller:  # as for a token that has expired meanwhile
            raise MCPError(code=_REFUSED, message="the caller is another one now")
        found: dict[str, Any] = await self._off_loop(self._tasks.look, caller, id, _pages(ctx))
        return found

    async def _off_loop(self, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return await self._service.off_loop(function, *given)
        except UnknownTask:
            raise MCPError(code=INVALID_PARAMS, message="there is no such task") from None
        except ValueError as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from None
        except MilecastleError as error:
            message = shown_message(error, self._service.redact)
            raise MCPError(code=INTERNAL_ERROR, message=message) from None

    def _caller_of(self, ctx: McpRequest, params: TaskParams, scope: TokenScope) -> Identity:
        """The caller of a task's method. A proxy may have routed it by its header."""
        if ctx.protocol_version < VERSION:
            raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=ctx.method)
        require_client_extension(ctx, EXTENSION)
        named = None if ctx.request is None else ctx.request.headers.get("mcp-name")
        if named not in (None, params.taskId):
            raise MCPError(code=HEADER_MISMATCH, message="Mcp-Name is not the taskId")
        return self._caller(ctx, scope)

    def _caller(self, ctx: McpRequest, scope: TokenScope) -> Identity:
        caller = self._identity(ctx)
        try:
            require_scope(caller, scope)
        except Refused as error:
            raise MCPError(code=_REFUSED, message=str(error)) from None
        return caller

    def _identity(self, ctx: McpRequest) -> Identity:
        try:
            return self._recognize(ctx)
        except Refused as error:
            raise MCPError(code=_REFUSED, message=str(error)) from None


LEFT: Final = "milecastle.left"
"""In the scope of an HTTP request: an event that is set when its client has gone."""


def has_left(ctx: McpRequest) -> bool:
    """True if a call was cancelled by its client, and not because this server stops.

    On standard output the client sends a notification, or closes our input. Over HTTP it closes
    the stream; before 2026-07-28 that meant nothing.
    """
    if ctx.request is None:
        return True
    left: asyncio.Event = ctx.request.scope[LEFT]
    return left.is_set() and ctx.protocol_version >= VERSION


def _has_tasks(ctx: McpRequest) -> bool:
    known = ctx.session.client_capabilities
    declared = (known.extensions if known else None) or {}
    return ctx.protocol_version >= VERSION and EXTENSION in declared


def plain_responses(given: Mapping[str, Any]) -> dict[str, Any]:
    found = plain(
        {
            name: one.model_dump(mode="json", by_alias=True) if hasattr(one, "model_dump") else one
            for name, one in given.items()
        }
    )
    return {name: one for name, one in found.items() if isinstance(one, dict)}


def _unfinished(id: str, found: Mapping[str, Any]) -> dict[str, Any]:
    text = (
        f"the run has not ended: {found['status']}. It continues as thread '{PREFIX}{id}': the "
        f"tool '{RESULT}' waits for it; its questions are answered on the server's pages, or with "
        "milecastle answer"
    )
    return refused(text)


def _pages(ctx: McpRequest) -> Address:
    request = ctx.request
    if request is None:
        return lambda thread: None
    return lambda thread: f"{request.base_url}threads/{thread}"


def _tool(app: App[Any], redact: Redact | None) -> Tool:
    graph = app.graph
    described = (graph.schema.state_type.__doc__ or "").strip()
    schema = after_hook("input", plain(input_schema(graph)), redact)
    return Tool(
        name=graph.name,
        description=described or f"Run the graph {graph.name}.",
        input_schema=cast("dict[str, Any]", schema)
        if isinstance(schema, dict)
        else {"type": "object"},
    )


_RESULT_TOOL: Final = Tool(
    name=RESULT,
    description="Wait for the result of an earlier call that had not ended when it was answered.",
    input_schema={
        "type": "object",
        "properties": {
            "thread": {"type": "string", "description": f"the thread it named: {PREFIX}..."}
        },
        "required": ["thread"],
        "additionalProperties": False,
    },
)
