"""The MCP server: each graph is a tool, and a call of it is a task.

A client with the tasks extension gets a task, unless the run ends at once. Any other client waits
for the result; a question is then asked in the answer to its call, which it repeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
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
from milecastle.server.mcp.tasks import Address, Tasks, UnknownTask, failed, refused
from milecastle.server.problems import Refused
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

McpRequest = ServerRequestContext[Any, Any]
Recognize = Callable[[McpRequest], Identity]


class TaskParams(RequestParams):
    taskId: str  # noqa: N815 - the name on the wire


class UpdateParams(TaskParams):
    inputResponses: dict[str, Any]  # noqa: N815 - the name on the wire


class GraphTools:
    """Handlers of the protocol. ``recognize`` returns a request's caller, or refuses it."""

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
        return ListToolsResult(tools=[_tool(app) for app in self._service.apps.values()])

    async def _call(self, ctx: McpRequest, params: CallToolRequestParams) -> dict[str, Any]:
        caller = self._caller(ctx, "run")
        if params.name not in self._service.apps:
            raise MCPError(code=INVALID_PARAMS, message=f"there is no tool '{params.name}'")
        state = getattr(params, "request_state", None)
        if state:
            self._caller(ctx, "answer")
            id = str(state)
            responses = plain_responses(getattr(params, "input_responses", None) or {})
            await self._off_loop(self._tasks.answer, caller, id, responses)
            return await self._waited(ctx, caller, id)
        given = params.arguments or {}
        try:
            id, handle = await self._service.off_loop(self._tasks.start, caller, params.name, given)
        except MilecastleError as error:
            return refused(error.message)
        if not _has_tasks(ctx):
            return await self._waited(ctx, caller, id, handle)
        await _ended(handle, _AT_ONCE)
        found = await self._look(ctx, caller, id)
        if found["status"] == "completed":
            result: dict[str, Any] = found["result"]
            return result
        return {**found, "resultType": "task"}

    async def _waited(
        self, ctx: McpRequest, caller: Identity, id: str, handle: Handle[Any] | None = None
    ) -> dict[str, Any]:
        """Wait for a run until it ends or asks."""
        until = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            found = await self._look(ctx, caller, id)
            if found["status"] == "completed":
                result: dict[str, Any] = found["result"]
                return result
            if found["status"] == "cancelled":
                return failed("cancelled")
            if found["status"] == "input_required" and ctx.protocol_version >= VERSION:
                asked = {"inputRequests": found["inputRequests"], "requestState": id}
                return {**asked, "resultType": "input_required"}
            left = until - asyncio.get_running_loop().time()
            if left <= 0 or found["status"] == "input_required":
                return _unfinished(id, found)
            if handle is None:
                await asyncio.sleep(min(left, 0.2))
            else:
                await _ended(handle, left)
                handle = None

    async def _get(self, ctx: McpRequest, params: TaskParams) -> dict[str, Any]:
        caller = self._caller(ctx, "read", needs_tasks=True)
        return {**await self._look(ctx, caller, params.taskId), "resultType": "complete"}

    async def _update(self, ctx: McpRequest, params: UpdateParams) -> dict[str, Any]:
        caller = self._caller(ctx, "answer", needs_tasks=True)
        responses = plain_responses(params.inputResponses)
        await self._off_loop(self._tasks.answer, caller, params.taskId, responses)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: McpRequest, params: TaskParams) -> dict[str, Any]:
        caller = self._caller(ctx, "run", needs_tasks=True)
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

    def _caller(self, ctx: McpRequest, scope: TokenScope, *, needs_tasks: bool = False) -> Identity:
        if needs_tasks:
            if ctx.protocol_version < VERSION:
                raise MCPError(code=METHOD_NOT_FOUND, message="Method not found", data=ctx.method)
            require_tasks(ctx)
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


def require_tasks(ctx: McpRequest) -> None:
    from mcp.server.mcpserver.server import require_client_extension

    require_client_extension(ctx, EXTENSION)


def _has_tasks(ctx: McpRequest) -> bool:
    known = ctx.session.client_capabilities
    declared = (known.extensions if known else None) or {}
    return ctx.protocol_version >= VERSION and EXTENSION in declared


def plain_responses(given: Mapping[str, Any]) -> dict[str, Any]:
    """Responses as data, whether the SDK has read them or not."""
    found = plain(
        {
            name: one.model_dump(mode="json", by_alias=True) if hasattr(one, "model_dump") else one
            for name, one in given.items()
        }
    )
    return {name: one for name, one in found.items() if isinstance(one, dict)}


async def _ended(handle: Handle[Any], seconds: float) -> None:
    """Wait until a run ends, pauses, or the time has passed."""
    waiting: Awaitable[Any] = handle.aresult()
    task = asyncio.ensure_future(waiting)
    await asyncio.wait([task], timeout=seconds)
    if not task.done():
        task.cancel()
    elif isinstance(error := task.exception(), Exception) and not isinstance(error, RunError):
        raise error


def _unfinished(id: str, found: Mapping[str, Any]) -> dict[str, Any]:
    text = (
        f"the run has not ended: {found['status']}. It continues as thread 'mcp~{id}'; its "
        "questions are answered on the server's pages, or with milecastle answer"
    )
    return refused(text)


def _pages(ctx: McpRequest) -> Address:
    request = ctx.request
    if request is None:
        return lambda thread: None
    return lambda thread: f"{request.base_url}threads/{thread}"


def _tool(app: App[Any]) -> Tool:
    graph = app.graph
    described = (graph.schema.state_type.__doc__ or "").strip()
    schema: dict[str, Any] = plain(input_schema(graph))
    return Tool(
        name=graph.name,
        description=described or f"Run the graph {graph.name}.",
        input_schema=schema,
    )
