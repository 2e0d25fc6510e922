"""Tenants that share a store, with calls that fail in between: none sees anything of another.

`MILECASTLE_OPERATIONS` is the number of operations on each store.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import msgspec.structs
import pytest

from milecastle.errors import Conflict
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.store import Batch, Chain, Opened, Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore
from tests.every_store import EVERY_KIND, POSTGRES, Stores
from tests.postgres_cluster import new_schema, secured_url, the_cluster
from tests.process.tenants import TENANTS, Tenants

OPERATIONS = int(os.environ.get("MILECASTLE_OPERATIONS", "300"))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path)
    yield stores
    stores.close()


def act(store: Store, operations: int) -> Tenants:
    tenants = Tenants(store, seed=operations)
    for _ in range(operations):
        tenants.act()
        if tenants.foreign:
            break
    return tenants


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_tenant_sees_another(stores: Stores, kind: str) -> None:
    assert act(stores.open(kind), OPERATIONS).foreign == []


@contextmanager
def cancelling(name: str) -> Generator[None, None, None]:
    """Cancel whatever the connections of that name do, over and over."""
    enough = Event()

    def cancel() -> None:
        with the_cluster().connect() as admin:
            while not enough.is_set():
                admin.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = %s AND state = 'active'",
                    [name],
                )
                time.sleep(random.uniform(0.001, 0.03))

    thread = Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@POSTGRES
@pytest.mark.parametrize("secured", [False, True])
def test_one_connection_with_cancelled_calls_mixes_nothing_up(secured: bool) -> None:
    name = new_schema()
    options = {"max_size": "1", "application_name": name}
    url = secured_url(**options) if secured else the_cluster().url_of(name, **options)
    store = PostgresStore(url)
    with cancelling(name):
        tenants = act(store, OPERATIONS)
    store.close()
    print(f"{OPERATIONS} operations, {tenants.unanswered} cancelled")
    assert tenants.foreign == []
    assert tenants.unanswered > 0


class Mixing(MemoryStore):
    """Finds the runs of any tenant."""

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        keys = (ThreadKey(tenant, key.thread) for tenant in TENANTS)
        return next(filter(None, (MemoryStore.run(self, each, run_id) for each in keys)), None)


class Folding(MemoryStore):
    """Takes names that differ in case for the same, as some disks and databases do."""

    def commit(self, batch: Batch) -> None:
        super().commit(msgspec.structs.replace(batch, key=_folded(batch.key)))

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return super().read(_folded(key), seq)

    def open(self, key: ThreadKey) -> Opened | None:
        return super().open(_folded(key))


def _folded(key: ThreadKey) -> ThreadKey:
    return ThreadKey(key.tenant.lower(), key.thread)


@pytest.mark.parametrize("broken", [Mixing, Folding])
def test_a_store_that_mixes_tenants_is_caught(broken: type[MemoryStore]) -> None:
    with suppress(Conflict):
        assert act(broken(), 5_000).foreign != []
