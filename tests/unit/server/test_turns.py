"""What one caller may occupy: threads of the server, and pages of a list."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from typing import Any

import pytest

from milecastle.server import limits
from milecastle.server.turns import CALLER, ServerThreads
from tests.unit.server.calling import Api

LIMIT = 60


def called(threads: ServerThreads, caller: str, function: Any) -> asyncio.Task[Any]:
    """A call in the name of a caller."""
    context = copy_context()
    context.run(CALLER.set, caller)
    return asyncio.get_running_loop().create_task(threads.call(function), context=context)


def test_one_caller_leaves_threads_for_others() -> None:
    """Failed when all requests shared six threads: others waited 16 s behind 20 scans."""

    async def use() -> None:
        threads, gate = ServerThreads(4, "test"), threading.Event()
        busy = [called(threads, "one", lambda: gate.wait(LIMIT)) for _ in range(20)]
        try:
            async with asyncio.timeout(LIMIT):
                assert await called(threads, "another", lambda: "answered") == "answered"
            assert not any(task.done() for task in busy)
        finally:
            gate.set()
        assert all(await asyncio.gather(*busy))

    asyncio.run(use())


def test_request_that_is_given_up_occupies_its_thread() -> None:
    """Fails if a caller gets more threads by leaving."""

    async def use() -> list[str]:
        threads, gate, begun = ServerThreads(2, "test"), threading.Event(), threading.Event()
        found: list[str] = []

        def hold() -> None:
            begun.set()
            gate.wait(LIMIT)
            found.append("held")

        given_up = called(threads, "one", hold)
        await asyncio.to_thread(begun.wait, LIMIT)
        given_up.cancel()
        await asyncio.wait([given_up])
        next_one = called(threads, "one", lambda: found.append("next"))
        assert await called(threads, "another", lambda: True)
        gate.set()
        await next_one
        return found

    assert asyncio.run(use()) == ["held", "next"]


def test_probes_have_a_thread_of_their_own(api: Api) -> None:
    """Failed when ``/readyz`` waited behind requests: a busy server was not ready."""
    service, gate = api.application.service, threading.Event()

    async def use() -> bool:
        busy = [asyncio.create_task(service.off_loop(gate.wait, LIMIT)) for _ in range(20)]
        await asyncio.sleep(0)  # they come first
        try:
            async with asyncio.timeout(LIMIT / 4):
                return await service.ready(lambda: True)
        finally:
            gate.set()
            await asyncio.wait(busy)

    assert asyncio.run(use())


@pytest.mark.parametrize(
    ("path", "field", "n"),
    [
        ("/v1/threads?graph=nothing", "threads", 1),
        ("/v1/threads?status=completed&graph=nothing", "threads", 1),
        ("/v1/runs?status=completed&graph=nothing", "runs", 1),
        ("/v1/questions?graph=nothing", "threads", 42),
    ],
)
def test_filter_looks_at_a_bounded_number_of_threads(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, field: str, n: int
) -> None:
    """Failed when a filter that finds nothing looked at every thread of the tenant."""
    monkeypatch.setattr(limits, "LOOKED_AT", 2)
    for number in range(5):
        api.run(f"t{number}", n)
    first = api.ask("GET", path).json()
    assert (first[field], first["next"]) == ([], "t1")
    second = api.ask("GET", f"{path}&after=t1").json()
    assert (second[field], second["next"]) == ([], "t3")
    assert api.ask("GET", f"{path}&after=t3").json()["next"] is None
