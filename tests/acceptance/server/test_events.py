"""Live events by SSE, from a real server."""

from __future__ import annotations

import random
import socket
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import LIMIT, Server, StreamEvent, read_stream, serving
from tests.postgres_cluster import wait_until


def follow(
    server: Server, thread: str, last: int | None = None
) -> Generator[StreamEvent, None, None]:
    """The events of a thread, until the reader stops reading."""
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    place = f"/v1/threads/{thread}/events"
    with server.client.stream("GET", place, headers=headers, timeout=LIMIT) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield from read_stream(response)


def reconnecting(server: Server, thread: str, chance: random.Random) -> list[int]:
    """The ids that a reader gets who leaves after every few events, until the run has stopped."""
    seen: list[int] = []
    while True:
        left = chance.randint(1, 4)
        events = follow(server, thread, seen[-1] if seen else None)
        for event in events:
            if event.name == "stopped":
                return seen
            if event.id is not None:
                seen.append(event.id)
                assert len(seen) < 500, "it gets the same again and again"
                left -= 1
            if not left:
                break
        events.close()


def head(server: Server, thread: str) -> int:
    seq = server.client.get(f"/v1/threads/{thread}").json()["checkpoint"]["seq"]
    assert isinstance(seq, int)
    return seq


def test_reader_that_reconnects_gets_each_checkpoint_once_and_in_order(server: Server) -> None:
    """Some thirty reconnections, while the thread runs. See the control below."""
    server.client.post("/v1/threads/far/runs", json=journey(60, pause=0.05))
    seen = reconnecting(server, "far", random.Random(7))
    assert seen == list(range(1, head(server, "far") + 1))
    assert len(seen) > 60


def test_server_that_drops_one_is_caught(tmp_path: Path) -> None:
    """The control: the same reader, on a server that begins one checkpoint too late."""
    with serving(f"sqlite:///{tmp_path / 'runs.db'}", how="drops-one") as server:
        server.client.post("/v1/threads/far/runs", json=journey(30, pause=0.05))
        seen = reconnecting(server, "far", random.Random(7))
        assert seen != list(range(1, head(server, "far") + 1))


def test_emitted_values_are_sent_as_they_come_and_not_replayed(server: Server) -> None:
    """Fails if emitted values have an id, are lost, or are sent to a reader that comes later."""
    server.client.post("/v1/threads/talks/runs", json={**journey(5), "delay": 3600})
    order: list[tuple[str, int]] = []
    for event in follow(server, "talks"):
        if event.id == 1:  # from now on the server hears what is emitted
            server.client.post("/v1/threads/talks/cancel")
            server.client.post("/v1/threads/talks/retry", json={})
        if event.name == "stopped" and event.data["thread"]["status"] == "completed":
            break
        if event.name == "emit":
            assert event.id is None
            order.append(("emit", event.data["value"]))
        elif event.name == "state" and event.data["source"] == "step":
            order.append(("state", event.data["state"]["done"]))
    emitted = [value for name, value in order if name == "emit"]
    assert emitted == [0, 1, 2, 3, 4]
    again = [event.name for event in _until_rest(server, "talks")]
    assert "emit" not in again


def _until_rest(server: Server, thread: str) -> Iterator[StreamEvent]:
    for event in follow(server, thread):
        yield event
        if event.name == "stopped":
            return


def test_stream_stays_open_while_a_question_waits(server: Server) -> None:
    """Fails if the stream ends at a rest, or the rest is not told."""
    server.client.post("/v1/threads/asks/runs", json=journey(1, then="ask"))
    statuses: list[str] = []
    for event in follow(server, "asks"):
        if event.name != "stopped":
            continue
        statuses.append(event.data["thread"]["status"])
        if len(statuses) == 2:
            break
        (question,) = server.client.get("/v1/threads/asks").json()["questions"]
        answers = {"answers": {question["id"]: True}}
        server.client.post("/v1/threads/asks/answers", json=answers)
    assert statuses == ["interrupted", "completed"]


@pytest.mark.parametrize(
    ("last", "status"),
    [("x", 400), ("99999", 400), ("-1", 400), ("1.2", 400), ("1", 200), ("1.1.7", 200)],
)
def test_id_that_the_thread_does_not_have_is_refused(
    server: Server, last: str, status: int
) -> None:
    server.client.post("/v1/threads/short/runs?wait=60", json=journey(1))
    headers = {"Last-Event-ID": last}
    with server.client.stream("GET", "/v1/threads/short/events", headers=headers) as response:
        assert response.status_code == status


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("impatient")
    with serving(f"sqlite:///{folder / 'runs.db'}", how="impatient") as server:
        yield server


def test_comments_are_sent_while_nothing_happens(impatient: Server) -> None:
    """Fails without heartbeats: the read would end by its timeout."""
    impatient.client.post("/v1/threads/t/runs?wait=60", json=journey(1))
    comments = 0
    for event in follow(impatient, "t"):
        comments += event.name == ":"
        if comments == 5:
            break
    assert comments == 5


def test_stream_of_a_thread_that_is_deleted_ends(impatient: Server) -> None:
    """Fails if nobody looks whether the thread is still there."""
    impatient.client.post("/v1/threads/gone/runs?wait=60", json=journey(1))
    comments = 0
    for event in follow(impatient, "gone"):
        comments += event.name == ":"
        assert comments < 600, "the stream does not end"
        if event.name == "stopped":
            assert impatient.client.delete("/v1/threads/gone").status_code == 200
    assert impatient.client.get("/v1/threads/gone/events").status_code == 404


def test_slow_reader_is_dropped_and_nobody_waits_for_it(impatient: Server) -> None:
    """Fails if a reader that takes nothing keeps its stream: seen without the timeout of sends."""
    body = journey(40, weight=200_000)
    impatient.client.post("/v1/threads/heavy/runs", json=body)
    base, token = impatient.client.base_url, impatient.client.headers["Authorization"]
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(LIMIT)
        slow.connect((base.host, base.port))
        slow.sendall(
            f"GET /v1/threads/heavy/events HTTP/1.1\r\nHost: {base.host}:{base.port}\r\n"
            f"Authorization: {token}\r\n\r\n".encode()
        )
        states = 0
        for event in follow(impatient, "heavy"):
            states += event.name == "state"
            if event.name == "stopped" and event.data["thread"]["status"] == "completed":
                break
        assert states > 40
        impatient.process.said("too slow, and was dropped")
        got = 0
        try:
            while part := slow.recv(65_536):
                got += len(part)
        except ConnectionResetError:
            pass
        assert got < 20_000_000
    assert impatient.client.get("/healthz").status_code == 200


def test_stopping_ends_streams_and_exits_cleanly(tmp_path: Path) -> None:
    """Fails if the server waits for its readers: they would never leave."""
    with serving(f"sqlite:///{tmp_path / 'runs.db'}") as server:
        server.client.post("/v1/threads/t/runs?wait=60", json=journey(1))
        events = follow(server, "t")
        while next(events).name != "stopped":
            pass
        assert server.process.stop() == 0
        with suppress(httpx.TransportError):
            assert [event for event in events if event.name != ":"] == []
        wait_until(lambda: "server stopped" in server.process.log, LIMIT)
        assert "graceful shutdown exceeded" not in server.process.log
