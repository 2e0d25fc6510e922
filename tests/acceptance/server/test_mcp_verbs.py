"""N4: ``milecastle mcp`` on standard input and output, ``serve --mcp`` over HTTP, operations."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from milecastle.server import asgi
from tests.acceptance.server.mcp_client import Polling, ask, client
from tests.acceptance.server.processes import ROOT
from tests.acceptance.server.test_mcp import accept, orders

GRAPH = """
import os, time
from typing import NotRequired, TypedDict
from milecastle import END, START, StateGraph, interrupt

class Order(TypedDict):
    item: str
    agreed: NotRequired[bool]

graph = StateGraph(Order, name="orders")

@graph.node
def price(state: Order) -> dict:
    with open("priced", "a") as file:
        file.write("x")
    return {}

@graph.node
def ask(state: Order) -> dict:
    print("a stray line")
    return {"agreed": interrupt("Buy it?", answer=bool)}

graph.add_edges(START, "price", "ask", END)
app = graph.compile(store="sqlite:///runs.db")
"""


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(limited())


def server(folder: Path, *arguments: str) -> StdioServerParameters:
    (folder / "orders.py").write_text(GRAPH)
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "milecastle", "mcp", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.requirement("N4", api="milecastle mcp")
def test_a_task_outlives_the_process_that_serves_it(tmp_path: Path) -> None:
    """Its process ends while the question is open; the next one ends the same task."""

    async def test() -> None:
        leaving = Polling(lambda params: {"action": "cancel"})
        async with client(server(tmp_path, "orders:app"), leaving) as one:
            call = asyncio.ensure_future(one.call_tool("orders", {"item": "lamp"}))
            while "input_required" not in leaving.statuses:  # noqa: ASYNC110 - clients poll
                await asyncio.sleep(0.05)
            call.cancel()
        async with client(server(tmp_path, "orders:app"), Polling(accept)) as two:
            task = await ask(two.session, "get", leaving.ids[0])
            (key,) = task["inputRequests"]
            await ask(two.session, "update", leaving.ids[0], {key: accept({})})
            while task["status"] != "completed":
                await asyncio.sleep(0.05)
                task = await ask(two.session, "get", leaving.ids[0])
            assert task["result"]["structuredContent"] == {"item": "lamp", "agreed": True}

    on_loop(test)
    assert (tmp_path / "priced").read_text() == "x"


@pytest.mark.requirement("N4", api="milecastle serve --mcp")
def test_graphs_are_tools_over_http_for_those_with_a_token(tmp_path: Path) -> None:
    """The same tokens and checks as for the API; without one nothing is answered."""
    token = "t" * 40
    served = asgi(orders(f"sqlite:///{tmp_path}/o.db", []), token=token, hosts=["server"], mcp=True)
    transport = httpx2.ASGITransport(served)

    def http(headers: dict[str, str]) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=transport, base_url="http://server", headers=headers)

    async def test() -> None:
        async with served.lifespan():
            async with http({}) as bare:
                assert (await bare.post("/mcp", json={})).status_code == 401
            async with http(
                {"Origin": "http://elsewhere", "Authorization": f"Bearer {token}"}
            ) as other:
                assert (await other.post("/mcp", json={})).status_code == 403
            async with http({"Authorization": f"Bearer {token}"}) as known:
                place = streamable_http_client("http://server/mcp", http_client=known)
                async with client(place, Polling(accept)) as caller:
                    result = await caller.call_tool("orders", {"item": "lamp"})
                    assert result.structured_content["agreed"] is True

    on_loop(test)


@pytest.mark.requirement("N4", api="milecastle mcp --ops STORE")
def test_operations_read_a_store_and_write_only_if_asked(tmp_path: Path) -> None:
    """``--write`` works on the store of ``--ops``, whatever store the app has."""
    folder = tmp_path / "kept"
    folder.mkdir()
    app = orders(f"sqlite:///{folder}/o.db", [])
    app.invoke({"item": "lamp"}, thread="o-1")
    with pytest.raises(Exception, match="LookupError"):
        app.invoke({"item": "fails"}, thread="o-2")
    app.close()
    (tmp_path / "shop.py").write_text(
        "from tests.acceptance.server.test_mcp import orders\n"
        "app = orders('sqlite:///elsewhere.db', [])\n"
    )
    (tmp_path / "hiding.py").write_text("def redact(place, value):\n    return '[hidden]'\n")
    place = f"sqlite:///{folder}/o.db"

    async def call(caller: Client, name: str, **given: Any) -> Any:
        result: Any = await caller.call_tool(name, given)
        text = result.content[0].text
        return text if result.is_error else json.loads(text)

    async def test() -> None:
        async with Client(server(tmp_path, "--ops", place)) as caller:
            found = await call(caller, "list_threads", status="interrupted")
            assert [line["thread"] for line in found["threads"]] == ["o-1"]
            shown = await call(caller, "show", thread="o-1")
            assert (shown["state"], len(shown["questions"])) == ({"item": "lamp", "price": 30}, 1)
            assert len((await call(caller, "history", thread="o-1"))["checkpoints"]) == 3
            changes = (await call(caller, "diff", thread="o-1", first=1, second=2))["changes"]
            assert [change["path"] for change in changes] == ["$.price"]
            assert (await call(caller, "why", thread="o-2"))["status"] == "failed"
            assert (await call(caller, "queue"))["lanes"] == []
            assert (await call(caller, "errors", code="301"))["code"] == "MC301"
            assert "no such error code" in await call(caller, "errors", code="no")
            for wrong in ({"thread": "no"}, {"thread": "o-1", "seq": 99}):
                assert "Error" in await call(caller, "show", **wrong)
            assert "scope admin" in await call(caller, "cancel", thread="o-1")
        async with Client(server(tmp_path, "--ops", place, "--redact", "hiding")) as caller:
            assert (await call(caller, "show", thread="o-1"))["state"]["item"] == "[hidden]"
        async with Client(server(tmp_path, "shop", "--ops", place, "--write")) as caller:
            written = await call(caller, "fork", thread="o-1", seq=2, as_thread="o-3")
            assert written["checkpoint"]["seq"] >= 1
            assert (await call(caller, "cancel", thread="o-3"))["cancelled"] is True
            (question,) = (await call(caller, "show", thread="o-1"))["questions"]
            answered = {"thread": "o-1", "question": question["id"], "answer": True}
            assert "run_id" in await call(caller, "answer", **answered)
            assert "run_id" in await call(caller, "retry", thread="o-2")

    on_loop(test)
