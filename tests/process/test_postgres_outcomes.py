"""Backends and clients die in the middle of commits; nothing acknowledged is lost, nothing doubled.

``MILECASTLE_KILLS`` is the number of backends ended in the long form.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any, TypeVar

import msgspec.structs
import psycopg
import pytest
from psycopg.pq.abc import PGresult

from milecastle.errors import Conflict, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.libpq import Libpq, Values, Write
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.translating import Lost
from milecastle.testing.contract_claims import a_line, queued
from milecastle.testing.contract_inputs import enqueue, inputs_of, waiting_run
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run
from tests.postgres_cluster import Cluster, find_binaries, needs_postgres, new_schema, the_cluster
from tests.process.acknowledging import KILLS

pytestmark = needs_postgres

T = TypeVar("T")


@pytest.fixture
def url() -> str:
    schema = new_schema()
    return the_cluster().url_of(schema, application_name=schema, max_size="2")


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url)
    yield store
    store.close()


class Losing:
    """Loses the answer to some writes, before or after they were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: list[str] = []
        losing = self
        write, write_together = Pool.write, Pool.write_together

        def one(pool: Pool, statement: Libpq, values: Values, tenant: str) -> PGresult:
            return losing.act(lambda: write(pool, statement, values, tenant))

        def group(pool: Pool, writes: Sequence[tuple[str, Sequence[Write]]]) -> list[PGresult]:
            return losing.act(lambda: write_together(pool, writes))

        monkeypatch.setattr(Pool, "write", one)
        monkeypatch.setattr(Pool, "write_together", group)

    def act(self, send: Callable[[], T]) -> T:
        moment = self.plan.pop(0) if self.plan else "never"
        if moment == "before":
            raise Lost("lost before it was sent")
        result = send()
        if moment == "after":
            raise Lost("lost after it was sent")
        return result


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Losing:
    return Losing(monkeypatch)


@pytest.mark.parametrize("plan", [["before"], ["after"], ["before"] * 3, ["before", "after"]])
def test_a_commit_without_an_answer_is_written_once(
    store: PostgresStore, losing: Losing, plan: list[str]
) -> None:
    writer = Writer().begin(store, 3)
    losing.plan = list(plan)
    entry = writer.append(store)
    assert losing.plan == []
    assert [found.seq for found in store.history(writer.key)] == [4, 3, 2, 1]
    assert store.locate(writer.key, entry.id) == 4


def test_writer_that_lost_the_answer_and_the_race_is_refused(
    store: PostgresStore, losing: Losing
) -> None:
    writer = Writer().begin(store, 2)
    store.commit(writer.batch(msgspec.structs.replace(writer.plan(), id="another")))
    losing.plan = ["before"]
    with pytest.raises(Conflict) as caught:
        writer.append(store)
    assert losing.plan == []
    assert caught.value.head == 3
    assert store.locate(writer.key, "another") == 3


@pytest.mark.parametrize("moment", ["before", "after"])
def test_records_without_an_answer_stay(store: PostgresStore, losing: Losing, moment: str) -> None:
    writer = Writer().begin(store, 2)
    failed = a_run(writer.key, 5, status="failed")
    losing.plan = [moment]
    store.commit(writer.batch(runs=(failed,), failure=a_failure(failed.run_id)))
    losing.plan = [moment]
    store.commit(writer.batch(results=(a_result(2),)))
    losing.plan = [moment]
    store.commit(writer.batch(manifest=("f", b"manifest")))
    assert store.run(writer.key, failed.run_id) == failed
    assert store.failure(writer.key, failed.run_id) == a_failure(failed.run_id)
    chain = store.read(writer.key)
    assert chain is not None
    assert chain.results == (a_result(2),)
    assert store.manifest(writer.key, "f") == b"manifest"


@pytest.mark.parametrize("plan", [["before"], ["after"], ["before", "after", "before"]])
def test_a_group_without_an_answer_is_written_once(
    store: PostgresStore, losing: Losing, plan: list[str]
) -> None:
    """Steps, records and results; and an overtaken writer gets a conflict."""
    writers = [Writer(a_key(name)).begin(store, 2) for name in "abcd"]
    batches = [
        writers[0].batch(writers[0].plan()),
        writers[1].batch(writers[1].plan(), runs=(writers[1].run,)),
        writers[2].batch(results=(a_result(2),)),
        writers[3].batch(writers[3].plan()),
    ]
    store.commit(writers[3].batch(writers[3].plan(id="another")))
    losing.plan = list(plan)
    outcomes = store.commit_many(batches)
    assert losing.plan == []
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [Conflict]
    assert [len(list(store.history(writer.key))) for writer in writers] == [3, 3, 2, 3]
    chain = store.read(writers[2].key)
    assert chain is not None
    assert chain.results == (a_result(2),)


def test_a_server_that_does_not_come_back_is_unavailable(losing: Losing) -> None:
    store = PostgresStore(the_cluster().url_of(new_schema(), timeout="0.2"))
    writer = Writer().begin(store, 2)
    losing.plan = ["before"] * 1000
    with pytest.raises(Unavailable, match="not known"):
        writer.append(store)
    store.close()


def check_log(store: Store, key: ThreadKey, acknowledged: list[str]) -> None:
    """Everything acknowledged is there, in order, once, and nothing else but one last entry."""
    kept = [entry.id for entry in store.history(key)][::-1]
    seqs = [entry.seq for entry in store.history(key)][::-1]
    assert seqs == list(range(1, len(kept) + 1))
    assert kept[: len(acknowledged)] == acknowledged
    assert len(kept) - len(acknowledged) <= 1


