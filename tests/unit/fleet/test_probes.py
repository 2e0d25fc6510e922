"""The probes and metrics of a worker, asked over HTTP."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

from milecastle import App, InvalidRequest, Unavailable
from milecastle.fleet import probes
from milecastle.fleet.probes import Probes, parse_address
from milecastle.fleet.prometheus import MOST, Family, queue_families, render
from milecastle.fleet.worker import Worker
from milecastle.ports.notifying import Listen
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import QUICK, STRICT, Trip, line, note, start, until
from tests.postgres_cluster import wait_until


class Asked:
    """A client of the probes of one worker."""

    def __init__(self, port: int, worker: Worker) -> None:
        self.port = port
        self.worker = worker

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    async def ask(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(self.get, path)

    async def samples(self) -> dict[str, float]:
        code, text = await self.ask("/metrics")
        assert code == 200
        return parsed(text)


def parsed(text: str) -> dict[str, float]:
    """The samples of a scrape; each line must be one, or a comment on one."""
    found: dict[str, float] = {}
    for one in text.splitlines():
        if one.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", one), one
            continue
        name, _, value = one.rpartition(" ")
        label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
        assert re.fullmatch(rf"[a-z_]+(\{{{label}(,{label})*\}})?", name), one
        assert name not in found
        found[name] = float(value)
    return found


@asynccontextmanager
async def probed(*apps: App[Any]) -> AsyncGenerator[Asked, None]:
    """A worker with probes, which serves until the block ends."""
    worker = Worker(apps, STRICT)
    served = Probes(worker, ("127.0.0.1", 0))
    with served.serving():
        running = asyncio.create_task(worker.run())
        try:
            await worker.entered.wait()
            yield Asked(served.port, worker)
        finally:
            worker.stop()
            await running


def test_a_worker_that_serves_is_healthy_and_ready() -> None:
    """Fails if a probe finds something where nothing is wrong."""

    async def use() -> None:
        async with probed(line(MemoryStore(), ("a", note("a")))) as asked:
            assert await asked.ask("/healthz") == (200, "ok\n")
            assert await asked.ask("/readyz?full") == (200, "ok\n")
            assert (await asked.ask("/"))[0] == 404
            assert (await asyncio.to_thread(asked.get, "/readyz", "POST"))[0] == 501

    asyncio.run(use())


@pytest.mark.requirement("F11")
def test_probes_fail_and_metrics_are_answered_while_a_node_blocks_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if they are answered on the loop: this would hang."""
    monkeypatch.setattr(probes, "_STUCK", 0.2)
    monkeypatch.setattr(probes, "_TICK", 0.05)
    blocks, go = threading.Event(), threading.Event()
    found: list[tuple[int, str]] = []

    async def block(state: Trip) -> dict[str, Any]:
        blocks.set()
        go.wait(60)
        return {}

    def look(asked: Asked) -> None:
        assert blocks.wait(30)
        try:
            wait_until(lambda: asked.get("/healthz")[0] == 503, 30)
            found.extend(asked.get(path) for path in ("/healthz", "/readyz", "/metrics"))
        finally:
            go.set()

    async def use() -> None:
        app = line(MemoryStore(), ("block", block))
        async with probed(app) as asked:
            looking = threading.Thread(target=look, args=(asked,))
            looking.start()
            await app.asubmit(start(), "t")
            await app.await_result("t")
            await asyncio.to_thread(looking.join)

            async def is_healthy() -> bool:
                return (await asked.ask("/healthz"))[0] == 200

            await until(is_healthy, 30)

    asyncio.run(use())
    assert [code for code, _ in found] == [503, 503, 200]
    assert "the event loop has been blocked" in found[0][1]
    samples = parsed(found[2][1])
    assert samples["milecastle_loop_lag_seconds"] > 0.1
    assert samples["milecastle_ready"] == 0


class Failing(MemoryStore):
    """A store that can be made to fail, or to hang."""

    is_away = False
    hangs: threading.Event | None = None

    def beat(self, worker: WorkerInfo) -> None:
        if self.is_away:
            raise Unavailable("on purpose")
        super().beat(worker)

    def depths(self) -> Sequence[LaneDepth]:
        if self.hangs is not None:
            self.hangs.wait(60)
        if self.is_away:
            raise Unavailable("on purpose")
        return super().depths()


