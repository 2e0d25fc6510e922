"""Lists come from a replica that may be behind, and decisions from the primary.

A real standby: its replay is paused, so that what was read from it shows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from psycopg import sql

from milecastle import App, CheckpointStore, InvalidRequest, Retention, ThreadKey, Unavailable
from milecastle.app.runs.ownership import current_owner
from milecastle.ports.reading import Replica
from milecastle.ports.store import Store
from milecastle.ports.workers import WorkerInfo
from milecastle.server.access import Access
from milecastle.server.application import Application
from milecastle.server.health import OVERVIEW
from milecastle.server.service import Service
from milecastle.stores.opening import find_store, with_objects
from milecastle.stores.postgres import PostgresStore, migrate, replica, secure
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.lag import LagQuery, seconds_behind
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.sharded.databases import Database
from milecastle.testing.entries import Writer
from milecastle.views.documents import HistoryDocument, LsDocument, RunsDocument
from milecastle.views.replicas import source_of
from tests.postgres_cluster import Cluster, needs_postgres, new_schema, the_cluster, wait_until
from tests.process.postgres_pair import Pair
from tests.unit.cli.commands import Desk
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import Api, Trip, build, known_tokens, token_of, trip

pytestmark = needs_postgres

BEHIND = "read from a replica that is"


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    found = Pair(synchronous=False)
    yield found
    found.remove()


@pytest.fixture
def url(pair: Pair) -> str:
    """A store with a replica."""
    return url_of(pair)


def url_of(pair: Pair, user: str = "postgres", schema: str | None = None, **options: str) -> str:
    standby = quote(f"postgresql://{user}@127.0.0.1:{pair.replica.port}/postgres", safe="")
    return pair.primary.url_of(schema or new_schema(), user, replica=standby, **options)


@contextmanager
def paused(pair: Pair) -> Generator[None, None, None]:
    """Everything committed until now is on the standby, and nothing committed in the block."""
    catch_up(pair)
    pair.replica.execute(b"SELECT pg_wal_replay_pause()")
    states = b"SELECT pg_get_wal_replay_pause_state()"
    # The state changes when the next record comes.
    pair.primary.execute(b"SELECT pg_logical_emit_message(true, 'test', '')")
    wait_until(lambda: pair.replica.execute(states) == [("paused",)])
    try:
        yield
    finally:
        pair.replica.execute(b"SELECT pg_wal_replay_resume()")
        catch_up(pair)


def catch_up(pair: Pair) -> None:
    ((position,),) = pair.primary.execute(b"SELECT pg_current_wal_flush_lsn()::text")
    query = sql.SQL("SELECT pg_last_wal_replay_lsn() >= {}::pg_lsn").format(str(position))
    wait_until(lambda: pair.replica.execute(query) == [(True,)])


def write(store: Store, thread: str) -> Writer:
    """Begin a thread."""
    writer = Writer(ThreadKey("default", thread))
    writer.append(store, runs=[writer.run])
    return writer


def view_of(store: Store) -> Replica:
    found = store.replica
    assert found is not None
    return found


class ReplicatedApi(Api):
    """An app on a store with a replica, served."""

    def __init__(self, url: str) -> None:
        self.app: App[Trip] = build().compile(store=url)
        self._runner = asyncio.Runner()
        self.application = Application(
            Service([self.app], worker=False), Access(known_tokens()), ("127.0.0.1:8321",)
        )

    @property
    def store(self) -> Store:
        return self.app.store


@pytest.fixture
def api(url: str) -> Iterator[ReplicatedApi]:
    found = ReplicatedApi(url)
    yield found
    found.close()


def test_lists_are_read_from_the_standby_and_say_how_old_they_are(
    pair: Pair, api: ReplicatedApi
) -> None:
    """Fails if a list reads the primary, or says nothing about its age."""
    api.run("old", 42)
    browser = Browser(api).log_in(token_of("default"))
    with paused(pair):
        api.run("new", 13)
        time.sleep(1.1)
        for place in ("/v1/threads", "/v1/runs"):
            found = api.ask("GET", place)
            assert "old" in found.text
            assert "new" not in found.text
            assert 1 <= int(found.headers["age"]) < 60
        for page in ("/threads", "/threads?sort=name", "/runs?status=any", "/failures", OVERVIEW):
            shown = browser.ask("GET", page).text
            assert BEHIND in shown, page
            assert "new" not in browser.page(page).texts("th"), page
        own = browser.page("/threads/new")
        assert own.statuses()[0] == "failed", "a thread's own page is read from the primary"
    for place in ("/v1/threads", "/v1/runs", "/v1/threads/new/history", "/v1/threads/new/runs"):
        found = api.ask("GET", place)
        assert "new" in found.text
        assert "age" not in found.headers
    assert BEHIND not in browser.ask("GET", "/threads").text


def test_history_is_read_from_the_standby_if_it_has_the_thread(
    pair: Pair, api: ReplicatedApi
) -> None:
    api.run("asks", 42)
    before = api.ask("GET", "/v1/threads/asks/history").json()["checkpoints"]
    with paused(pair):
        api.ask("POST", "/v1/threads/asks/answers", json={"answer": True})
        api.work()
        api.run("new")
        found = api.ask("GET", "/v1/threads/asks/history")
        assert found.json()["checkpoints"] == before
        assert int(found.headers["age"]) >= 1
        runs = api.ask("GET", "/v1/threads/asks/runs")
        assert [run["status"] for run in runs.json()["runs"]] == ["interrupted"]
        for part in ("history", "runs"):
            found = api.ask("GET", f"/v1/threads/new/{part}")
            assert "age" not in found.headers
        assert msgspec.json.decode(found.content, type=RunsDocument).runs[0].status == "completed"
    found = api.ask("GET", "/v1/threads/asks/history")
    assert len(msgspec.json.decode(found.content, type=HistoryDocument).checkpoints) > len(before)


def test_decisions_are_made_from_the_primary_while_the_standby_is_behind(
    pair: Pair, api: ReplicatedApi
) -> None:
    """Fails if anything that decides reads an old state."""
    api.run("asks", 42)
    api.run("failed", 13)
    api.run("done")
    with paused(pair):
        # An answer, and the run that resumes.
        answered = api.ask("POST", "/v1/threads/asks/answers", json={"answer": True})
        assert answered.status_code == 202, answered.text
        api.work()
        assert api.ask("GET", "/v1/threads/asks").json()["status"] == "completed"
        again = api.ask("POST", "/v1/threads/asks/answers", json={"answer": True})
        assert again.status_code == 409, "the old question was answered again"
        # A bulk change finds the failed run of the primary only.
        api.run("failed-too", 13)
        browser = Browser(api).log_in(token_of("default"))
        form = {"status": "failed", "graph": "trip"}
        assert "2 failed runs" in browser.post("/runs/retry", form).texts("h1")[0]
        # Retention removes what has ended on the primary, and nothing else.
        ended = Retention(older_than=timedelta(0))
        report = CheckpointStore(api.store).apply_retention("default", ended)
        assert report.deleted == ("asks", "done")
        # A deleted thread is gone for everything that decides, though it is still listed.
        assert api.ask("GET", "/v1/threads/done/history").status_code == 404
        assert "done" in api.ask("GET", "/v1/threads").text
        assert api.ask("POST", "/v1/threads/done/runs", json=trip(42)).status_code == 202
        api.work()
        assert api.ask("GET", "/v1/threads/done").json()["status"] == "interrupted"
        assert api.ask("DELETE", "/v1/threads/failed").status_code == 200


def test_the_view_has_no_method_that_writes(url: str) -> None:
    store = find_store(url)
    view = view_of(store)
    for name in ("commit", "commit_many", "delete", "prune", "put_back", "transact", "join"):
        assert not hasattr(view, name), name
    for name in ("claim", "beat", "give_back", "reclaim", "retire", "set_limit", "repair", "feed"):
        assert not hasattr(view, name), name
    for name in ("send", "discard", "restore"):
        assert not hasattr(view.mailbox, name), name
    store.close()


def test_a_worker_that_is_alive_is_seen_while_the_standby_is_behind(
    pair: Pair, api: ReplicatedApi
) -> None:
    """Fails if heartbeats come from the standby: then running threads are shown as lost."""
    store = api.store
    assert isinstance(store, PostgresStore)
    with paused(pair):
        store.beat(WorkerInfo(id="w", owner=current_owner(), lanes=("trip@1",), started_at=1))
        assert [one.id for one in view_of(store).workers()] == ["w"]


def test_lag_is_zero_on_an_idle_primary(pair: Pair, url: str) -> None:
    """Fails if the age of the last commit is taken for the lag."""
    store = find_store(url)
    write(store, "one")
    catch_up(pair)
    time.sleep(1.2)
    assert view_of(store).behind() == 0.0
    with paused(pair):
        write(store, "two")
        time.sleep(1.0)
        assert 1.0 <= view_of(store).behind() < 30.0
    assert view_of(store).behind() == 0.0
    store.close()


def test_lag_of_a_standby_that_was_cut_off_is_seen() -> None:
    """Fails if what was received is compared with what was replayed: that is the same then."""
    pair = Pair(synchronous=False)
    try:
        store = find_store(url_of(pair))
        write(store, "one")
        catch_up(pair)
        assert view_of(store).behind() == 0.0
        pair.part()
        write(store, "two")
        time.sleep(1.0)
        assert 1.0 <= view_of(store).behind() < 30.0
        assert [one.key.thread for one in view_of(store).threads("default")] == ["one"]
        store.close()
    finally:
        pair.remove()


def test_the_primary_is_read_while_the_standby_is_down(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a stopped standby makes lists fail, or if the log says nothing, or repeats it."""
    pair = Pair(synchronous=False)
    try:
        store = find_store(url_of(pair))
        view = view_of(store)
        write(store, "one")
        assert len(source_of(store).store.threads("default")) == 1
        catch_up(pair)
        pair.replica.stop("immediate")
        with caplog.at_level(logging.WARNING, "milecastle"):
            write(store, "two")
            assert len(view.threads("default")) == 2
            assert len(list(view.history(ThreadKey("default", "two")))) == 1
            assert view.behind() == 0.0
            monkeypatch.setattr(replica, "_AGAIN", 0.0)
            vars(view)["_again_at"] = 0.0
            assert len(view.threads("default")) == 2
        said = [one.getMessage() for one in caplog.records if "replica" in one.getMessage()]
        assert len(said) == 1, said
        pair.replica.start()
        wait_until(lambda: bool(pair.replication()))
        write(store, "three")  # a standby that has replayed nothing does not know its age
        with paused(pair):
            write(store, "four")
            assert len(view.threads("default")) == 3
            assert view.behind() > 0.0
        store.close()
        with pytest.raises(Unavailable):
            view.threads("default")
    finally:
        pair.remove()


