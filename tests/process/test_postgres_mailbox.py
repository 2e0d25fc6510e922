"""Messages that meet commits in the server, each pair in the one order that could go wrong."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from threading import Event, Thread
from typing import Any

import msgspec
import pytest
from psycopg.pq.abc import PGresult

from milecastle.errors import Conflict, Corrupted
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.ports.mailbox import MOST_UNREAD, Marks, Sent
from milecastle.ports.notifying import Listening
from milecastle.ports.store import Batch
from milecastle.stores.postgres import PostgresStore, rows, writing
from milecastle.stores.postgres.libpq import Lease, Libpq, TrackedConnection, Values
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost
from milecastle.testing.contract_claims import LANE, a_line, names, queued
from milecastle.testing.entries import Writer, a_key, make_id
from tests.postgres_cluster import needs_postgres, new_schema, schema_of, the_cluster, wait_until

pytestmark = needs_postgres


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    with closing(PostgresStore(the_cluster().url_of(new_schema(), max_size="2"))) as store:
        yield store


class Open:
    """A transaction that is committed at the end of its block."""

    def __init__(self, store: PostgresStore, lease: Lease) -> None:
        self._sql, self._lease = Statements(schema_of(store)), lease

    def send(self, key: ThreadKey, mark: str) -> None:
        values = writing.send_values(key, "go", mark, b"x", MOST_UNREAD)
        assert self._lease.write(self._sql.send, values).ntuples == 1

    def commit(self, batch: Batch) -> None:
        assert self._lease.write(self._sql.commit, writing.commit_values([batch])).ntuples == 1

    def step(self, batch: Batch) -> None:
        values = writing.append_values(batch, same=False)
        assert self._lease.write(self._sql.append, values).command_tuples == 1

    def discard(self, key: ThreadKey, number: int) -> None:
        asked = rows.key_parameters(key, number=number)
        assert self._lease.connection.execute(self._sql.discard, asked).rowcount == 1


@contextmanager
def transaction(store: PostgresStore) -> Generator[Open, None, None]:
    with TrackedConnection.connect(the_cluster().url) as connection:
        connection.execute("SELECT 1")
        yield Open(store, Lease(connection, prepares=False))


class Waiting(Thread):
    """Does something that has to wait for a lock, and keeps its outcome."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work
        self.outcome: object = None
        self.start()
        query = b"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: the_cluster().execute(query) != [(0,)])

    def run(self) -> None:
        try:
            self.outcome = self._work()
        except Conflict as conflict:
            self.outcome = conflict

    def ended(self) -> object:
        self.join(30)
        assert not self.is_alive()
        return self.outcome


def running(store: PostgresStore, name: str = "a", number: int = 1) -> Writer:
    return queued(store, name, number, worker="one", status="running")


def suspension(writer: Writer, **changes: Any) -> Batch:
    row = {"status": "sleeping", "due_at": None, "waiting_topics": (("go", 0),), **changes}
    return writer.batch(writer.plan(), thread=a_line(writer, **row))


def numbers(store: PostgresStore, writer: Writer) -> list[int]:
    return [message.number for message in store.mailbox.unread(writer.key)]


def send(store: PostgresStore, writer: Writer, mark: str) -> Sent:
    return store.mailbox.send(writer.key, "go", mark, b"x")


def test_message_behind_a_suspension_wakes_the_thread(store: PostgresStore) -> None:
    """Seen to fail: the topics were read as of the statement's start."""
    writer = running(store)
    with transaction(store) as other:
        other.commit(suspension(writer))
        sending = Waiting(lambda: send(store, writer, "m"))
    assert isinstance(sending.ended(), Sent)
    assert names(store.claim("two", [LANE], limit=9)) == ["a"]


@pytest.mark.parametrize("together", [False, True])
def test_suspension_behind_a_message_is_due(store: PostgresStore, together: bool) -> None:
    """Seen to fail: without the second statement, alone and in a group."""
    writer, other = running(store), running(store, "b", 2)
    batches = [suspension(writer), other.batch(other.plan())]

    def commit() -> object:
        if together:
            return store.commit_many(batches)
        store.commit(batches[0])
        return None

    with transaction(store) as first:
        first.send(writer.key, "m")
        suspending = Waiting(commit)
    assert suspending.ended() == ([None, None] if together else None)
    assert names(store.claim("two", [LANE], limit=9)) == ["a"]


