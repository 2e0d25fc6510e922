"""Tenants on one connection, with and without row-level security; and hostile names."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from milecastle.errors import Conflict, InvalidRequest, StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore, migrate, secure
from milecastle.stores.postgres.address import parse
from milecastle.testing.contract_claims import LANE, a_worker, queued
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run, an_entry
from tests.postgres_cluster import (
    TABLES,
    count_rows,
    needs_postgres,
    new_schema,
    pool_of,
    secured_url,
    the_cluster,
)

pytestmark = needs_postgres

OPERATIONS = int(os.environ.get("MILECASTLE_OPERATIONS", "300"))


@pytest.fixture(params=["off", "on"])
def store(request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    guarded = request.param == "on"
    plain = the_cluster().url_of(new_schema(), max_size="1")
    store = PostgresStore(secured_url(max_size="1") if guarded else plain)
    yield store
    store.close()


def test_tenants_on_one_connection_never_meet(store: PostgresStore) -> None:
    """Alternating tenants, with failures thrown in: no row of another tenant is ever seen."""
    chance = random.Random(7)
    writers = {
        tenant: Writer(a_key("shared", tenant), number).begin(store, 2)
        for number, tenant in enumerate(("alpha", "beta", "ga'mma", "\U0001f3f0"), 1)
    }
    for number in range(OPERATIONS):
        tenant = chance.choice(list(writers))
        writer = writers[tenant]
        act(store, writer, number, chance)
        newest = store.entries(writer.key, after=writer.head - 1)
        assert list(newest) == [writer.entries[writer.head]]
        assert {run.run_id for run in store.runs(writer.key)} == {writer.run.run_id}
        assert [info.key for info in store.threads(tenant)] == [writer.key]


def act(store: PostgresStore, writer: Writer, number: int, chance: random.Random) -> None:
    """Append, or do something that fails in the middle of a transaction."""
    match chance.randrange(4):
        case 0:
            with pytest.raises(Conflict):
                store.commit(writer.batch(an_entry(writer.head)))
        case 1:
            late = an_entry(writer.head, id=f"late {number}")
            with pytest.raises(Conflict):
                store.commit(writer.batch(late, results=(a_result(1),)))
        case 2:
            broken = a_run(writer.key, 99, started_at=2**70)
            with pytest.raises(StoreError):
                store.commit(writer.batch(runs=(broken,)))
        case _:
            writer.append(store)


def test_without_a_tenant_nothing_is_seen_or_written() -> None:
    url = secured_url()
    store = PostgresStore(url)
    Writer().begin(store, 3)
    address = parse(url)
    with psycopg.connect(**address.connect, autocommit=True) as bare:
        for table in TABLES:
            name = sql.Identifier(address.schema, table)
            assert bare.execute(sql.SQL("SELECT * FROM {}").format(name)).fetchall() == []
            assert bare.execute(sql.SQL("DELETE FROM {}").format(name)).rowcount == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bare.execute(
                sql.SQL("INSERT INTO {} VALUES ('tenant', 'f', '')").format(
                    sql.Identifier(address.schema, "manifests")
                )
            )
    assert count_rows(url, "entries") == 3
    store.close()


def test_the_tenant_ends_with_the_transaction() -> None:
    store = PostgresStore(secured_url(max_size="1"))
    writer = Writer().begin(store)
    query = b"SELECT current_setting('milecastle.tenant', true)"
    pool = pool_of(store)
    assert pool.run(query, {}, writer.key.tenant) == [(writer.key.tenant,)]
    assert pool.idle[0].connection.execute(query).fetchall() == [("",)]
    store.close()


def test_a_role_that_bypasses_security_is_refused() -> None:
    cluster = the_cluster()
    url = secured_url()
    schema = parse(url).schema
    with pytest.raises(StoreError, match="bypasses"):
        PostgresStore(cluster.url_of(schema, rls="on"))
    role = sql.Identifier(f"app_{schema}")
    cluster.execute(sql.SQL("ALTER ROLE {} BYPASSRLS").format(role))
    with pytest.raises(StoreError, match="bypasses"):
        PostgresStore(url)
    cluster.execute(sql.SQL("ALTER ROLE {} NOBYPASSRLS").format(role))
    PostgresStore(url).close()


def test_an_owner_is_refused() -> None:
    cluster, schema = the_cluster(), new_schema()
    owner = sql.Identifier(f"owner_{schema}")
    cluster.execute(sql.SQL("CREATE ROLE {} LOGIN").format(owner))
    cluster.execute(sql.SQL("GRANT CREATE ON DATABASE postgres TO {}").format(owner))
    migrate(cluster.url_of(schema, f"owner_{schema}"))
    secure(cluster.url_of(schema, f"owner_{schema}"), role=f"owner_{schema}")
    with pytest.raises(StoreError, match="owns"):
        PostgresStore(cluster.url_of(schema, f"owner_{schema}", rls="on"))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_is_not_protected_is_refused(table: str) -> None:
    url = secured_url()
    name = sql.Identifier(parse(url).schema, table)
    cluster = the_cluster()
    cluster.execute(sql.SQL("ALTER TABLE {} NO FORCE ROW LEVEL SECURITY").format(name))
    with pytest.raises(StoreError, match="incomplete"):
        PostgresStore(url)
    cluster.execute(sql.SQL("ALTER TABLE {} FORCE ROW LEVEL SECURITY").format(name))
    cluster.execute(sql.SQL("DROP POLICY tenants ON {}").format(name))
    with pytest.raises(StoreError, match="incomplete"):
        PostgresStore(url)


def test_workers_need_a_role_that_sees_every_tenant() -> None:
    """Seen to fail without the check: a claim found nothing, as if nothing were due."""
    url = secured_url()
    cluster, guarded = the_cluster(), PostgresStore(url)
    for number, tenant in enumerate(("a", "b"), 1):
        queued(guarded, "thread", number, tenant=tenant)
    calls: list[Callable[[], object]] = [
        lambda: guarded.claim("one", [LANE], limit=9),
        lambda: guarded.beat(a_worker("one")),
        lambda: guarded.reclaim(1),
        guarded.depths,
    ]
    for call in calls:
        with pytest.raises(StoreError, match="BYPASSRLS"):
            call()
    exempt = PostgresStore(cluster.url_of(parse(url).schema))
    exempt.beat(a_worker("one"))
    assert [line.key.tenant for line in exempt.claim("one", [LANE], limit=9)] == ["a", "b"]
    line = guarded.thread(a_key("thread", "a"))
    assert line is not None
    assert line.worker == "one"
    exempt.close()
    guarded.close()


def test_security_that_was_not_asked_for_is_named() -> None:
    with pytest.raises(StoreError, match="rls=on"):
        PostgresStore(secured_url().replace("rls=on", "rls=off"))


HOSTILE = (
    "'; DROP TABLE entries; --",
    '"; DROP TABLE entries; --',
    "%s %(tenant)s %%",
    "{schema}",
    "$1",
    "\\'; --",
    "a\x1b0000",
    "\x1b",
    "1 OR 1=1",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
)


def test_hostile_names_behave_as_in_memory(store: PostgresStore) -> None:
    memory = MemoryStore()
    for tenant in HOSTILE[:4]:
        for number, thread in enumerate(HOSTILE, 1):
            for each in (store, memory):
                fill(each, ThreadKey(tenant, thread), number)
    for tenant in HOSTILE[:4]:
        for thread in HOSTILE:
            key = ThreadKey(tenant, thread)
            assert everything_of(store, key) == everything_of(memory, key)


def fill(store: Store, key: ThreadKey, number: int) -> None:
    writer = Writer(key, number).begin(store, 2)
    text = key.thread
    run = a_run(key, 50 + number, graph=text, input_digest=text, metadata={text: text})
    store.commit(writer.batch(runs=(run,), failure=a_failure(run.run_id, message=text)))
    store.commit(writer.batch(results=(a_result(2, text),)))


STRANGE = ("\0", "a\0b", "\ud800", "\udfff\ud800", "\ud83c\udff0", "\x1b", "\x1b0000", "\x1bzzzz")


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
def test_text_that_postgres_cannot_keep_comes_back(store: PostgresStore, text: str) -> None:
    """NUL and lone surrogates, in every field that holds free text: as in the memory store."""
    memory = MemoryStore()
    key = a_key("strange")
    for each in (store, memory):
        names = (text, "plain", text + text)
        entry = an_entry(
            1,
            id=text,
            run_id=text,
            fingerprint=text,
            note=text,
            nodes=names,
            next=names,
            route=names,
            parent_id=text,
        )
        run = a_run(
            key,
            1,
            run_id=text,
            graph=text,
            fingerprint=text,
            previous_run_id=text,
            input_digest=text,
            metadata={text: text},
        )
        failure = a_failure(
            text, error_type=text, message=text, traceback=names, causes=names, node=text
        )
        writer = Writer(key)
        each.commit(
            writer.batch(
                entry,
                runs=(run,),
                failure=failure,
                manifest=(text, text[:1].encode("utf-8", "surrogatepass")),
            )
        )
        writer.head = 1
        each.commit(writer.batch(results=(a_result(1, text), a_result(1, text + "2"))))
    assert everything_of(store, key) == everything_of(memory, key)
    for given in (text, text + "?", "plain"):
        assert store.locate(key, given) == memory.locate(key, given)
        assert store.run(key, given) == memory.run(key, given)
        assert store.failure(key, given) == memory.failure(key, given)
        assert store.manifest(key, given) == memory.manifest(key, given)
        assert list(store.threads(given)) == list(memory.threads(given))
        assert list(store.threads("tenant", after=given)) == list(
            memory.threads("tenant", after=given)
        )


def test_threads_are_listed_after_any_text(store: PostgresStore) -> None:
    memory = MemoryStore()
    for number, name in enumerate(["a", "a\x01", "b", "\ud7ff", "\ue000", "\U0001f3f0"], 1):
        for each in (store, memory):
            Writer(a_key(name), number).begin(each)
    for after in (
        "",
        "a",
        "a\0",
        "\0",
        "\ud800",
        "a\udfff",
        "\ud7ff\ud800",
        "\ue000",
        "\U0001f3f0",
    ):
        found = [info.key.thread for info in store.threads("tenant", after=after)]
        assert found == [info.key.thread for info in memory.threads("tenant", after=after)], after


@pytest.mark.parametrize("tenant", ["", "a\0b", "\ud800"], ids=ascii)
def test_a_tenant_that_cannot_be_is_refused(tenant: str) -> None:
    with pytest.raises(InvalidRequest):
        ThreadKey(tenant, "thread")
