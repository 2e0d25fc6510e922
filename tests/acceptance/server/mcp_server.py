"""An MCP server in a process of its own, which can be killed and started again on its port."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.acceptance.server.mcp_client import Polling, client
from tests.acceptance.server.processes import LIMIT, Process, is_ready
from tests.postgres_cluster import free_port, wait_until

GRAPHS = "tests.acceptance.server.mcp_graphs:graphs"


class McpServer:
    """The graphs of ``mcp_graphs`` on a store, with a worker if it is not said otherwise."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._port = free_port()
        self.process: Process | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.headers: dict[str, str] = {}

    def start(self, *options: str, how: str = "hasty") -> None:
        self.process = Process(
            *("serve", GRAPHS, "--store", self._store, "--port", str(self._port), "--mcp"),
            *(options or ("--worker",)),
            how=how,
        )
        token = self.process.said(r"token=(\S+)")
        self.headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=self.url) as found:
            wait_until(lambda: is_ready(found), LIMIT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process = None

    def threads(self) -> dict[str, str]:
        found = httpx.get(f"{self.url}/v1/threads", headers=self.headers, timeout=LIMIT).json()
        return {line["thread"]: line["status"] for line in found["threads"]}

    @asynccontextmanager
    async def client(self, extension: Polling | None = None) -> AsyncGenerator[Client, None]:
        """A client of the newest revision; with the tasks extension, if it is given."""
        http = httpx2.AsyncClient(headers=self.headers, timeout=LIMIT)
        async with http, client(self.place(http), extension) as found:
            yield found

    def place(self, http: httpx2.AsyncClient) -> Any:
        return streamable_http_client(f"{self.url}/mcp", http_client=http)


@contextmanager
def mcp_server(store: str) -> Generator[McpServer, None, None]:
    server = McpServer(store)
    try:
        server.start()
        yield server
    finally:
        server.kill()