def test_refused_suspension_makes_nothing_due(store: PostgresStore) -> None:
    """Seen to fail: without the comparison of xmin in wake_waiting.sql."""
    writer = running(store)
    late = suspension(writer)
    writer.append(store, thread=a_line(writer, worker="one", waiting_topics=(("go", 0),)))
    send(store, writer, "m")
    store.give_back("one", writer.key, delay=1000)
    row = store.thread(writer.key)
    with pytest.raises(Conflict):
        store.commit(late)
    assert [type(one) for one in store.commit_many([late])] == [Conflict]
    assert store.thread(writer.key) == row


def test_same_mark_sent_twice_at_once_is_one_message(store: PostgresStore) -> None:
    """Seen to fail: with ON CONFLICT DO NOTHING."""
    writer = running(store)
    with transaction(store) as other:
        other.send(writer.key, "m")
        sending = Waiting(lambda: send(store, writer, "m"))
    assert sending.ended() == Sent(number=1, reused=True, status="running")
    assert send(store, writer, "next").number == 2


@pytest.mark.parametrize("with_row", [False, True])
def test_step_behind_a_discard_is_refused(store: PostgresStore, with_row: bool) -> None:
    """Seen to fail: without the locks on messages, the discarded one was applied."""
    writer = running(store)
    for mark in ("m1", "m2"):
        send(store, writer, mark)
    row = {"thread": a_line(writer)} if with_row else {}
    batch = writer.batch(writer.plan(), consumes=(1, 2), **row)
    with transaction(store) as other:
        other.discard(writer.key, 1)
        committing = Waiting(lambda: store.commit(batch))
    assert isinstance(committing.ended(), Conflict)
    assert numbers(store, writer) == [2]
    writer.append(store, consumes=(2,))


def test_group_that_loses_the_race_consumes_nothing(store: PostgresStore) -> None:
    """Seen to fail: messages were consumed before the key had decided."""
    writer = running(store)
    send(store, writer, "m")
    batch = writer.batch(writer.plan(), consumes=(1,))
    with transaction(store) as other:
        other.step(writer.batch(writer.plan(id=make_id(9))))
        committing = Waiting(lambda: store.commit_many([batch]))
    outcome = committing.ended()
    assert isinstance(outcome, list)
    assert isinstance(outcome[0], Conflict)
    assert numbers(store, writer) == [1]


