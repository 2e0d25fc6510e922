"""Clients of the MCP server that leave while their call waits, over HTTP and on standard output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters

from tests.acceptance.server.mcp_client import Polling, ask, client
from tests.acceptance.server.mcp_server import GRAPHS, McpServer, mcp_server
from tests.acceptance.server.processes import LIMIT, ROOT
from tests.postgres_cluster import wait_until


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def on_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(limited())


async def begun(notes: Path) -> None:
    """Wait until the run works."""
    while not notes.exists():  # noqa: ASYNC110, ASYNC240 - another process writes it
        await asyncio.sleep(0.05)


def statuses(server: McpServer, wanted: str) -> dict[str, str]:
    """The threads, when each has this status, or after some time."""
    try:
        wait_until(lambda: {*server.threads().values()} == {wanted}, 15)
    except AssertionError:
        return server.threads()
    return server.threads()


def test_call_of_a_client_without_tasks_is_cancelled_when_it_leaves(
    tmp_path: Path, notes: Path
) -> None:
    """Fails if the run goes on until its end."""

    async def leave(server: McpServer) -> None:
        async with server.client() as caller:
            call = asyncio.ensure_future(
                caller.call_tool("work", {"seconds": 20, "notes": str(notes)})
            )
            await begun(notes)
            call.cancel()
            await asyncio.wait([call])

    with mcp_server(f"sqlite:///{tmp_path}/runs.db") as server:
        on_loop(lambda: leave(server))
        assert [*statuses(server, "cancelled").values()] == ["cancelled"]


def test_task_continues_when_its_client_leaves(tmp_path: Path, notes: Path) -> None:
    """Fails if whoever leaves cancels."""

    async def leave(server: McpServer) -> None:
        polling = Polling(lambda params: {"action": "cancel"})
        async with server.client(polling) as caller:
            call = asyncio.ensure_future(
                caller.call_tool("work", {"seconds": 2, "notes": str(notes)})
            )
            while not polling.ids:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            call.cancel()
            await asyncio.wait([call])

    with mcp_server(f"sqlite:///{tmp_path}/runs.db") as server:
        on_loop(lambda: leave(server))
        assert [*statuses(server, "completed").values()] == ["completed"]


def test_call_continues_when_its_server_stops(tmp_path: Path, notes: Path) -> None:
    """And is answered. Fails if a server that stops is taken for a client that leaves."""

    async def stop(server: McpServer) -> None:
        async with server.client() as caller:
            call = asyncio.ensure_future(
                caller.call_tool("work", {"seconds": 6, "notes": str(notes)})
            )
            await begun(notes)
            assert server.process is not None
            await asyncio.to_thread(server.process.stop, signal.SIGTERM)
            assert "continues as thread" in str(await call)

    with mcp_server(f"sqlite:///{tmp_path}/runs.db") as server:
        on_loop(lambda: stop(server))
        server.kill()
        server.start()
        assert "cancelled" not in server.threads().values()
        assert [*statuses(server, "completed").values()] == ["completed"]


def test_client_of_an_older_revision_does_not_cancel_by_leaving(
    tmp_path: Path, notes: Path
) -> None:
    """Before 2026-07-28 a stream that ends is not a cancellation."""

    async def leave(server: McpServer) -> None:
        http = httpx2.AsyncClient(headers=server.headers, timeout=LIMIT)
        async with http, Client(server.place(http), mode="legacy") as caller:
            given = {"seconds": 2, "notes": str(notes)}
            call = asyncio.ensure_future(caller.call_tool("work", given))
            await begun(notes)
            call.cancel()
            await asyncio.wait([call])

    with mcp_server(f"sqlite:///{tmp_path}/runs.db") as server:
        on_loop(lambda: leave(server))
        assert [*statuses(server, "completed").values()] == ["completed"]


def test_call_on_standard_output_is_cancelled_by_a_notification(
    tmp_path: Path, notes: Path
) -> None:
    """Fails if the run goes on."""
    arguments = ["-m", "milecastle", "mcp", GRAPHS, "--store", f"sqlite:///{tmp_path}/runs.db"]
    place = StdioServerParameters(
        command=sys.executable, args=arguments, cwd=ROOT, env={**os.environ}
    )

    async def test() -> None:
        polling = Polling(lambda params: {"action": "cancel"})
        async with client(place) as caller:
            call = asyncio.ensure_future(
                caller.call_tool("work", {"seconds": 20, "notes": str(notes)})
            )
            await begun(notes)
            call.cancel()
            await asyncio.wait([call])
            size = -1
            while size != (size := notes.stat().st_size):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.5)
        assert polling.ids == []

    on_loop(test)
    assert len(notes.read_text().splitlines()) < 100


def test_call_may_be_cancelled_before_its_task_has_an_id(tmp_path: Path, notes: Path) -> None:
    """Nobody would have the id of that task. Fails if the run goes on."""

    async def leave(server: McpServer) -> None:
        polling = Polling(lambda params: {"action": "cancel"})
        async with server.client(polling) as caller:
            call = asyncio.ensure_future(
                caller.call_tool("work", {"seconds": 20, "notes": str(notes)})
            )
            await begun(notes)
            call.cancel()
            await asyncio.wait([call])
            assert polling.ids == []
            with pytest.raises(Exception, match="no such task"):
                await ask(caller.session, "get", "unknown")

    with mcp_server(f"sqlite:///{tmp_path}/runs.db") as server:
        on_loop(lambda: leave(server))
        assert [*statuses(server, "cancelled").values()] == ["cancelled"]