@pytest.mark.requirement("F11")
def test_a_worker_whose_store_is_away_is_healthy_and_not_ready() -> None:
    """To restart it would not help. Fails if readiness looks at the loop only."""

    async def use() -> None:
        store = Failing()
        async with probed(line(store, ("a", note("a")))) as asked:
            store.is_away = True

            async def is_unready() -> bool:
                code, text = await asked.ask("/readyz")
                return code == 503 and "taken no heartbeat" in text

            await until(is_unready, 30)
            assert (await asked.ask("/healthz"))[0] == 200
            store.is_away = False

            async def is_ready() -> bool:
                return (await asked.ask("/readyz"))[0] == 200

            await until(is_ready, 30)

    asyncio.run(use())


class Bell(MemoryStore):
    """A store with a listener, which can lose its connection."""

    is_connected = True

    @property
    def listen(self) -> Listen:
        return lambda heard: self


def test_a_worker_whose_listener_is_not_connected_is_not_ready() -> None:
    """Fails if only the store is asked."""

    async def use() -> None:
        store = Bell()
        async with probed(line(store, ("a", note("a")))) as asked:

            async def is_ready() -> bool:
                return (await asked.ask("/readyz"))[0] == 200

            await until(is_ready, 30)
            store.is_connected = False
            code, text = await asked.ask("/readyz")
            assert (code, text) == (503, "the listener is not connected to the store\n")
            assert (await asked.ask("/healthz"))[0] == 200

    asyncio.run(use())


def test_a_scrape_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the figures from before, with their age. Fails without the other thread: hangs."""
    monkeypatch.setattr(probes, "_FRESH", 0.0)
    monkeypatch.setattr(probes, "_PATIENCE", 0.05)

    async def use() -> None:
        store = Failing()
        app = line(store, ("a", note("a")), name="other")
        async with probed(line(store, ("b", note("b")))) as asked:
            app.submit(start(), "t")
            name = f'milecastle_queue_due{{graph="other",fingerprint="{app.graph.fingerprint}"'

            async def is_counted() -> bool:
                return (await asked.samples()).get(f'{name},tenant="default"}}') == 1

            await until(is_counted, 30)
            store.hangs = threading.Event()
            before = (await asked.samples())["milecastle_queue_data_age_seconds"]

            async def is_older() -> bool:
                samples = await asked.samples()
                assert samples[f'{name},tenant="default"}}'] == 1
                return samples["milecastle_queue_data_age_seconds"] > before + 0.1

            await until(is_older, 30)
            store.is_away = True
            store.hangs.set()

    asyncio.run(use())


def test_a_draining_worker_is_not_ready() -> None:
    """Fails if it is ready until its process ends."""
    entered, go = asyncio.Event(), asyncio.Event()

    async def wait(state: Trip) -> dict[str, Any]:
        entered.set()
        await go.wait()
        return {}

    async def use() -> None:
        app = line(MemoryStore(), ("wait", wait), ("after", note("after")))
        async with probed(app) as asked:
            await app.asubmit(start(), "t")
            await entered.wait()
            asked.worker.stop()
            assert await asked.ask("/readyz") == (503, "it is draining\n")
            assert (await asked.samples())["milecastle_draining"] == 1
            go.set()

    asyncio.run(use())


def test_what_a_worker_does_is_counted() -> None:
    """Fails if an outcome is not counted, or under another name."""

    def fail(state: Trip) -> dict[str, Any]:
        raise ValueError("on purpose")

    async def use() -> dict[str, float]:
        store = MemoryStore()
        good, bad = line(store, ("a", note("a"))), line(store, ("b", fail), name="bad")
        async with probed(good, bad) as asked:
            await good.asubmit(start(), "good")
            await bad.asubmit(start(), "bad")

            async def is_over() -> bool:
                samples = await asked.samples()
                return len([name for name in samples if "segments_ended" in name]) == 2

            await until(is_over, 30)
            return await asked.samples()

    samples = asyncio.run(use())
    assert samples['milecastle_segments_ended_total{status="completed"}'] == 1
    assert samples['milecastle_segments_ended_total{status="failed"}'] == 1
    assert samples["milecastle_segments_started_total"] == 2
    assert samples["milecastle_claims_total"] >= 1
    assert samples["milecastle_claim_seconds_total"] > 0
    assert samples["milecastle_capacity"] == QUICK.concurrency
    assert samples["milecastle_threads_lost_total"] == 0
    assert samples["milecastle_heartbeat_age_seconds"] >= 0
    assert samples["milecastle_ready"] == 1


def test_every_total_that_a_worker_counts_is_reported() -> None:
    """Seen to fail with a counter under another name than its metric: it stayed at 0."""
    sources = Path(probes.__file__).parent.glob("*.py")
    counted = re.findall(r'counters\.add\("(\w+)"', "".join(one.read_text() for one in sources))

    async def scrape() -> str:
        async with probed(line(MemoryStore(), ("a", note("a")))) as asked:
            return (await asked.ask("/metrics"))[1]

    reported = set(re.findall(r"# TYPE milecastle_(\w+)_total counter", asyncio.run(scrape())))
    assert set(counted) == reported != set()


def test_the_number_of_requests_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that say nothing hold their places for a while. Fails without the bound."""
    monkeypatch.setattr(probes, "_AT_ONCE", 2)

    async def use() -> None:
        async with probed(line(MemoryStore(), ("a", note("a")))) as asked:
            silent = [socket.create_connection(("127.0.0.1", asked.port)) for _ in range(2)]
            third = socket.create_connection(("127.0.0.1", asked.port))
            third.settimeout(30)
            assert await asyncio.to_thread(third.recv, 1) == b""
            for client in (*silent, third):
                client.close()

            async def is_free() -> bool:
                try:
                    return (await asked.ask("/healthz"))[0] == 200
                except OSError:
                    return False

            await until(is_free, 30)

    asyncio.run(use())


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9100", ("::1", 9100)),
    ],
)
def test_an_address_is_a_port_or_host_and_port(given: str, address: tuple[str, int]) -> None:
    assert parse_address(given) == address