def test_a_promoted_standby_is_not_read() -> None:
    """Fails if a server is read that has gone its own way."""
    pair = Pair(synchronous=False)
    try:
        store = find_store(url_of(pair))
        write(store, "one")
        catch_up(pair)
        assert view_of(store).behind() == 0.0
        pair.replica.promote()
        write(store, "two")
        assert view_of(store).behind() == 0.0
        assert len(view_of(store).threads("default")) == 2
        store.close()
    finally:
        pair.remove()


def test_a_server_of_another_database_is_not_read(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    cluster: Cluster = the_cluster()
    schema = new_schema()
    migrate(cluster.url_of(schema))
    store = find_store(pair.primary.url_of(schema, replica=quote(cluster.url, safe="")))
    write(store, "one")
    assert len(view_of(store).threads("default")) == 1
    assert "not a standby of this database" in caplog.text
    store.close()


def test_a_standby_of_another_database_is_refused() -> None:
    """Fails if its identity is not compared."""
    primary = answering("1 flows", "0/1", 0.0)
    for name in ("2 flows", "1 other"):
        with pytest.raises(Unavailable, match="not a standby of this database"):
            seconds_behind(primary, answering(name, True, True, 0.0))
    assert seconds_behind(primary, answering("1 flows", True, True, 9.0)) == 0.0


def answering(*row: object) -> LagQuery:
    """A server that answers everything with this row."""

    def ask(query: bytes, parameters: Parameters, tenant: str, /) -> list[Row]:
        return [row]

    return ask


def test_row_level_security_holds_on_the_standby(pair: Pair) -> None:
    """Fails if the standby is opened without rls=on: then it refuses, and the primary is read."""
    schema = new_schema()
    owner, role = pair.primary.url_of(schema), f"app_{schema}"
    migrate(owner)
    pair.primary.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    secure(owner, role=role)
    store = find_store(url_of(pair, role, schema, rls="on", migrate="off"))
    write(store, "one")
    with paused(pair):
        write(store, "two")
        assert [one.key.thread for one in view_of(store).threads("default")] == ["one"]
        assert not view_of(store).threads("another")
        assert view_of(store).behind() > 0.0
    store.close()


def test_the_command_line_reads_the_standby_and_says_so(
    pair: Pair, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    desk, at = Desk(tmp_path), ("--store", url)
    app = build("asks").compile(store=url)
    app.invoke({"n": 42, "log": []}, thread="old")
    with paused(pair):
        app.resume("old", answer=True)
        app.invoke({"n": 1, "log": []}, thread="new")
        for verb, rows in ((("ls",), 1), (("history", "old"), 3), (("runs",), 1)):
            found = desk.call(*verb, *at, "--json")
            assert BEHIND in found.stderr, verb
            document = msgspec.json.decode(found.stdout)
            name = {"ls": "threads", "history": "checkpoints", "runs": "runs"}[verb[0]]
            assert len(document[name]) == rows, verb
        checked = desk.call("verify", *at)
        assert BEHIND in checked.stderr
        assert "1 thread, 3 checkpoints," in checked.stdout
        assert "1 thread, 2 checkpoints," in desk.out("verify", "new", *at)
        assert "behind" in desk.out("doctor", *at)
    assert BEHIND not in desk.call("ls", *at).stderr
    assert len(desk.json(LsDocument, "ls", *at).threads) == 2
    assert "not behind" in desk.out("doctor", *at)
    app.close()


def test_doctor_reports_a_standby_that_is_down(pair: Pair, tmp_path: Path) -> None:
    url = pair.primary.url_of(new_schema(), replica=quote("postgresql://u:secret@127.0.0.1:1/x"))
    find_store(url).close()
    found = Desk(tmp_path).call("doctor", "--store", url)
    assert "lists are read from the primary" in found.stdout
    assert "secret" not in found.output


@pytest.mark.parametrize(
    "standby",
    ["nowhere", "sqlite:///runs.db", "postgresql://h/d?schema=s", "postgresql://u:secret@h@h/d"],
)
def test_a_wrong_url_is_refused_without_repeating_it(standby: str) -> None:
    with pytest.raises(InvalidRequest, match="replica= is not a PostgreSQL URL") as refused:
        parse(f"postgresql://h/d?replica={quote(standby, safe='')}")
    assert "secret" not in str(refused.value)


def test_a_replica_is_refused_where_it_would_be_ignored(pair: Pair, url: str) -> None:
    store = find_store(url)
    with pytest.raises(InvalidRequest, match="object storage"):
        with_objects(store, "memory://")
    store.close()
    with pytest.raises(InvalidRequest, match="cannot be read from replicas"):
        Database("a", url_of(pair), lambda member: None).call(lambda member: member.shards)