def test_message_behind_a_deletion_is_refused(store: PostgresStore) -> None:
    """Seen to fail: when ``send`` did not compare the row's run."""
    writer = running(store)
    send(store, writer, "m")
    store.delete(writer.key)
    for _ in range(2):
        with pytest.raises(Exception, match="does not exist"):
            send(store, writer, "m")
    assert store.mailbox.marks(writer.key) == Marks()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_message_whose_answer_is_lost_is_stored_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Seen to fail: when ``send`` did not catch ``Lost``."""
    writer, plan, write = running(store), [moment], Pool.write

    def losing(pool: Pool, statement: Libpq, values: Values, tenant: str) -> PGresult:
        lost = plan.pop() if plan else ""
        if lost == "before":
            raise Lost("before it was sent")
        result = write(pool, statement, values, tenant)
        if lost == "after":
            raise Lost("after it was sent")
        return result

    monkeypatch.setattr(Pool, "write", losing)
    assert send(store, writer, "m").number == 1
    assert numbers(store, writer) == [1]


def test_due_threads_are_notified(store: PostgresStore) -> None:
    """Seen to fail: without a ring after ``send``, after a commit, and after a group of them."""
    heard = Event()
    listener: Listening = store.listen(heard.set)
    with closing(listener):
        assert heard.wait(30)  # it connected

        def rings(work: Callable[[], object]) -> bool:
            heard.clear()
            work()
            return heard.wait(30)

        writers = [running(store, name, number) for number, name in enumerate("abc", 1)]
        store.commit(suspension(writers[0]))
        assert rings(lambda: send(store, writers[0], "m"))
        for writer in writers[1:]:
            send(store, writer, "m")
        other = Writer(a_key("other"), 9).begin(store)
        group = [suspension(writers[2]), other.batch(other.plan())]
        assert rings(lambda: store.commit(suspension(writers[1])))
        assert rings(lambda: store.commit_many(group))


def test_damaged_waiting_topics_are_reported(store: PostgresStore) -> None:
    """Seen to fail: when the column was not checked."""
    writer = running(store)
    store.commit(suspension(writer))
    text = f"UPDATE {schema_of(store)}.threads SET waiting_topics = '[[1]]'"
    the_cluster().execute(text.encode())
    with pytest.raises(Corrupted, match="waiting_topics"):
        store.thread(writer.key)


MANY = 3_000


def pages(store: PostgresStore, statement: Libpq | bytes, values: Any) -> int:
    """How many pages a statement touches; nothing of it stays."""
    text = statement.text if isinstance(statement, Libpq) else statement
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text
    with TrackedConnection.connect(the_cluster().url) as connection:
        connection.execute("BEGIN")
        if isinstance(statement, Libpq):
            result = connection.pgconn.exec_params(
                explain, values, statement.types, statement.formats
            )
            found = msgspec.json.decode(result.get_value(0, 0) or b"")
        else:
            ((found,),) = connection.execute(explain, values).fetchall()
        connection.rollback()
    plan = found[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])
def test_messages_cost_the_same_however_many_there_are(
    store: PostgresStore, analyzed: bool
) -> None:
    """Seen to fail: without the partial indexes, and when ``send`` counted what is unread."""
    few, many = running(store, "few"), running(store, "many", 2)
    schema = schema_of(store)
    the_cluster().execute(
        f"ALTER TABLE {schema}.mailbox SET (autovacuum_enabled = off);"
        f"INSERT INTO {schema}.mailbox (number, sent_at, consumed, tenant, thread, topic, mark, "
        "payload) SELECT n, 0, CASE WHEN n % 2 = 0 THEN 1 END, 'tenant', 'many', "
        f"CASE WHEN n > {MANY} - 8 THEN 't1' ELSE 't0' END, 'm' || n, '' "
        f"FROM generate_series(1, {MANY}) AS n;"
        f"UPDATE {schema}.threads SET last_message = {MANY}, unread = {MANY} "
        "WHERE thread = 'many'".encode()
    )
    for number in range(1, 8):
        store.mailbox.send(few.key, f"t{number % 4}", f"m{number}", b"")
    if analyzed:
        the_cluster().execute(f"ANALYZE {schema}.mailbox, {schema}.threads".encode())
    sql = Statements(schema)

    def asked(writer: Writer, **more: object) -> dict[str, Any]:
        return rows.key_parameters(writer.key, after=0, limit=2, **more)

    def consuming(writer: Writer, number: int) -> Values:
        batch = writer.batch(writer.plan(), consumes=(number,))
        return writing.append_consuming_values(batch, same=False)

    def sending(writer: Writer) -> Values:
        return writing.send_values(writer.key, "t1", "new", b"x", MOST_UNREAD)

    for short, long in (
        ((sql.unread, asked(few)), (sql.unread, asked(many))),
        (
            (sql.unread_of_topic, asked(few, topic="t1")),
            (sql.unread_of_topic, asked(many, topic="t1")),
        ),
        ((sql.send, sending(few)), (sql.send, sending(many))),
        (
            (sql.append_consuming, consuming(few, 5)),
            (sql.append_consuming, consuming(many, MANY - 1)),
        ),
    ):
        assert pages(store, *long) <= 1.5 * pages(store, *short) + 10, short[0]


def test_pruning_forgets_more_messages_than_one_statement_does(store: PostgresStore) -> None:
    """Seen to fail: when the first statement's messages were the only ones forgotten."""
    writer = Writer(a_key("a"), 1)
    writer.begin(store, 3)
    text = (
        f"INSERT INTO {schema_of(store)}.mailbox (number, sent_at, consumed, tenant, thread, "
        "topic, mark, payload) SELECT n, 0, CASE WHEN n > 1 THEN 1 END, 'tenant', 'a', 't', "
        "'m' || n, '' FROM generate_series(1, 2500) AS n"
    )
    the_cluster().execute(text.encode())
    writer.append(store, SNAPSHOT)
    assert store.prune(writer.key, head=4, cut=4, rewritten=()) == 3
    assert store.mailbox.marks(writer.key).consumed == ()
    assert numbers(store, writer) == [1]
