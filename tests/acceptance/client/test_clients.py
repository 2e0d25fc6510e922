"""The clients, sync and async, on a server in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from milecastle import InvalidAnswer, InvalidRequest, RunCancelled, RunFailed, ThreadNotFound
from milecastle.client import AsyncClient, Client
from milecastle.errors import RequestRefused, Unavailable
from tests.acceptance.server.processes import Server, serving
from tests.postgres_cluster import free_port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('server') / 'runs.db'}") as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    url, _, token = server.url.partition("/?token=")
    with Client(url, token) as found:
        yield found


def trip(steps: int = 1, then: str = "end") -> dict[str, Any]:
    return {"steps": steps, "done": 0, "log": [], "then": then}


def test_run_is_submitted_answered_and_waited_for(client: Client) -> None:
    """Broken on purpose: ``answered`` accepted every status, and the refusal was not raised."""
    run = client.submit(trip(2, "ask"))
    asked = client.wait(run.thread)
    assert (asked.status, asked.run_id, len(asked.questions)) == ("interrupted", run.run_id, 1)
    assert run.thread in {waiting.thread for waiting in client.questions()}
    with pytest.raises(InvalidAnswer, match="should be boolean"):
        client.answer(run.thread, 7)
    client.answer(run.thread, True)
    done = client.wait(run.thread)
    assert (done.status, done.state["log"][-1]) == ("completed", "asked")
    assert client.state(run.thread).state == done.state


def test_key_finds_the_run_as_it_is_unless_it_is_to_be_retried(client: Client) -> None:
    """Broken on purpose: ``retries`` was ignored, and the second call retried the failed run."""
    first = client.submit(trip(1, "fail"), "keyed", key="k")
    with pytest.raises(RunFailed, match="RuntimeError") as failed:
        client.wait("keyed")
    assert (failed.value.failure_type, failed.value.node) == ("RuntimeError", "fail")
    found = client.submit(trip(1, "fail"), "keyed", key="k")
    assert (found.run_id, found.status, found.reused) == (first.run_id, "failed", True)
    again = client.submit(trip(1, "fail"), "keyed", key="k", retry=True)
    assert (again.reused, again.run_id == first.run_id) == (False, False)
    with pytest.raises(RunFailed):
        client.wait("keyed")
    assert not client.retry("keyed").reused


def test_calls_without_a_key_are_runs_of_their_own(client: Client) -> None:
    first = client.submit(trip(), "twice")
    client.wait("twice")
    assert client.submit(trip(), "twice").run_id != first.run_id
    client.wait("twice")


def test_answer_with_the_same_key_is_the_same_one(client: Client) -> None:
    client.submit(trip(1, "ask"), "answered")
    client.wait("answered")
    client.answer("answered", True, key="mine")
    client.wait("answered")
    assert client.answer("answered", True, key="mine").reused


def test_cancel_never_closes_a_later_run(client: Client) -> None:
    """Broken on purpose: the server ignored ``run_id``, and the second run was cancelled."""
    first = client.submit(trip(1, "ask"), "cancelled")
    client.wait("cancelled")
    assert client.cancel("cancelled")
    with pytest.raises(RunCancelled):
        client.wait("cancelled")
    client.submit(trip(1, "ask"), "cancelled", if_busy="cancel")
    client.wait("cancelled")
    assert not client.cancel("cancelled", run_id=first.run_id)
    assert client.state("cancelled").status == "interrupted"


def test_lists_are_read_page_by_page(client: Client) -> None:
    """Broken on purpose: ``next`` was not sent on, and the first page came again and again."""
    client.submit(trip(120), "long")
    client.wait("long")
    seqs = [checkpoint.seq for checkpoint in client.history("long")]
    assert seqs == list(range(len(seqs), 0, -1))
    assert len(seqs) > 120
    assert [checkpoint.seq for checkpoint in client.history("long", 3)] == seqs[:3]
    assert "long" in [found.thread for found in client.threads(prefix="lon", status="completed")]
    assert [event.seq for event in client.follow("long")] == seqs[::-1]
    assert [event.seq for event in client.follow("long", after=seqs[2])] == [seqs[1], seqs[0]]


@pytest.mark.parametrize("name", ["a/b c", "..", "ü%2F?", "."])
def test_thread_may_have_any_name(client: Client, name: str) -> None:
    """Broken on purpose: dots were sent as they are, and were steps in the path."""
    client.submit(trip(), name)
    assert client.wait(name).thread == name


def test_errors_are_those_of_the_app(client: Client, server: Server) -> None:
    with pytest.raises(ThreadNotFound, match="no such thread"):
        client.state("nothing")
    with pytest.raises(ThreadNotFound):
        list(client.follow("nothing"))
    with pytest.raises(InvalidRequest, match="http://"):
        Client("localhost:8321")
    with Client(str(server.client.base_url), "wrong" * 10) as stranger:
        with pytest.raises(RequestRefused, match="token") as refused:
            stranger.state("nothing")
        assert (refused.value.status, refused.value.problem) == (401, "MC601")


def test_wait_says_that_the_run_continues(client: Client) -> None:
    client.submit({**trip(2), "pause": 1.0}, "slow")
    with pytest.raises(TimeoutError, match="thread 'slow' has not stopped within"):
        client.wait("slow", timeout=0.05)
    assert client.wait("slow").status == "completed"


def test_server_that_does_not_answer_is_unavailable() -> None:
    with Client(f"http://127.0.0.1:{free_port()}", patience=0.2) as client:
        with pytest.raises(Unavailable, match="same key= is safe"):
            client.send("t", 1)
        with pytest.raises(Unavailable, match="ConnectError"):
            list(client.follow("t"))


def test_async_client_has_the_same_calls(server: Server) -> None:
    async def call() -> None:
        url, _, token = server.url.partition("/?token=")
        async with AsyncClient(url, token) as client:
            run = await client.submit(trip(3), tags=["eu"])
            events = [event async for event in client.follow(run.thread, emitted=True)]
            states = [event.seq for event in events if event.type == "state"]
            assert states == list(range(1, len(states) + 1))
            assert (await client.wait(run.thread)).state["done"] == 3
            assert [found.thread async for found in client.threads(tag="eu")] == [run.thread]
            assert (await client.state(run.thread)).tags == ("eu",)
            with pytest.raises(ThreadNotFound):
                await client.answer("nothing", 1)

    asyncio.run(call())
