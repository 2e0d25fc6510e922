"""How the PostgreSQL store keeps a step in few bytes, and finds everything again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql

from milecastle.model.checkpoint import HOLDING, SNAPSHOT, Source
from milecastle.model.ids import IdMaker
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.values import HELD, SOURCES, id_from, id_to, origin_from, origin_to
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key, a_result, a_run, an_entry, make_id
from tests.postgres_cluster import (
    fresh_store,
    needs_postgres,
    new_schema,
    pool_of,
    schema_of,
    the_cluster,
)

pytestmark = needs_postgres


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    yield from fresh_store()


def column(store: PostgresStore, name: str) -> list[object]:
    """A column of the log, oldest first."""
    query = sql.SQL("SELECT {} FROM {} ORDER BY seq").format(
        sql.Identifier(name), sql.Identifier(schema_of(store), "entries")
    )
    return [value for (value,) in the_cluster().execute(query)]


IDS = (
    "",
    "x",
    "\0",
    "\x01",
    "\x02",
    "x" * 14,
    "x" * 15,
    "x" * 16,
    "\ud800",
    make_id(7),
    make_id(2**90).upper(),
    make_id(7).replace("-", ""),
    "{" + make_id(7) + "}",
)


def test_no_two_ids_have_the_same_bytes() -> None:
    assert [id_from(id_to(text)) for text in IDS] == list(IDS)
    assert len({id_to(text) for text in IDS}) == len(IDS)
    assert all(len(id_to(text)) > 0 for text in IDS)
    assert len(id_to(make_id(7))) == 16


@pytest.mark.parametrize("fingerprint", ["", "3f" * 16, "3F" * 16, "3f3", "\ud800", "\0"])
def test_no_two_origins_have_the_same_bytes(fingerprint: str) -> None:
    found = {origin_to(text, fingerprint): (text, fingerprint) for text in IDS}
    assert len(found) == len(IDS)
    assert {stored: origin_from(stored) for stored in found} == found


def test_sources_that_hold_are_recognized_by_their_number() -> None:
    assert {source for source, code in SOURCES.items() if code >= HELD} == HOLDING


def test_what_a_run_has_in_common_is_kept_once(store: PostgresStore) -> None:
    writer = Writer().begin(store, 5)
    assert [bool(origin) for origin in column(store, "origin")] == [True] + [False] * 4
    assert [bool(parent) for parent in column(store, "parent")] == [True] + [False] * 4
    check_reads(store, writer)


@pytest.mark.parametrize("together", [True, False])
def test_several_entries_say_what_differs_from_the_one_before(
    store: PostgresStore, together: bool
) -> None:
    """Another run, a fork off the head, entries that hold: in one batch as if one by one."""
    writer = Writer().begin(store, 2)
    head = writer.entries[2].id
    entries = (
        an_entry(3, source="takeover", parent_id=head),
        an_entry(4, source="interrupt"),
        an_entry(5, parent_id=head, run_id=make_id(7)),
        an_entry(6, source="sleep", run_id=make_id(7)),
        an_entry(7, source="answer", run_id=make_id(7)),
    )
    for batch in [entries] if together else [(entry,) for entry in entries]:
        store.commit(Batch(key=writer.key, head=batch[0].seq - 1, entries=batch))
    assert list(store.entries(writer.key))[2:] == list(entries)
    assert column(store, "held") == [0, 0, 1, 2, 0, 1, 2]
    parents = [bool(parent) for parent in column(store, "parent")]
    assert parents == [True, False, False, False, True, False, False]
    if together:
        assert column(store, "told") == [1, 1, 3, 3, 5, 5, 5]
        told = [bool(origin) for origin in column(store, "origin")]
        assert told == [True, False, True, False, True, False, False]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
@pytest.mark.parametrize("starts", [(1, 2, 3), (5, 5, 5), (5, 1, 5)])
def test_of_several_records_in_a_batch_the_last_is_in_the_index(
    store: PostgresStore, order: tuple[int, ...], starts: tuple[int, ...]
) -> None:
    """Whatever their starts are; a record that comes later without a line changes nothing."""
    writer = Writer()
    runs = [a_run(writer.key, number, started_at=starts[number - 1]) for number in order]
    store.commit(writer.batch(runs=tuple(runs), thread=None))
    last = make_id(order[-1])
    assert [info.run_id for info in store.threads(writer.key.tenant)] == [last]
    store.commit(writer.batch(runs=(a_run(writer.key, 4, started_at=9),), thread=None))
    assert [info.run_id for info in store.threads(writer.key.tenant)] == [last]
    assert [run.run_id for run in store.runs(writer.key)] == [
        make_id(4),
        *(make_id(number) for number in reversed(order)),
    ]


@pytest.mark.parametrize("held_before", [False, True])
@pytest.mark.parametrize(
    "sources",
    [
        (),
        ("step",),
        ("takeover",),
        ("takeover", "interrupt"),
        ("interrupt", "step"),
        ("step", "interrupt", "answer"),
    ],
)
def test_results_go_and_stay_with_a_batch_of_several_entries(
    store: PostgresStore, sources: tuple[Source, ...], held_before: bool
) -> None:
    """As on the memory store."""
    memory = MemoryStore()
    found: list[set[str]] = []
    for each in (store, memory):
        writer = Writer().begin(each)
        each.commit(writer.batch(results=(a_result(1, "early"),)))
        if held_before:
            writer.append(each, source="takeover", runs=(a_run(writer.key, 2),))
        entries = [an_entry(writer.head + 1 + n, source=s) for n, s in enumerate(sources)]
        given = (a_result(writer.head + len(entries), "late"),)
        each.commit(writer.batch(*entries, results=given, runs=(a_run(writer.key, 3),)))
        chain = each.read(writer.key)
        assert chain is not None
        found.append({result.task for result in chain.results})
    assert found[0] == found[1]
    rows = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(schema_of(store), "results"))
    assert the_cluster().execute(rows) == [(len(found[1]),)]


def test_writer_that_did_not_write_the_previous_entry_writes_everything_again(
    store: PostgresStore,
) -> None:
    """Another process may have written it; it is read back right either way."""
    writer = Writer().begin(store, 3)
    other = PostgresStore(the_cluster().url_of(schema_of(store)))
    writer.write(other, (0, 0))
    writer.append(store, run_id=make_id(77))
    writer.write(store, (0,))
    other.close()
    told = [bool(origin) for origin in column(store, "origin")]
    assert told == [True, False, False, True, False, True, True]
    check_reads(store, writer)


def test_a_fork_has_the_origin_of_its_parent_and_not_of_the_head(store: PostgresStore) -> None:
    """The parent is what this store wrote last; meanwhile another run continued elsewhere."""
    writer = Writer().begin(store, 3)
    other = PostgresStore(the_cluster().url_of(schema_of(store)))
    for in_a_group in (False, True):
        parent = writer.head
        writer.append(other, run_id=make_id(88))
        fork = writer.plan(at=parent)
        if in_a_group:
            store.commit_many([writer.batch(fork)])
        else:
            store.commit(writer.batch(fork))
        writer.keep(fork)
        check_reads(store, writer)
    other.close()


def test_pruning_gives_the_first_remaining_entry_what_it_had_from_those_below(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milecastle.stores.postgres.store._BATCH", 2)
    writer = Writer().begin(store, 4)
    writer.run = a_run(writer.key, 2)
    writer.write(store, (0, 0, SNAPSHOT, 0, 0, SNAPSHOT, 0))
    for cut in (3, 4, 6, 7, 10):
        writer.prune(store, cut)
        check_reads(store, writer)
        assert [entry.seq for entry in store.entries(writer.key)] == list(range(cut, 12))
        assert list(store.entries(writer.key)) == list(writer.entries.values())
    writer.append(store)
    check_reads(store, writer)


def test_a_checkpoint_is_located_whatever_its_id_and_its_time(store: PostgresStore) -> None:
    """Ids in the order of time, ids of a clock that went back, ids that tell no time."""
    maker, writer = IdMaker(), Writer().begin(store)
    for number in range(300):
        strange = f"id {number}" if number % 50 == 3 else maker.make()
        time = (1_000 if number % 70 == 5 else 1_800_000_000_000_000) + number
        writer.append(store, id=strange, created_at=time)
    for seq, entry in writer.entries.items():
        assert store.locate(writer.key, entry.id) == seq
    assert store.locate(writer.key, maker.make()) is None
    assert store.locate(a_key("another"), writer.entries[3].id) is None


def test_id_with_a_time_is_found_without_scanning_the_thread(
    store: PostgresStore,
) -> None:
    maker, writer = IdMaker(), Writer().begin(store)
    for _ in range(300):
        identifier = maker.make()
        time = int(identifier.replace("-", "")[:12], 16) * 1000 + 500
        writer.append(store, id=identifier, created_at=time)
    vars(store)["_sql"].locate_anywhere = b"SELECT 1 / 0"
    for seq in (2, 100, 200, 301):
        assert store.locate(writer.key, writer.entries[seq].id) == seq


def test_a_connection_that_was_lent_before_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its statements prepared already, and need not be replaced."""
    monkeypatch.setattr("milecastle.stores.postgres.pool._USES", 3)
    store = PostgresStore(the_cluster().url_of(new_schema(), max_size="1"))
    backends: set[int] = set()
    writer = Writer().begin(store)
    for _ in range(20):
        writer.append(store)
        backends |= {lease.connection.info.backend_pid for lease in pool_of(store).idle}
    check_reads(store, writer)
    assert len(backends) == 1
    store.close()


