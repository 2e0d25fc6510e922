"""A server on a real socket, in this process: what a connection may do, and how it stops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from milecastle.errors import InvalidRequest
from milecastle.server import connections, serving
from milecastle.server.addresses import is_loopback
from milecastle.server.serving import listen, serve
from tests.unit.server.calling import Api, token_of

TOKEN = f"Authorization: Bearer {token_of('default')}\r\n"
LIMIT = 60


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, text: str | bytes) -> None:
        self._writer.write(text.encode() if isinstance(text, str) else text)
        await self._writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return int(head.split()[1]), await self._reader.readexactly(size)

    async def until(self, end: bytes) -> bytes:
        return await self._reader.readuntil(end)

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def is_ended(self) -> bool:
        """Whether the server ends it, sooner or later."""
        try:
            await self._reader.read()
        except ConnectionError:
            return True
        return self._reader.at_eof()


class Serving:
    """A server that is asked by its port."""

    def __init__(self, port: int) -> None:
        self.port, self.clients = port, list[Client]()

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def get(self, path: str, more: str = TOKEN) -> tuple[int, bytes]:
        client = await self.connect()
        await client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
        return await client.answer()


@asynccontextmanager
async def served(api: Api) -> AsyncGenerator[Serving, None]:
    """A server, which a signal ends."""
    listening = listen("127.0.0.1", 0)
    running = asyncio.create_task(serve(api.application, listening))
    server = Serving(int(listening.address.rpartition(":")[2]))
    try:
        async with asyncio.timeout(LIMIT):
            assert (await server.get("/healthz", ""))[0] == 200  # now signals end the server only
            yield server
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, LIMIT)
        for client in server.clients:
            await client.close()


def test_requests_of_one_connection_are_answered(api: Api) -> None:
    async def use() -> list[int]:
        async with served(api) as server:
            client, found = await server.connect(), list[int]()
            for _ in range(2):
                await client.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                found.append((await client.answer())[0])
            return [*found, (await server.get("/v1/threads"))[0]]

    before = signal.getsignal(signal.SIGTERM)
    assert asyncio.run(use()) == [200, 200, 200]
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_is_not_http_is_answered_with_a_problem(api: Api) -> None:
    """Fails if the parser of the server answers by itself: its text is not a document."""

    async def use() -> list[tuple[int, bytes]]:
        async with served(api) as server:
            garbage, long = await server.connect(), await server.connect()
            await garbage.send("\x00\x01 no\r\n\r\n")
            await long.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + "x" * 70_000)
            return [await garbage.answer(), await long.answer()]

    (status, problem), (too_large, _) = asyncio.run(use())
    assert (status, too_large) == (400, 431)
    assert b'"code":"MC606"' in problem.replace(b" ", b"")


def test_refused_body_is_read_for_a_while_and_then_no_more(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if it is read to its end: a client could send forever."""
    monkeypatch.setattr(connections, "MOST_DISCARDED", 100_000)

    async def use() -> int:
        async with served(api) as server:
            client = await server.connect()
            head = "POST /v1/threads/t/runs HTTP/1.1\r\nHost: localhost\r\n"
            await client.send(f"{head}Content-Length: 900000000\r\n\r\n")
            status, _ = await client.answer()
            with suppress(ConnectionError):
                for _ in range(1000):
                    await client.send(bytes(50_000))
            assert await client.is_ended()
            return status

    assert asyncio.run(use()) == 401


@pytest.mark.parametrize("many", [0, 100])
def test_connections_without_a_request_end(
    api: Api, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """Each after its time; while there are many, the oldest at once. Fails if they stay."""
    monkeypatch.setattr(connections, "MANY", many)
    monkeypatch.setattr(connections, "CROWDED", 0.05)
    monkeypatch.setattr(connections, "VACANT", 600.0 if many == 0 else 0.1)

    async def use() -> None:
        async with served(api) as server:
            clients = [await server.connect() for _ in range(3)]
            await clients[0].send("GET /healthz HT")
            assert (await server.get("/healthz"))[0] == 200
            for client in clients:
                assert await client.is_ended()

    asyncio.run(use())


def test_events_are_followed_and_end_with_the_server(api: Api) -> None:
    """Fails if a stream keeps the server from stopping."""
    api.run("t", 1)

    async def use() -> bytes:
        async with served(api) as server:
            client = await server.connect()
            head = f"GET /v1/threads/t/events HTTP/1.1\r\nHost: localhost\r\n{TOKEN}"
            await client.send(f"{head}Last-Event-ID: 1\r\n\r\n")
            found = await client.until(b"event: stopped")
            for odd in ("x", "99"):
                more = f"{TOKEN}Last-Event-ID: {odd}\r\n"
                assert (await server.get("/v1/threads/t/events", more))[0] == 400
            second = await server.connect()
            await second.send(f"{head}\r\n")
            assert b"id: 1\n" in await second.until(b"event: stopped")
            await asyncio.to_thread(api.app.store.delete, api.app.state("t").key)
            assert (await server.get("/v1/threads/none/events"))[0] == 404
            return found

    found = asyncio.run(use())
    assert b"id: 2" in found
    assert b"id: 1\n" not in found


def test_full_server_answers_probes_and_one_caller_has_half(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed when 5,000 idle streams of one token locked everybody out, probes too."""
    monkeypatch.setattr(serving, "_CONNECTIONS", 4)
    api.run("t", 1)

    async def use() -> list[int]:
        async with served(api) as server:

            async def follow(token: str) -> int:
                client = await server.connect()
                head = "GET /v1/threads/t/events HTTP/1.1\r\nHost: localhost\r\n"
                await client.send(f"{head}Authorization: Bearer {token}\r\n\r\n")
                return int((await client.until(b"\r\n\r\n")).split()[1])

            one, other = token_of("default"), token_of("default", "read")
            found = [await follow(one) for _ in range(3)]
            found += [await follow(other) for _ in range(3)]
            for path in ("/v1/threads", "/healthz", "/readyz"):
                found.append((await server.get(path))[0])
            return found

    assert asyncio.run(use()) == [200, 200, 429, 200, 200, 503, 503, 200, 200]


@pytest.mark.parametrize(
    ("host", "found"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("a.b", False)],
)
def test_loopback_is_recognized(host: str, found: bool) -> None:
    assert is_loopback(host) is found


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_accepted_connections_do_not_wait_to_send(host: str) -> None:
    """Failed without TCP_NODELAY: every answer on a kept connection took 40 ms more."""
    try:
        listening = listen(host, 0).socket
    except InvalidRequest:
        pytest.skip("this machine has no such address")
    with listening, socket.create_connection(listening.getsockname()[:2], LIMIT):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be served"):
        listen("203.0.113.1", 0)