class Writing(Thread):
    """Appends until it is asked to stop; an error ends it."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.writer = Writer(a_key("killed"))
        self.store = store
        self.enough = Event()
        self.acknowledged: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.writer.begin(self.store)
            self.acknowledged.append(self.writer.entries[1].id)
            while not self.enough.is_set():
                self.writer.states = {self.writer.head: b""}  # what it was is of no interest here
                self.acknowledged.append(self.writer.append(self.store).id)
        except BaseException as error:
            self.error = error


def test_ended_backends_lose_nothing(url: str, store: PostgresStore) -> None:
    """Many backends are ended while they commit; the writer never notices."""
    name = url.partition("application_name=")[2].partition("&")[0]
    writing = Writing(store)
    writing.start()
    ended = 0
    with the_cluster().connect() as admin:
        until = time.monotonic() + 60 + KILLS
        while ended < KILLS and time.monotonic() < until and writing.error is None:
            time.sleep(random.uniform(0.001, 0.02))
            found = admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
                " AND state = 'active'",
                [name],
            ).fetchall()
            ended += len(found)
    writing.enough.set()
    writing.join()
    assert writing.error is None
    assert ended >= KILLS
    check_log(store, writing.writer.key, writing.acknowledged)


def test_a_killed_backend_takes_the_server_down_and_loses_nothing() -> None:
    """kill -9 of a backend: the server restarts as after a crash, and the writer continues."""
    binaries = find_binaries()
    assert binaries
    cluster = Cluster(binaries)
    try:
        store = PostgresStore(cluster.url_of("crash", application_name="victim"))
        writing = Writing(store)
        writing.start()
        for _ in range(max(2, KILLS // 10)):
            time.sleep(random.uniform(0.05, 0.2))
            before = len(writing.acknowledged)
            for pid in _backends(cluster, "victim"):
                with suppress(ProcessLookupError):  # the first kill takes the others along
                    os.kill(pid, signal.SIGKILL)
            until = time.monotonic() + 30
            while len(writing.acknowledged) <= before + 1 and writing.error is None:
                assert time.monotonic() < until
                time.sleep(0.01)
        writing.enough.set()
        writing.join()
        assert writing.error is None
        check_log(store, writing.writer.key, writing.acknowledged)
        store.close()
    finally:
        cluster.remove()


def _backends(cluster: Cluster, name: str) -> list[int]:
    try:
        with cluster.connect() as admin:
            found = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name]
            ).fetchall()
    except psycopg.OperationalError:
        return []
    return [pid for (pid,) in found]


def test_a_server_that_was_restarted_is_found_again() -> None:
    binaries = find_binaries()
    assert binaries
    cluster = Cluster(binaries)
    try:
        store = PostgresStore(cluster.url_of("again"))
        writer = Writer().begin(store, 3)
        cluster.stop()
        cluster.start()
        writer.append(store)
        assert [entry.seq for entry in store.history(writer.key)] == [4, 3, 2, 1]
        cluster.stop()
        cluster.start()
        assert store.delete(writer.key) is True
        store.close()
    finally:
        cluster.remove()


def append_on_and_on(writer: Writer, store: Store) -> None:
    for _ in range(3_000):
        writer.append(store)


def test_a_writer_and_a_deletion_meet(store: PostgresStore) -> None:
    """Whichever comes first: the thread is whole or gone, and no late writer is let in."""
    for number in range(5):
        writer = Writer(a_key(f"meeting {number}")).begin(store, 3)
        deleting = Thread(target=store.delete, args=(writer.key,))
        deleting.start()
        with pytest.raises(Conflict) as caught:
            append_on_and_on(writer, store)
        deleting.join()
        assert caught.value.head == 0
        assert list(store.history(writer.key)) == []
        assert store.delete(writer.key) is False


def test_an_input_whose_answer_is_lost_is_enqueued_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: if a worker had started the input meanwhile, it was enqueued a second time."""
    writer = queued(store, "a", worker="one", status="running")
    record = waiting_run(writer, 5)
    write = Pool.write

    def applied_then_lost(pool: Pool, *given: Any) -> Any:
        write(pool, *given)
        monkeypatch.setattr(Pool, "write", write)
        writer.append(store, thread=a_line(writer), consumes=(1,))
        raise Lost("cut")

    monkeypatch.setattr(Pool, "write", applied_then_lost)
    assert enqueue(store, record).reused
    assert inputs_of(store, writer.key) == []
    assert len(store.runs(writer.key)) == 2


@pytest.mark.parametrize("with_head", [False, True])
def test_a_deletion_whose_answer_is_lost_deletes_no_later_thread(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, with_head: bool
) -> None:
    """Was broken: the retry deleted a thread of the same name that was created meanwhile."""
    writer = Writer().begin(store, 3)
    again = Writer(key=writer.key)
    run_together = Pool.run_together

    def applied_then_lost(pool: Pool, *given: Any) -> Any:
        run_together(pool, *given)
        monkeypatch.setattr(Pool, "run_together", run_together)
        again.begin(store, 2)
        raise Lost("cut")

    monkeypatch.setattr(Pool, "run_together", applied_then_lost)
    assert store.delete(writer.key, head=3 if with_head else None)
    assert [found.seq for found in store.history(writer.key)] == [2, 1]
    assert store.delete(writer.key)
    assert list(store.history(writer.key)) == []
