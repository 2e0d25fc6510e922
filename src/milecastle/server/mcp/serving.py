from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from milecastle.server.identity import Identity
from milecastle.server.mcp.tools import LEFT, GraphTools, McpRequest
from milecastle.server.service import Service


async def serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


class McpPath:
    """The HTTP server's MCP path; Host, Origin and the token have been checked before it.

    The SDK's own name check is off: the server's is stricter, and knows its names.
    """

    path = "/mcp"

    def __init__(self, service: Service, identify: Callable[[Headers], Identity]) -> None:
        def recognize(ctx: McpRequest) -> Identity:
            request: Any = ctx.request
            return identify(request.headers)

        tools = GraphTools(service, recognize)
        self._closing = service.closing
        self._manager = StreamableHTTPSessionManager(
            tools.server(),
            stateless=True,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.Event()

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not self._closing.is_set():
                left.set()
            return message

        await self._manager.handle_request({**scope, LEFT: left}, received, send)
