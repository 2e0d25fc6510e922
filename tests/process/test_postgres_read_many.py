"""Workers read what they claimed in one statement: one damaged thread must not stop the others."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from milecastle.errors import Corrupted
from milecastle.fleet.worker import Worker
from milecastle.model.keys import ThreadKey
from milecastle.stores.postgres import PostgresStore
from tests.acceptance.fleet.working import line, note, until
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster

pytestmark = needs_postgres


def test_a_damaged_thread_is_refused_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if ``Claimer._take`` lets the error of ``read_many`` out: then nothing runs."""
    schema = new_schema()
    with closing(PostgresStore(the_cluster().url_of(schema))) as store:
        app = line(store, ("work", note("work")))
        names = [f"{number}" for number in range(6)]
        app.submit_many({name: {"n": 0, "log": []} for name in names})
        with the_cluster().connect() as connection:
            damage = f"UPDATE {schema}.entries SET source = 99 WHERE thread = '3'"
            assert connection.execute(damage.encode()).rowcount == 1
        with pytest.raises(Corrupted):
            store.read_many([ThreadKey("default", name) for name in names])
        worker = Worker([app])

        async def rested() -> bool:
            return bool(worker.counters.totals("threads_refused")) and not worker.running

        async def serve() -> None:
            serving = asyncio.create_task(worker.run())
            await until(rested, 60)
            worker.stop()
            await serving

        asyncio.run(serve())
        statuses = {info.key.thread: info.status for info in store.threads("default")}
    assert statuses.pop("3") == "queued"
    assert {*statuses.values()} == {"completed"}
    assert "thread '3' does not fit this worker" in caplog.text
