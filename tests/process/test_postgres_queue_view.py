"""The view ``queue`` of the PostgreSQL store, which autoscalers and dashboards read."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from milecastle.stores.postgres import PostgresStore, secure
from milecastle.testing.contract_claims import FAR, LANE, a_worker, queued
from tests.postgres_cluster import fresh_store, needs_postgres, schema_of, the_cluster

pytestmark = needs_postgres

COLUMNS = sql.SQL("SELECT graph, tenant, due, running FROM {} ORDER BY tenant")


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    yield from fresh_store()


def seen(store: PostgresStore) -> list[tuple[object, ...]]:
    return the_cluster().execute(COLUMNS.format(sql.Identifier(schema_of(store), "queue")))


@pytest.mark.requirement("F11")
def test_it_counts_what_is_due_and_what_runs_by_graph_and_tenant(store: PostgresStore) -> None:
    """As ``depths`` does. Fails if what sleeps or has no lane is counted."""
    assert seen(store) == []
    for number, name in enumerate("abc", 1):
        queued(store, name, number)
    queued(store, "d", 4, tenant="zebra")
    queued(store, "sleeps", 5, due_at=FAR)
    queued(store, "ended", 6, due_at=None)
    queued(store, "not ours", 7, lane="")
    store.beat(a_worker("one"))
    store.claim("one", [LANE], limit=1)
    assert seen(store) == [("graph", "tenant", 2, 1), ("graph", "zebra", 1, 0)]
    depths = [("graph", one.tenant, one.due, one.running) for one in store.depths()]
    assert depths == seen(store)


def test_it_says_for_how_long_the_oldest_has_waited(store: PostgresStore) -> None:
    """In seconds of the server's clock; 0 if nothing waits. Fails if microseconds are shown."""
    view = sql.Identifier(schema_of(store), "queue")
    age = sql.SQL("SELECT oldest_seconds FROM {}").format(view)
    queued(store, "a")
    change = sql.SQL("UPDATE {} SET due_at = due_at - 60000000 RETURNING 1").format(
        sql.Identifier(schema_of(store), "threads")
    )
    assert the_cluster().execute(change) == [(1,)]
    ((oldest,),) = the_cluster().execute(age)
    assert isinstance(oldest, float)
    assert 60 <= oldest < 120
    store.beat(a_worker("one"))
    store.claim("one", [LANE], limit=1)
    assert the_cluster().execute(age) == [(0.0,)]


def test_a_role_under_row_level_security_sees_its_tenant_only(store: PostgresStore) -> None:
    """Fails without ``security_invoker``: the view shows what its owner may see."""
    schema = schema_of(store)
    role, view = f"app_{schema}", sql.Identifier(schema, "queue")
    for number, tenant in enumerate(("ours", "theirs"), 1):
        queued(store, "a", number, tenant=tenant)
    the_cluster().execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    secure(the_cluster().url_of(schema), role=role)
    grant = sql.SQL("GRANT SELECT ON {} TO {}")
    the_cluster().execute(grant.format(view, sql.Identifier(role)))
    address = f"postgresql://{role}@127.0.0.1:{the_cluster().port}/postgres"
    with psycopg.connect(address, autocommit=True) as connection:
        assert connection.execute(COLUMNS.format(view)).fetchall() == []
        connection.execute("SELECT set_config('milecastle.tenant', 'ours', false)")
        assert connection.execute(COLUMNS.format(view)).fetchall() == [("graph", "ours", 1, 0)]
