"""N4: graphs are tools of the Model Context Protocol, and their runs durable tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from milecastle import END, START, App, Context, StateGraph, interrupt
from milecastle.agents import agent
from milecastle.server.identity import ALL_SCOPES, Identity
from milecastle.server.mcp.forms import form_of
from milecastle.server.mcp.tasks import Tasks
from milecastle.server.mcp.tools import GraphTools
from milecastle.server.service import Service
from tests.acceptance.server.mcp_client import Polling, ask, client


class Order(TypedDict):
    """Order something, after a person has agreed."""

    item: str
    agreed: NotRequired[bool]
    price: NotRequired[int]


def orders(store: str, priced: list[str]) -> App[Order]:
    graph = StateGraph(Order, name="orders")

    @graph.node
    def price(state: Order) -> dict[str, Any]:
        priced.append(state["item"])
        if state["item"] == "fails":
            raise LookupError("a secret")
        return {"price": 30}

    @graph.node
    def ask(state: Order) -> dict[str, Any]:
        return {"agreed": interrupt(f"Buy {state['item']}?", show={"price": 30}, answer=bool)}

    @graph.node
    def sleep(state: Order, ctx: Context) -> dict[str, Any]:
        if state["item"] == "slow":
            ctx.sleep(0.7)
        return {}

    graph.add_edge(START, "price")
    graph.add_edge("price", END, when=lambda state: state["item"] == "quick")
    graph.add_edge("price", "ask")
    graph.add_edges("ask", "sleep", END)
    return graph.compile(store=store)


ME = Identity("default", ALL_SCOPES, "me")


@asynccontextmanager
async def served(app: App[Any], *, caller: Identity = ME) -> AsyncGenerator[Any, None]:
    service = Service([app], worker=True)
    async with service.running():
        yield GraphTools(service, lambda ctx: caller).server()


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


def accept(params: dict[str, Any]) -> dict[str, Any]:
    return {"action": "accept", "content": {"answer": True}}


@pytest.mark.requirement("N4", api="milecastle mcp")
def test_a_graph_is_a_tool_and_its_run_a_task(tmp_path: Path) -> None:
    """A call becomes a task; its question is an input request, and its output the result."""
    asked: list[dict[str, Any]] = []
    priced: list[str] = []

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        asked.append(params)
        return accept(params)

    async def test() -> None:
        polling = Polling(answer)
        async with (
            served(orders(f"sqlite:///{tmp_path}/o.db", priced)) as server,
            client(server, polling) as caller,
        ):
            (tool,) = (await caller.list_tools()).tools
            assert (tool.name, tool.description) == ("orders", Order.__doc__)
            assert tool.input_schema["properties"]["item"] == {"type": "string"}
            result = await caller.call_tool("orders", {"item": "slow"})
            assert result.structured_content == {"item": "slow", "agreed": True, "price": 30}
            assert polling.statuses[-1] == "completed"
            assert {"working", "input_required"} <= {*polling.statuses}
            quick = await caller.call_tool("orders", {"item": "quick"})
            assert quick.structured_content == {"item": "quick", "price": 30}
            assert len(polling.ids) <= 2

    on_loop(test)
    assert priced == ["slow", "quick"]
    assert asked[0]["message"] == 'Buy slow?\n{"price": 30}'
    assert asked[0]["requestedSchema"]["properties"] == {"answer": {"type": "boolean"}}


@pytest.mark.requirement("N4", api="milecastle mcp")
def test_a_task_continues_under_its_id_on_another_server(tmp_path: Path) -> None:
    """The server ends while the question is open; the node before it does not run again."""
    priced: list[str] = []
    store = f"sqlite:///{tmp_path}/o.db"

    async def test() -> None:
        async with served(orders(store, priced)) as server, client(server, Polling(accept)) as one:
            request = asyncio.ensure_future(_started(one))
            id = await request
        async with served(orders(store, priced)) as server, client(server, Polling(accept)) as two:
            task = await ask(two.session, "get", id)
            (key,) = task["inputRequests"]
            wrong = {key: {"action": "accept", "content": {"answer": "perhaps"}}}
            with pytest.raises(MCPError, match="boolean"):
                await ask(two.session, "update", id, wrong)
            late = {"unknown": accept({}), key: accept({})}
            await ask(two.session, "update", id, late)
            await ask(two.session, "update", id, late)  # the second answer is ignored
            while (task := await ask(two.session, "get", id))["status"] != "completed":  # noqa: ASYNC110 - clients poll
                await asyncio.sleep(0.05)
            assert task["result"]["structuredContent"]["agreed"] is True

    on_loop(test)
    assert priced == ["lamp"]


def leave(params: dict[str, Any]) -> dict[str, Any]:
    return {"action": "cancel"}


async def _started(caller: Any) -> str:
    """Call the tool, and leave when its task asks."""
    extension = caller.extensions[0]
    call = asyncio.ensure_future(caller.call_tool("orders", {"item": "lamp"}))
    extension.answer = leave
    while "input_required" not in extension.statuses:  # noqa: ASYNC110 - it is told nothing
        await asyncio.sleep(0.02)
    call.cancel()
    found: str = extension.ids[0]
    return found


@pytest.mark.requirement("N4", api="milecastle mcp")
def test_tasks_of_another_tenant_are_unknown(tmp_path: Path) -> None:
    """Broken on purpose: the tenant taken from the id; scopes that were not checked."""
    app = orders(f"sqlite:///{tmp_path}/o.db", [])

    async def test() -> None:
        async with served(app) as server, client(server, Polling(accept)) as mine:
            id = await _started(mine)
        other = Identity("other", ALL_SCOPES)
        async with served(app, caller=other) as server, client(server, Polling(accept)) as theirs:
            wanted: list[tuple[str, Any]] = [("get", None), ("update", {}), ("cancel", None)]
            for method, responses in wanted:
                with pytest.raises(MCPError, match="no such task"):
                    await ask(theirs.session, method, id, responses)
        reader = Identity("default", frozenset({"read"}))
        async with served(app, caller=reader) as server, client(server, Polling(accept)) as reads:
            assert (await ask(reads.session, "get", id))["status"] == "input_required"
            for method, responses in wanted[1:]:
                with pytest.raises(MCPError, match="scope"):
                    await ask(reads.session, method, id, responses)
            with pytest.raises(MCPError, match="scope run"):
                await reads.call_tool("orders", {"item": "lamp"})
        async with served(app) as server, client(server) as plain:
            with pytest.raises(MCPError, match="extension"):
                await ask(plain.session, "get", id)

    on_loop(test)


def test_tenant_in_an_id_lets_strangers_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: an id that names its tenant finds the task of another."""

    def find(self: Any, caller: Identity, id: str) -> Any:
        tenant, _, rest = id.rpartition(":")
        return honest(self, msgspec.structs.replace(caller, tenant=tenant or "default"), rest)

    honest = vars(Tasks)["_find"]
    app = orders(f"sqlite:///{tmp_path}/o.db", [])

    async def test() -> None:
        async with served(app) as server, client(server, Polling(accept)) as mine:
            id = await _started(mine)
        monkeypatch.setattr(Tasks, "_find", find)
        other = Identity("other", ALL_SCOPES)
        async with served(app, caller=other) as server, client(server, Polling(accept)) as theirs:
            assert (await ask(theirs.session, "get", f"default:{id}"))["taskId"]

    on_loop(test)


