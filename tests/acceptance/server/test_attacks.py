"""Clients that are slow, endless or do not speak HTTP, against a real server.

``MILECASTLE_SLOW_CLIENTS=10000`` is the long form, on a server as it is; the short one is on a
server with few connections. Both processes need as many open files: the long form raises their
limit as far as it may (``ulimit -Hn``).
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

import pytest

from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import FEW_FILES, LIMIT, Server, serving
from tests.postgres_cluster import wait_until

SLOW = int(os.environ.get("MILECASTLE_SLOW_CLIENTS", "0"))
CROWD = 500
"""More than twice the connections of a small server: uvicorn ends those that had an answer."""

HEAD = "POST /v1/threads/x/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STARTS = (
    b"",
    b"GET /v1/threads HTTP/1.1\r\nHost: loc",
    HEAD.encode() + b"Content-Length: 1000\r\n\r\n{",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
)
"""Nothing; part of a head; part of a body, without a token; a request, and then nothing more."""


def connected(server: Server) -> socket.socket:
    base = server.client.base_url
    return socket.create_connection((base.host, base.port or 80), LIMIT)


def answered(raw: socket.socket) -> bytes:
    """All that comes until the end of the connection, however it ends."""
    found = b""
    with suppress(ConnectionError):
        while part := raw.recv(65_536):
            found += part
    return found


def problem(answer: bytes) -> tuple[int, str]:
    """The status and the code of a problem document, as it was sent."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower(), answer[:300]
    return int(head.split()[1]), json.loads(body)["code"]


def is_open(raw: socket.socket) -> bool:
    """Send one byte more, and look whether the other end is still there."""
    try:
        raw.sendall(b"G")
        return bool(raw.recv(10))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def crowd(server: Server, count: int, room: ExitStack) -> None:
    """Open so many connections, none of which gets to the end of a request, or has another."""
    opened: list[socket.socket] = []
    for number in range(count):
        with suppress(ConnectionError):
            raw = room.enter_context(connected(server))
            opened.append(raw)
            raw.sendall(STARTS[number % len(STARTS)])
    for raw in opened:
        with suppress(ConnectionError):
            raw.sendall(b"e")


def allow_open_files(count: int) -> None:
    """Let this process and its children have so many files, and some for everything else."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 500
    assert hard == resource.RLIM_INFINITY or hard >= wanted, f"ulimit -Hn {wanted}"
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def test_slow_clients_do_not_keep_others_out(tmp_path: Path) -> None:
    """See the control below."""
    how = "honest" if SLOW else "cramped"
    if SLOW:
        allow_open_files(SLOW)
    with serving(f"sqlite:///{tmp_path / 'runs.db'}", how=how) as server, ExitStack() as room:
        crowd(server, SLOW or CROWD, room)
        done = server.client.post("/v1/threads/t/runs?wait=60", json=journey(1))
        assert (done.status_code, done.json()["status"]) == (200, "completed")


def test_server_that_keeps_slow_clients_is_caught(tmp_path: Path) -> None:
    """The control: the same crowd, on a server that does not tell them from others."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving(store, how="cramped,trusting") as server, ExitStack() as room:
        crowd(server, CROWD, room)
        wait_until(lambda: server.client.get("/v1/threads").status_code == 503, LIMIT)
        assert server.client.get("/healthz").status_code == 200


def test_silent_clients_do_not_use_up_the_open_files(tmp_path: Path) -> None:
    """Failed with tracebacks for each client that could not be accepted, 23 MB in 10 s."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving(store, how="few-files") as server, ExitStack() as room:
        for _ in range(FEW_FILES * 2):
            room.enter_context(connected(server))
        done = server.client.post("/v1/threads/t/runs?wait=60", json=journey(1))
        assert (done.status_code, done.json()["status"]) == (200, "completed")
        assert not re.search("Traceback|not accepted", server.process.log)


@pytest.fixture(scope="module")
def brisk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("brisk")
    with serving(f"sqlite:///{folder / 'runs.db'}", how="brisk") as server:
        yield server


@pytest.mark.parametrize("start", STARTS)
def test_connection_without_a_request_is_ended(brisk: Server, start: bytes) -> None:
    """Fails without the timer: the connection stays, and the read ends by its timeout."""
    with connected(brisk) as raw:
        raw.sendall(start)
        answered(raw)


def test_head_that_comes_byte_by_byte_is_not_waited_for(brisk: Server) -> None:
    """Fails if each byte begins the time anew."""
    with connected(brisk) as raw:
        raw.settimeout(0.1)
        until = monotonic() + LIMIT
        while is_open(raw):
            assert monotonic() < until, "it is still waited for"


def test_body_that_takes_too_long_is_refused(brisk: Server) -> None:
    """Fails without a timeout of bodies: the server waits for the rest."""
    token = brisk.client.headers["Authorization"]
    with connected(brisk) as raw:
        raw.sendall(f"{HEAD}Authorization: {token}\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert problem(answered(raw)) == (408, "MC606")


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the memory of a process")
@pytest.mark.parametrize(("with_token", "expected"), [(True, 413), (False, 401)])
def test_endless_body_is_refused_early(server: Server, with_token: bool, expected: int) -> None:
    """A gigabyte without a length. Fails if what is refused is read to its end, or stored."""
    token = server.client.headers["Authorization"]
    head = HEAD + (f"Authorization: {token}\r\n" if with_token else "")
    before, taken, chunk = server.process.most_memory, 0, b"10000\r\n" + b" " * 65_536 + b"\r\n"
    with connected(server) as raw:
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        with suppress(ConnectionError):
            while taken < 1024**3:
                raw.sendall(chunk)
                taken += len(chunk)
        assert problem(answered(raw))[0] == expected
    assert taken < 64 * 1024**2
    assert server.process.most_memory - before < 64 * 1024**2
    assert server.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400, "MC606")),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", (400, "MC606")),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"v" * 40_000, (431, "MC605")),
    ],
)
def test_what_is_not_http_gets_a_problem(
    server: Server, sent: bytes, expected: tuple[int, str]
) -> None:
    """Failed with the text of uvicorn, which is not a problem document."""
    with connected(server) as raw:
        raw.sendall(sent)
        assert problem(answered(raw)) == expected


def test_garbage_after_a_stream_has_begun_ends_it_quietly(server: Server) -> None:
    """Failed when a second answer was tried: the log had a traceback."""
    server.client.post("/v1/threads/s/runs?wait=60", json=journey(1))
    token = server.client.headers["Authorization"]
    with connected(server) as raw:
        raw.sendall(
            f"GET /v1/threads/s/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        while b"event: stopped" not in raw.recv(65_536):
            pass
        raw.sendall(b"not a chunk\r\n\r\n")
        answered(raw)
    assert server.client.get("/healthz").status_code == 200
    assert not re.search("Traceback|Fatal error", server.process.log)
