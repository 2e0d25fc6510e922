"""Tasks of MCP clients whose server is killed with SIGKILL in each of their states; and the judge.

The client is the official one. It keeps the task's id, and what it gets in the end is compared with
what was asked for. Each step of the run writes a line to a file before it ends: a finished step has
one line. A second task, started behind the kill, must be another one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal

import msgspec
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequest, CallToolRequestParams

from tests.acceptance.server.mcp_client import Found, Polling, ask
from tests.acceptance.server.mcp_server import McpServer

State = Literal["queued", "running", "question", "answered", "sleeping"]
STEPS = 40
WORK = {"seconds": STEPS / 20, "asks": True, "sleeps": 6}
LIMIT = 120.0


class Outcome(msgspec.Struct):
    """``lost`` tasks are unknown after a kill, ``mixed`` ones have the result of another.

    ``repeated`` are finished steps that ran again, and ``skipped`` those that never did.
    """

    tasks: int = 0
    kills: int = 0
    lost: int = 0
    mixed: int = 0
    repeated: int = 0
    skipped: int = 0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.mixed or self.repeated or self.skipped)


class Killing:
    """Tasks in these states whose server is killed, and a second one behind it."""

    def __init__(self, store: str, folder: Path, how: str = "honest") -> None:
        self._server = McpServer(store)
        self._folder = folder
        self._how = f"{how},hasty"
        self.outcome = Outcome()

    def prove(self, states: Iterable[State], number: int = 0) -> None:
        try:
            asyncio.run(self._course([*states], number))
        finally:
            self._server.kill()

    async def _course(self, states: list[State], number: int) -> None:
        async with asyncio.timeout(LIMIT):
            await self._start("--no-worker" if "queued" in states else "--worker")
            notes = {state: self._folder / f"{state}-{number}" for state in states}
            async with self._client() as caller:
                reached = [await self._reach(caller, state, notes[state]) for state in states]
            await asyncio.to_thread(self._server.kill)
            self.outcome.kills += 1
            ended = [
                _lines(path)[:done] for path, (_, done) in zip(notes.values(), reached, strict=True)
            ]
            await self._start("--worker")
            async with self._client() as caller:
                await self._judge_second(caller, f"second {number}")
                for path, (id, _), before in zip(notes.values(), reached, ended, strict=True):
                    await self._judge(caller, id, path, before)

    async def _start(self, *options: str) -> None:
        await asyncio.to_thread(self._server.start, *options, how=self._how)

    def _client(self) -> AbstractAsyncContextManager[Client]:
        return self._server.client(Polling(lambda params: {"action": "cancel"}))

    async def _begin(self, caller: Client, name: str, given: dict[str, Any]) -> Any:
        """The id of the task, or the result that came at once."""
        self.outcome.tasks += 1
        params = CallToolRequestParams(name=name, arguments=given)
        request = CallToolRequest(params=params)
        found: Any = (await caller.session.send_request(request, Found)).model_dump(by_alias=True)
        return found.get("taskId") or found.get("structuredContent")

    async def _until(
        self, caller: Client, id: str, has_come: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """The task, when this is true of it; an empty one if it is unknown."""
        while True:
            try:
                task = await ask(caller.session, "get", id)
            except MCPError:
                return {}
            if has_come(task):
                return task
            await asyncio.sleep(0.1)

    async def _reach(self, caller: Client, state: State, notes: Path) -> tuple[str, int]:
        """Lead a new task to the state; return its id, and how many steps surely ended."""
        id = await self._begin(caller, "work", {**WORK, "notes": str(notes)})
        if state == "queued":
            return id, 0
        if state == "running":
            while not notes.exists():  # noqa: ASYNC110, ASYNC240 - another process writes it
                await asyncio.sleep(0.02)
            return id, max(0, len(_lines(notes)) - 1)
        asked = await self._until(caller, id, lambda task: task["status"] == "input_required")
        if state != "question":
            await self._answer(caller, id, asked)
        if state == "sleeping":
            await self._until(caller, id, lambda task: "sleeping" in task.get("statusMessage", ""))
        return id, STEPS // 2

    async def _answer(self, caller: Client, id: str, asked: dict[str, Any]) -> None:
        response = {"action": "accept", "content": {"answer": True}}
        await ask(caller.session, "update", id, dict.fromkeys(asked["inputRequests"], response))

    async def _judge_second(self, caller: Client, name: str) -> None:
        found = await self._begin(caller, "greet", {"name": name})
        if isinstance(found, str):
            task = await self._until(caller, found, lambda task: task["status"] == "completed")
            found = task.get("result", {}).get("structuredContent")
        if found != {"name": name, "text": f"Hello, {name}!"}:
            self.outcome.mixed += 1

    async def _judge(self, caller: Client, id: str, notes: Path, ended: list[str]) -> None:
        task = await self._until(caller, id, lambda one: True)
        while task and task["status"] != "completed":
            if task["status"] == "input_required":
                await self._answer(caller, id, task)
            else:
                await asyncio.sleep(0.1)
            task = await self._until(caller, id, lambda one: True)
        if not task:
            self.outcome.lost += 1
            return
        found: dict[str, Any] = task["result"].get("structuredContent", {})
        if found.get("notes") != str(notes) or found.get("agreed") is not True:
            self.outcome.mixed += 1
            return
        counts = Counter(_lines(notes))
        self.outcome.skipped += STEPS - len(counts)
        self.outcome.repeated += sum(counts[line] - 1 for line in ended)


def _lines(notes: Path) -> list[str]:
    return notes.read_text("utf-8").splitlines() if notes.exists() else []


def prove(store: str, folder: Path, rounds: int = 1) -> Outcome:
    """Kill a server with tasks in every state, so many times."""
    killing = Killing(store, folder)
    for number in range(rounds):
        killing.prove(["queued"], number)
        killing.prove(["sleeping", "question", "running", "answered"], number)
    return killing.outcome