def test_a_client_without_tasks_waits_and_is_asked_in_the_answer(tmp_path: Path) -> None:
    async def elicited(ctx: Any, params: Any) -> Any:
        from mcp_types import ElicitResult

        return ElicitResult(action="accept", content={"answer": True})

    async def test() -> None:
        app = orders(f"sqlite:///{tmp_path}/o.db", [])
        async with served(app) as server, client(server, elicitation_callback=elicited) as caller:
            result = await caller.call_tool("orders", {"item": "lamp"})
            assert result.structured_content == {"item": "lamp", "agreed": True, "price": 30}
        async with served(app) as server, Client(server, mode="legacy") as old:
            answer: Any = await old.call_tool("orders", {"item": "lamp"})
            assert answer.is_error
            assert "continues as thread 'mcp~" in answer.content[0].text

    on_loop(test)


def test_a_client_without_tasks_fetches_the_result_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: leaving ``result`` cancelled the run; another tenant got the result."""
    monkeypatch.setattr("milecastle.server.mcp.tools._PATIENCE", 0.2)
    app = orders(f"sqlite:///{tmp_path}/o.db", [])

    async def test() -> None:
        async with served(app) as server, Client(server, mode="legacy") as old:
            names = [tool.name for tool in (await old.list_tools()).tools]
            assert names == ["orders", "result"]
            answer: Any = await old.call_tool("orders", {"item": "lamp"})
            thread = answer.content[0].text.split("'")[1]
            late: Any = await old.call_tool("result", {"thread": thread})
            assert late.is_error
            app.answer(thread, answer=True)
            while (late := await old.call_tool("result", {"thread": thread})).is_error:
                pass
            assert late.structured_content == {"item": "lamp", "agreed": True, "price": 30}
            with pytest.raises(MCPError, match="no such task"):
                await old.call_tool("result", {"thread": "orders"})
        other = Identity("other", frozenset({"read"}))
        async with served(app, caller=other) as server, Client(server, mode="legacy") as theirs:
            with pytest.raises(MCPError, match="no such task"):
                await theirs.call_tool("result", {"thread": thread})
        async with served(app) as server, client(server, Polling(accept)) as caller:
            assert [tool.name for tool in (await caller.list_tools()).tools] == ["orders"]

    on_loop(test)


def test_a_graph_named_result_takes_the_place_of_the_tool(tmp_path: Path) -> None:
    graph = StateGraph(Order, name="result")
    graph.add_node("price", lambda state: {"price": 7})
    graph.add_edges(START, "price", END)
    app = graph.compile(store=f"sqlite:///{tmp_path}/o.db")

    async def test() -> None:
        async with served(app) as server, Client(server, mode="legacy") as old:
            assert [tool.name for tool in (await old.list_tools()).tools] == ["result"]
            answer: Any = await old.call_tool("result", {"item": "lamp"})
            assert answer.structured_content == {"item": "lamp", "price": 7}

    on_loop(test)


def test_a_waiting_call_reports_its_progress(tmp_path: Path) -> None:
    """Broken on purpose: the call that slept until its end; a report for each look."""
    seen: list[tuple[float, str | None]] = []

    async def told(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    graph = StateGraph(Order, name="slow")

    @graph.node
    async def price(state: Order) -> dict[str, Any]:
        await asyncio.sleep(2.5)
        return {"price": 1}

    graph.add_edges(START, "price", END)
    app = graph.compile(store=f"sqlite:///{tmp_path}/o.db")

    async def test() -> None:
        async with served(app) as server, Client(server, mode="legacy") as old:
            await old.call_tool("slow", {"item": "lamp"}, progress_callback=told)

    on_loop(test)
    assert [number for number, _ in seen] == [*range(1, len(seen) + 1)]
    assert "running at price" in [message for _, message in seen]
    assert len(seen) <= 4


def test_failures_and_cancellations_are_results(tmp_path: Path) -> None:
    async def test() -> None:
        app = orders(f"sqlite:///{tmp_path}/o.db", [])
        polling = Polling(lambda params: {"action": "decline"})
        async with served(app) as server, client(server, polling) as caller:
            failed: Any = await caller.call_tool("orders", {"item": "fails"})
            assert (failed.is_error, failed.content[0].text) == (
                True,
                "the run failed: LookupError",
            )
            assert (await caller.call_tool("orders", {"item": "lamp"})).is_error  # declined
            assert polling.statuses[-1] == "cancelled"
            wrong = await caller.call_tool("orders", {"thing": "lamp"})
            assert wrong.is_error
            with pytest.raises(MCPError, match="no tool"):
                await caller.call_tool("nothing", {})
            id = await _started_again(caller)
            await ask(caller.session, "cancel", id)
            assert (await ask(caller.session, "get", id))["status"] == "cancelled"

    on_loop(test)


async def _started_again(caller: Any) -> str:
    caller.extensions[0].ids.clear()
    caller.extensions[0].statuses.clear()
    return await _started(caller)


def test_an_approval_of_an_agent_is_a_form(tmp_path: Path) -> None:
    def refund(amount: int) -> str:
        return f"paid {amount}"

    def model(messages: list[dict[str, Any]]) -> Any:
        if messages[-1]["role"] == "tool":
            return messages[-1]["content"]
        return {"tool_calls": [{"name": "refund", "args": {"amount": 30}}]}

    app: App[Any] = agent(model, [refund], approve=True).compile(store=f"sqlite:///{tmp_path}/a.db")

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        assert [*params["requestedSchema"]["properties"]] == ["approve", "reason"]
        return {"action": "accept", "content": {"approve": False, "reason": "too much"}}

    async def test() -> None:
        async with served(app) as server, client(server, Polling(answer)) as caller:
            said = {"messages": [{"role": "user", "content": "refund me"}]}
            result = await caller.call_tool("agent", said)
            last = result.structured_content["messages"][-1]
            assert last["content"] == "a person refused this call: too much"

    on_loop(test)


class Level(msgspec.Struct):
    level: Literal["low", "high"]
    many: list[int] = []


def test_questions_become_forms_and_forms_answers() -> None:
    schema = msgspec.json.schema(Level)
    form = form_of(schema)
    assert form.schema["properties"] == {"level": {"enum": ["high", "low"], "type": "string"}}
    assert form.read({"level": "low"}) == {"level": "low"}
    text = form_of({"type": "string", "minLength": 2})
    assert text.schema["properties"] == {"answer": {"type": "string", "minLength": 2}}
    assert text.read({"answer": "no"}) == "no"
    anything = form_of(None)
    assert anything.read({"answer": '{"a": [1]}'}) == {"a": [1]}
    for content in ({}, {"answer": "{"}, {"answer": 3}):
        with pytest.raises(ValueError, match="answer"):
            anything.read(content)
    deep = form_of({"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]})
    assert deep.kind == "json"