@pytest.mark.parametrize("given", ["", "x", "host:", "1:x", "65536", "-1", "²"])
def test_what_is_not_an_address_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="--metrics takes"):
        parse_address(given)


def test_a_port_that_is_taken_is_refused() -> None:
    worker = Worker([line(MemoryStore(), ("a", note("a")))], QUICK)
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(InvalidRequest, match="cannot be served"):
        Probes(worker, taken.getsockname())
    with pytest.raises(InvalidRequest, match="cannot be served"):
        Probes(worker, ("127.0.0.1", 65536))


def test_labels_are_escaped() -> None:
    """Fails if a name with a quote or a newline can end its label."""
    name = 'a"b\\c\nd\ud800'
    text = render([Family("x", "gauge", "Two\nlines.", {(("tenant", name),): 1.0})])
    assert text == (
        "# HELP milecastle_x Two\\nlines.\n# TYPE milecastle_x gauge\n"
        'milecastle_x{tenant="a\\"b\\\\c\\nd?"} 1.0\n'
    )
    assert list(parsed(text).values()) == [1.0]


def test_the_number_of_series_is_bounded() -> None:
    """The longest queues are named, the others added up. Fails without the bound."""
    depth = LaneDepth(lane="g@f", tenant="", due=1, later=2, running=3, oldest=4.0)
    depths = [
        msgspec.structs.replace(depth, tenant=f"t{number}", due=number, oldest=float(number))
        for number in range(MOST + 50)
    ]
    due, later, running, oldest = (dict(one.samples) for one in queue_families(depths))
    other = (("graph", "(other)"), ("fingerprint", ""), ("tenant", "(other)"))
    assert len(due) == MOST + 1
    assert due.pop(other) == sum(range(50))
    assert min(due.values()) == 50
    assert (later[other], running[other], oldest[other]) == (100, 150, 49)
    assert queue_families([]) == [
        msgspec.structs.replace(one, samples={}) for one in queue_families(depths)
    ]
