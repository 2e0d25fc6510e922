"""Tools of MCP servers: approvals, remote tasks, and calls that were perhaps made."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from mcp.server.mcpserver.server import MCPServer
from mcp_types import ToolAnnotations

from milecastle import App, ExecutionError
from milecastle.agents import agent
from milecastle.agents import mcp as remote
from milecastle.agents.mcp import mcp_tools
from milecastle.server.mcp.tools import GraphTools
from milecastle.server.service import Service
from tests.acceptance.server.test_mcp import ME, orders

ASKED = cast("Any", {"messages": [{"role": "user", "content": "go", "id": "u"}]})


def model_of(name: str, args: dict[str, Any]) -> Any:
    def model(messages: list[dict[str, Any]], tools: list[Any]) -> Any:
        assert name in [each["name"] for each in tools]
        if messages[-1]["role"] == "tool":
            return messages[-1]["content"]
        return {"tool_calls": [{"name": name, "args": args}]}

    return model


def library(made: list[str]) -> MCPServer[Any]:
    found: MCPServer[Any] = MCPServer("library")

    def look(title: str) -> str:
        made.append(f"look {title}")
        if title == "none":
            raise ValueError("no such book")
        return f"{title} is here"

    def lend(title: str) -> str:
        made.append(f"lend {title}")
        return f"{title} is yours"

    found.add_tool(look, annotations=ToolAnnotations(read_only_hint=True))
    found.add_tool(lend)
    return found


def test_tools_that_only_read_are_called_and_others_are_approved() -> None:
    made: list[str] = []
    tools = mcp_tools(library(made))
    assert {each.name: each.approve for each in tools} == {"look": False, "lend": True}
    app: App[Any] = agent(model_of("look", {"title": "a"}), tools).compile(store="memory://")
    assert app.invoke(ASKED, thread="t")["messages"][-1]["content"] == "a is here"
    app = agent(model_of("look", {"title": "none"}), tools).compile(store="memory://")
    assert "Error executing tool look" in app.invoke(ASKED, thread="t")["messages"][-1]["content"]
    app = agent(model_of("lend", {"title": "b"}), tools).compile(store="memory://")
    assert app.invoke(ASKED, thread="t").interrupts
    assert app.resume("t", {"approve": True})["messages"][-1]["content"] == "b is yours"
    assert made == ["look a", "look none", "lend b"]


def test_call_that_was_perhaps_made_is_made_again_only_if_a_person_agrees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    app: App[Any] = agent(
        model_of("lend", {"title": "b"}), mcp_tools(library(made), approve=False)
    ).compile(store="memory://")
    real = remote.RemoteCall.make

    async def lost(self: Any, args: Any) -> Any:
        await real(self, args)
        raise KeyboardInterrupt  # the process ends before the result is recorded

    monkeypatch.setattr(remote.RemoteCall, "make", lost)
    with pytest.raises(ExecutionError):
        app.invoke(ASKED, thread="t")
    monkeypatch.setattr(remote.RemoteCall, "make", real)
    asked = app.resume("t").interrupts[0]
    assert asked.question == "lend was perhaps called. Call it again?"
    refused = app.resume("t", answer=False)
    assert "refused to repeat" in refused["messages"][-1]["content"]
    assert made == ["lend b"]


def test_remote_task_is_slept_for_and_asks_on_our_thread() -> None:
    priced: list[str] = []

    async def test() -> None:
        service = Service([orders("memory://", priced)], worker=True)
        async with service.running():
            server = GraphTools(service, lambda ctx: ME).server()
            tools = await asyncio.to_thread(mcp_tools, server, approve=False)
            app: App[Any] = agent(model_of("orders", {"item": "lamp"}), tools).compile(
                store="memory://"
            )
            result = await app.ainvoke(ASKED, thread="t")
            assert result.interrupts[0].question.startswith("Buy lamp?")
            result = await app.aresume("t", {"answer": True})
            while result.status == "sleeping":
                await asyncio.sleep(1.05)
                result = await app.aresume("t")
            assert '"agreed": true' in result["messages"][-1]["content"]

    asyncio.run(test())
    assert priced == ["lamp"]
