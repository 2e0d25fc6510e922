"""MCP servers' tools, for agents. Needs the extra ``mcp``.

Rules:

- A remote task's id is recorded: whatever crashes, the same task is asked for again.
- Between two polls for a remote task the run sleeps, and needs no process.
- A call that may have been made is repeated only if the server's hints say this is harmless, or if
  a person agrees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, cast

from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, Request, RequestParams, Result
from mcp_types import Tool as ListedTool

from milecastle import Context, interrupt
from milecastle.agents.tools import Tool

__all__ = ["mcp_tools"]

_LONGEST: Final = 3600.0


def mcp_tools(
    server: str | Sequence[str] | Any,
    *,
    approve: bool | Callable[[dict[str, Any]], object] | None = None,
) -> list[Tool]:
    """List a server's tools, for an agent.

    ``server`` is a URL, a command with its arguments, or an argument for the SDK's client. By
    default every call the server does not mark as read-only needs approval.
    """
    place: Any = server
    if not isinstance(server, str) and isinstance(server, Sequence):
        command, *args = cast("Sequence[str]", server)
        place = StdioServerParameters(command=command, args=args)
    with ThreadPoolExecutor(1) as pool:  # there may be an event loop in this thread
        listed = pool.submit(asyncio.run, _listed(place)).result()
    return [_tool(place, each, approve) for each in listed]


async def _listed(place: Any) -> list[ListedTool]:
    found: list[ListedTool] = []
    async with Client(place) as client:
        page = await client.list_tools()
        found += page.tools
        while page.next_cursor:
            page = await client.list_tools(cursor=page.next_cursor)
            found += page.tools
    return found


def _tool(
    place: Any, listed: ListedTool, approve: bool | Callable[[dict[str, Any]], object] | None
) -> Tool:
    hints = listed.annotations
    only_reads = bool(hints and hints.read_only_hint)
    is_harmless = only_reads or bool(hints and hints.idempotent_hint)

    async def call_remote(*, ctx: Context, call: dict[str, Any], **args: Any) -> str:
        return await RemoteCall(place, listed.name, ctx).call(args, is_harmless)

    def read(args: Any) -> Mapping[str, Any]:
        if clash := {"ctx", "call"} & {*args}:
            raise ValueError(f"arguments cannot be called {', '.join(sorted(clash))}")
        found: Mapping[str, Any] = args
        return found

    return Tool(
        name=listed.name,
        function=call_remote,
        description=listed.description or "",
        schema=listed.input_schema,
        read=read,
        approve=(not only_reads) if approve is None else approve,
        given=("ctx", "call"),
    )


class RemoteFailure(Exception):
    """A server's tool returned an error; the model sees its text."""


class RemoteCall:
    """One call to a server's tool, in a node that may run many times."""

    def __init__(self, place: Any, name: str, ctx: Context) -> None:
        self._place = place
        self._name = name
        self._ctx = ctx

    async def call(self, args: Mapping[str, Any], is_harmless: bool) -> str:
        made = await self._made(args, is_harmless)
        number, seconds, answered = 0, 1.0, set[str]()
        while "task" in made:
            number += 1
            task = await self._ctx.aonce(f"poll {number}", self._get, made["task"])
            if task["status"] == "completed":
                made = task["result"]
            elif task["status"] in ("failed", "cancelled"):
                raise RemoteFailure(f"the remote task {task['status']}")
            else:
                requests: Mapping[str, Any] = task.get("inputRequests") or {}
                for key in [each for each in requests if each not in answered]:
                    answered.add(key)
                    await self._answer(made["task"], key, requests[key]["params"])
                least = float(task.get("pollIntervalMs") or 0) / 1000
                self._ctx.sleep(max(least, seconds))
                seconds = min(2 * seconds, _LONGEST)
        text = "\n".join(part.get("text", "") for part in made.get("content", ()))
        if made.get("isError"):
            raise RemoteFailure(text)
        return text

    async def _made(self, args: Mapping[str, Any], is_harmless: bool) -> dict[str, Any]:
        """Make the call; ask before repeating one that may have been made."""
        number = 0
        while True:
            fresh, made = list[bool](), dict[str, Any]()
            await self._ctx.aonce(f"began {number}", fresh.append, True)
            record = f"made {number}"
            if fresh or is_harmless:
                made = await self._ctx.aonce(record, self.make, dict(args))
            else:
                made = await self._ctx.aonce(record, dict[str, Any], lost=True)
            if "lost" not in made:
                return made
            if not interrupt(f"{self._name} was perhaps called. Call it again?", answer=bool):
                raise RemoteFailure("the call was lost, and a person refused to repeat it")
            number += 1

    async def make(self, args: dict[str, Any]) -> dict[str, Any]:
        extension = _Tasks()
        async with Client(self._place, extensions=[extension]) as client:
            found = await client.call_tool(self._name, args)
        if extension.task is not None:
            return {"task": extension.task}
        made: dict[str, Any] = found.model_dump(mode="json", by_alias=True, exclude_none=True)
        return made

    async def _get(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._request("get", id)
        return found

    async def _answer(self, id: str, key: str, asked: Mapping[str, Any]) -> None:
        if asked.get("mode") == "url":
            interrupt(asked["message"], show={"url": asked["url"]})
            return
        given = interrupt(asked["message"], answer=_Form(asked["requestedSchema"]))
        responses = {key: {"action": "accept", "content": given}}
        await self._ctx.aonce(f"answer {key}", self._request, "update", id, responses)

    async def _request(self, method: str, id: str, responses: Any = None) -> dict[str, Any]:
        params = _Params(taskId=id, inputResponses=responses)
        async with Client(self._place, extensions=[_Tasks()]) as client:
            request = _Ask(method=f"tasks/{method}", params=params)
            found = await client.session.send_request(request, _Found)
        made: dict[str, Any] = found.model_dump(mode="json", by_alias=True)
        return made


class _Form:
    __name__ = "form"

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = dict(schema)

    def model_json_schema(self) -> dict[str, Any]:
        return self._schema

    def model_validate(self, given: Any) -> Any:
        return given


class _Created(Result):
    result_type: Literal["task"] = "task"
    taskId: str  # noqa: N815 - the name on the wire


class _Params(RequestParams):
    taskId: str  # noqa: N815 - the name on the wire
    inputResponses: dict[str, Any] | None = None  # noqa: N815 - the name on the wire


class _Ask(Request[_Params, str]):
    method: str
    params: _Params
    name_param = "taskId"


class _Found(Result, extra="allow"):
    pass


class _Tasks(ClientExtension):
    """Declares that a call may become a task, and keeps its id."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.task: str | None = None

    def claims(self) -> list[ResultClaim[Any]]:
        resolve: Callable[[_Created, ClaimContext], Awaitable[CallToolResult]] = self._keep
        return [ResultClaim(result_type="task", model=_Created, resolve=resolve)]

    async def _keep(self, made: _Created, ctx: ClaimContext) -> CallToolResult:
        self.task = made.taskId
        return CallToolResult(content=[])