def test_a_session_that_forgot_its_statements_is_replaced(store: PostgresStore) -> None:
    """As behind a pooler that hands out others: what was sent was not run, and is sent again."""
    writer = Writer().begin(store, 3)
    (lease,) = pool_of(store).idle
    lease.connection.execute("DEALLOCATE ALL")
    writer.append(store)
    check_reads(store, writer)
    (another,) = pool_of(store).idle
    assert another is not lease


def test_row_that_is_not_a_thread_does_not_stop_a_list(store: PostgresStore) -> None:
    """The others are listed, whatever the order and the page; a warning and ``verify`` name it.

    Seen to fail: every list of the tenant raised ``Corrupted``, which did not name the thread.
    """
    for number, name in enumerate("abcd"):
        Writer(a_key(name), number).begin(store, 2)
    table = sql.Identifier(schema_of(store), "threads")
    order = sql.SQL("UPDATE {} SET status = 'odd' WHERE thread = 'b' RETURNING 1").format(table)
    assert the_cluster().execute(order) == [(1,)]
    tenant = a_key("a").tenant
    with pytest.warns(RuntimeWarning, match=f"table threads, tenant '{tenant}', thread 'b'"):
        assert [info.key.thread for info in store.threads(tenant)] == ["a", "c", "d"]
    with pytest.warns(RuntimeWarning, match="thread 'b'"):
        assert [info.key.thread for info in store.threads(tenant, limit=2)] == ["a", "c"]
    with pytest.warns(RuntimeWarning, match="thread 'b'"):
        page = store.recent_threads(tenant, limit=3)
    assert [info.key.thread for info in page.items] == ["d", "c", "a"]
    inspected = list(store.verify(tenant))
    assert [one.thread for one in inspected if one.is_thread] == ["a", "c", "d"]
    (finding,) = inspected[-1].findings
    assert "thread 'b'" in finding.place
