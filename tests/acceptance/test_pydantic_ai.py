"""Agents of Pydantic AI in nodes: what is recorded, under which names, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import pytest
from pydantic import ValidationError
from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from milecastle import (
    END,
    START,
    ExecutionError,
    Retry,
    StateGraph,
    ThreadKey,
    current,
    interrupt,
)
from milecastle.integrations.pydantic_ai import MilecastleDurability
from milecastle.stores.memory import MemoryStore


class State(TypedDict):
    answers: list[str]


calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def model_of(name: str, *tools: ToolCallPart) -> FunctionModel:
    """Calls these tools at once, then says what they returned."""

    async def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = sum(isinstance(message, ModelResponse) for message in messages)
        calls.append(f"{name} {said}")
        if tools and not said:
            return ModelResponse(parts=[*tools])
        returned = [str(getattr(part, "content", "")) for part in messages[-1].parts]
        return ModelResponse(parts=[TextPart(" ".join(returned))])

    return FunctionModel(scripted)


def agent_of(name: str, *tools: ToolCallPart) -> Agent[object, str]:
    return Agent(model_of(name, *tools), name=name, capabilities=[MilecastleDurability[object]()])


def run(node: Any, store: MemoryStore) -> list[str]:
    graph = StateGraph(State)
    graph.add_node("node", node, retry=Retry(attempts=3, delay=0))
    graph.add_edges(START, "node", END)
    answers: list[str] = graph.compile(store=store).invoke({"answers": []}, thread="t")["answers"]
    return answers


def test_agents_below_parallel_tools_get_their_own_records() -> None:
    """One tool has ended, the other fails after its own agent was asked: only that one runs again.

    Fails if runs of agents are counted without the tool that they are below: the agent of the
    second tool then gets the records of the first.
    """
    inner = agent_of("inner")
    outer = agent_of("outer", ToolCallPart("first", {}), ToolCallPart("second", {}))
    failures: list[str] = []

    @outer.tool_plain
    async def first() -> str:
        return (await inner.run("one")).output

    @outer.tool_plain
    async def second() -> str:
        said = (await inner.run("two")).output
        if not failures:
            await asyncio.sleep(0.2)
            failures.append("second")
            raise ConnectionError
        return said

    async def node(state: State) -> dict[str, list[str]]:
        return {"answers": [(await outer.run("?")).output]}

    assert run(node, MemoryStore()) == ["one two"]
    assert calls == ["outer 0", "inner 0", "inner 0", "outer 1"]


def test_several_runs_of_an_agent_in_a_node_are_told_apart() -> None:
    """Two in parallel and one after, in a node that fails at its end.

    Fails if the id of a run is not the same in each attempt, or is the same for all of them.
    """
    agent = agent_of("a")
    attempts: list[int] = []

    async def node(state: State) -> dict[str, list[str]]:
        both = await asyncio.gather(agent.run("one"), agent.run("two"))
        third = await agent.run("three")
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError
        return {"answers": [done.output for done in (*both, third)]}

    assert run(node, MemoryStore()) == ["one", "two", "three"]
    assert (len(attempts), calls) == (3, ["a 0"] * 3)


def test_an_agent_in_a_sync_node_and_outside_of_nodes() -> None:
    """Fails if the capability needs a node, or an event loop of ours."""
    agent = agent_of("a", ToolCallPart("double", {"n": 2}))

    @agent.tool_plain
    def double(n: int) -> int:
        return 2 * n

    def node(state: State) -> dict[str, list[str]]:
        return {"answers": [asyncio.run(agent.run("?")).output]}

    assert run(node, MemoryStore()) == ["4"]
    assert asyncio.run(agent.run("?")).output == "4"


def test_a_tool_that_asks_is_refused() -> None:
    """Fails if the question is let through: after a resume its answer would be another's."""
    agent = agent_of("a", ToolCallPart("pay", {}))

    @agent.tool_plain
    async def pay() -> bool:
        return interrupt("Pay?", answer=bool)

    async def node(state: State) -> None:
        await agent.run("?")

    with pytest.raises(ExecutionError, match="cannot ask or sleep"):
        run(node, MemoryStore())


def test_a_record_that_is_not_a_response_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a record is used without being validated."""
    agent = agent_of("a")
    store, ran = MemoryStore(), list[str]()

    async def node(state: State) -> None:
        ctx, record = current(), type(current()).aonce

        async def damaged(self: Any, name: str, *rest: Any) -> Any:
            ran.append(name)
            found = await record(self, name, *rest)
            return {**found, "kind": "request", "parts": [{"part_kind": "nothing"}]}

        monkeypatch.setattr(type(ctx), "aonce", damaged)
        await agent.run("?")

    with pytest.raises(ExecutionError) as raised:
        run(node, store)
    assert isinstance(raised.value.__cause__, ValidationError)
    assert ran
    assert store.head(ThreadKey("default", "t")) is not None
