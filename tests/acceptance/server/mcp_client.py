"""A client of the tasks extension, made of the official SDK's parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result

Answerer = Callable[[dict[str, Any]], dict[str, Any]]


class Created(Result):
    result_type: Literal["task"] = "task"
    taskId: str  # noqa: N815
    status: str


class Params(RequestParams):
    taskId: str  # noqa: N815
    inputResponses: dict[str, Any] | None = None  # noqa: N815


class TaskRequest(Request[Params, str]):
    method: str
    params: Params
    name_param = "taskId"


class Found(Result, extra="allow"):
    pass


async def ask(session: Any, method: str, id: str, responses: Any = None) -> dict[str, Any]:
    """Send a request of the extension; return its result."""
    params = Params(taskId=id, inputResponses=responses)
    found = await session.send_request(TaskRequest(method=f"tasks/{method}", params=params), Found)
    made: dict[str, Any] = found.model_dump(by_alias=True)
    return made


class Polling(ClientExtension):
    """Polls a task to its end, and answers what it asks."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, answer: Answerer) -> None:
        self.answer = answer
        self.ids: list[str] = []
        self.statuses: list[str] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, made: Created, ctx: ClaimContext) -> CallToolResult:
        self.ids.append(made.taskId)
        seen = set[str]()
        while True:
            task = await ask(ctx.session, "get", made.taskId)
            self.statuses.append(task["status"])
            if task["status"] == "completed":
                return CallToolResult.model_validate(task["result"])
            if task["status"] == "cancelled":
                return CallToolResult(content=[], is_error=True)
            requests: dict[str, Any] = task.get("inputRequests") or {}
            for key, request in requests.items():
                if key not in seen:
                    seen.add(key)
                    await ask(
                        ctx.session, "update", made.taskId, {key: self.answer(request["params"])}
                    )
            await asyncio.sleep(0.05)


def client(server: Any, extension: ClientExtension | None = None, **more: Any) -> Client:
    extensions = [] if extension is None else [extension]
    return Client(server, extensions=extensions, mode="2026-07-28", **more)
