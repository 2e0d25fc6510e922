"""Workers on PostgreSQL hear of due threads at once; what they do not hear, they find."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from milecastle.fleet.worker import Worker, WorkerOptions
from milecastle.ports.notifying import Listening
from milecastle.stores.postgres import PostgresStore, notify
from tests.acceptance.fleet.working import line, note, serving, start
from tests.every_store import POSTGRES
from tests.postgres_cluster import new_schema, the_cluster, wait_until

pytestmark = POSTGRES

DEAF_FOR_LONG = WorkerOptions(poll=60.0, heartbeat=1.0, silent_after=5.0)


@pytest.fixture
def stores() -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """Two stores on one schema, as two processes have them."""
    url = the_cluster().url_of(new_schema())
    both = PostgresStore(url), PostgresStore(url)
    yield both
    for store in both:
        store.close()


def test_a_worker_hears_of_a_submitted_run(stores: tuple[PostgresStore, PostgresStore]) -> None:
    """It would look by itself only after a minute. Fails if ``commit_many`` does not ring."""
    client, server = (line(store, ("a", note("a"))) for store in stores)

    async def submit() -> None:
        async with serving(server, options=DEAF_FOR_LONG) as worker:
            await _is_idle(worker)
            async with asyncio.timeout(60):
                handle = await client.asubmit(start(), "t")
                assert (await handle.aresult()).status == "completed"

    asyncio.run(submit())


def test_a_listener_whose_connection_was_lost_listens_again(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """And looks at once, since it may have missed something. Fails without the outer loop."""
    client, server = (line(store, ("a", note("a"))) for store in stores)

    async def submit() -> None:
        async with serving(server, options=DEAF_FOR_LONG) as worker:
            await _is_idle(worker)
            await asyncio.to_thread(_end_listeners)
            async with asyncio.timeout(60):
                handle = await client.asubmit(start(), "t")
                assert (await handle.aresult()).status == "completed"

    asyncio.run(submit())


def _end_listeners() -> None:
    the_cluster().execute(
        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN milecastle'"
    )


async def _is_idle(worker: Worker) -> None:
    """Wait until the worker has looked for the last time before it is told."""
    await asyncio.sleep(1.5)
    assert worker.is_ready


def test_a_listener_knows_whether_it_is_connected(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    """Fails if a connection that cannot be made, or was lost, counts as one."""
    listening = stores[0].listen(lambda: None)
    try:
        wait_until(lambda: listening.is_connected, 30)
        wait_until(lambda: _is_lost_for_a_moment(listening), 30)
        wait_until(lambda: listening.is_connected, 30)
    finally:
        listening.close()


def test_a_listener_without_an_answer_for_long_is_not_connected(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection may look open long after the server is gone. Fails without the age."""
    listening = stores[0].listen(lambda: None)
    try:
        wait_until(lambda: listening.is_connected, 30)
        monkeypatch.setattr(notify, "_DEAF", 0.0)
        assert not listening.is_connected
    finally:
        listening.close()


def _is_lost_for_a_moment(listening: Listening) -> bool:
    _end_listeners()
    return not listening.is_connected
