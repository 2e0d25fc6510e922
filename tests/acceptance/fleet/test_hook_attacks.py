"""Attacks on deliveries where they meet other work. Each says which defect it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import Any

import pytest

from milecastle import StateGraph, Store, ThreadKey
from tests.acceptance.fleet.test_hooks import DO, fails, order, ordering, row, sent, work
from tests.acceptance.fleet.working import QUICK, line, note, serving, start, until
from tests.receiver import SECRET, Receiver, receiving


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    DO.clear()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


class Hanging:
    """Answers nothing until it is released; counts who waits at once."""

    def __init__(self) -> None:
        self.released = Event()
        self.most = self.waiting = 0
        self._lock = Lock()

    def __call__(self, request: Any) -> None:
        with self._lock:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        self.released.wait(60)
        with self._lock:
            self.waiting -= 1
        request.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")


@pytest.mark.requirement("N6")
def test_a_receiver_that_hangs_holds_a_quarter_of_a_worker(
    store: Store, receiver: Receiver
) -> None:
    """Was broken: deliveries to it took every place, and other runs waited for its answers."""
    hanging = Hanging()
    receiver.answers = [hanging] * 12
    app = ordering(store, receiver, "completed")
    other = line(store, ("a", note("a")), name="other")
    for number in range(12):
        app.submit(order(), f"order {number}")

    async def two_hang() -> bool:
        return hanging.waiting == 2

    async def serve() -> None:
        options = QUICK.replaced(concurrency=8, deliver_to=(receiver.host,))
        async with serving(app, other, options=options):
            await until(two_hang)
            handles = [await other.asubmit(start(), f"t{number}") for number in range(20)]
            for handle in handles:
                assert (await handle.aresult()).status == "completed"
            assert hanging.most == 2
            hanging.released.set()
            await until(all_sent)

    async def all_sent() -> bool:
        return [state["outcome"] for state in sent(app)] == ["delivered"] * 12

    try:
        asyncio.run(serve())
    finally:
        hanging.released.set()


def test_hooks_of_two_graphs_may_have_one_name(store: Store) -> None:
    """Was broken: workers of one graph sent the other's deliveries, to their own URL."""
    with receiving() as first, receiving() as second:

        def own(receiver: Receiver) -> Callable[[StateGraph[Any]], object]:
            def declare(graph: StateGraph[Any]) -> object:
                url, secret = receiver.url, "env:HOOK_SECRET"
                return graph.on("completed", "failed", url=url, secret=secret, name="ops")

            return declare

        orders = ordering(store, None, more=own(first))
        lines = ordering(store, None, more=own(second), name="lines")
        DO.update(b=fails)
        orders.submit(order(), "a")
        lines.submit(order(), "b")
        for _ in range(2):
            work(orders)
        assert first.events == [("completed", "a")]
        work(lines)
        assert (first.events, second.events) == ([("completed", "a")], [("failed", "b")])
        assert first.ids[0].startswith("delivery@@orders@ops@")
        (delivery,) = (one for one in lines.threads() if one.graph == "delivery@@lines@ops")
        state: Any = lines.state(delivery.key).state
        assert state["outcome"] == "delivered"
        assert orders.runner.running(ThreadKey("default", first.ids[0])).graph.name == (
            "delivery@@orders@ops"
        )
        assert row(orders, "a").due_at is None
