"""kill -9 of a backend takes the whole server down for a moment: nothing acknowledged is lost.

`MILECASTLE_BACKEND_KILLS` is the number of backends that are killed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from threading import Thread

import psycopg

from milecastle import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.stores.postgres import PostgresStore
from milecastle.testing.entries import a_key
from tests.postgres_cluster import Cluster, find_binaries, needs_postgres
from tests.process.test_postgres_outcomes import Writing, check_log

pytestmark = needs_postgres

KILLS = int(os.environ.get("MILECASTLE_BACKEND_KILLS", "2"))
NAME = "victim"


@contextmanager
def a_cluster(**settings: str) -> Generator[Cluster, None, None]:
    binaries = find_binaries()
    assert binaries
    cluster = Cluster(binaries, settings={"log_min_messages": "panic", **settings})
    try:
        yield cluster
    finally:
        cluster.remove()


def kill_backends(cluster: Cluster) -> int:
    """kill -9 of every backend of the writer; how many there were."""
    try:
        with cluster.connect() as admin:
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            found: list[tuple[int]] = admin.execute(query, [NAME]).fetchall()
    except psycopg.OperationalError:
        return 0
    for (pid,) in found:
        with suppress(ProcessLookupError):  # the first kill takes the others along
            os.kill(pid, signal.SIGKILL)
    return len(found)


def write_through_kills(cluster: Cluster, kills: int, **options: str) -> Writing:
    """Let somebody write while backends are killed under them."""
    url = cluster.url_of("crash", application_name=NAME, max_size="1", **options)
    writing = Writing(PostgresStore(url))
    writing.start()
    killed, until = 0, time.monotonic() + 60 + 5 * kills
    while killed < kills and writing.error is None:
        before = len(writing.acknowledged)
        while len(writing.acknowledged) < before + 5 and writing.error is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.03))
        killed += min(1, kill_backends(cluster))
    writing.enough.set()
    writing.join()
    return writing


def test_killed_backends_lose_nothing() -> None:
    with a_cluster() as cluster:
        writing = write_through_kills(cluster, KILLS)
        assert writing.error is None
        check_log(writing.store, writing.writer.key, writing.acknowledged)
        print(f"{KILLS} kills, {len(writing.acknowledged)} entries")
        writing.store.close()


def test_a_server_that_does_not_wait_for_its_disk_is_caught() -> None:
    with a_cluster(synchronous_commit="off", wal_writer_delay="'10s'") as cluster:
        writing = write_through_kills(cluster, 5, synchronous_commit="off")
        kept: set[str] = set()
        with suppress(StoreError):  # the tables themselves may be among what was lost
            kept = {entry.id for entry in writing.store.history(writing.writer.key)}
        assert set(writing.acknowledged) - kept
        writing.store.close()


def test_a_store_is_connected_soon_after_a_long_outage() -> None:
    """Caught: pauses between attempts that double without an end."""
    with a_cluster() as cluster, closing(PostgresStore(cluster.url_of("outage"))) as store:
        key = a_key("outage")
        assert store.head(key) is None
        cluster.stop("immediate")
        reading = Thread(target=read_until_there_is_an_answer, args=(store, key))
        reading.start()
        time.sleep(7)
        cluster.start()
        began = time.monotonic()
        reading.join()
        assert time.monotonic() - began < 4


def read_until_there_is_an_answer(store: PostgresStore, key: ThreadKey) -> None:
    while True:
        with suppress(StoreError):
            store.head(key)
            return
