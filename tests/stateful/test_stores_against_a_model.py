"""Whatever is done to a store, in whatever order, a plain model agrees with it.

`MILECASTLE_STEPS` is the number of steps that each store is put through.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from milecastle.errors import StoreError
from milecastle.ports.store import Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.sqlite import SqliteStore
from tests.broken_stores.every import BROKEN_STORES, BrokenStore
from tests.postgres_cluster import SKIPPED, emptied, new_schema, the_cluster
from tests.seeds import sampled
from tests.stateful.store_machine import store_machine

LENGTH = 30
STEPS = int(os.environ.get("MILECASTLE_STEPS", 16 * LENGTH))

SEARCHES, TRIES = 200, 10
"""How often a disagreement with a broken store is sought, and with how many examples each time."""

SCRATCH = tempfile.mkdtemp(prefix="milecastle-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)


def reopen_jsonl(store: Store) -> Store:
    assert isinstance(store, JsonlStore)
    return JsonlStore(store.root)


def new_sqlite() -> Store:
    return SqliteStore(f"{tempfile.mkdtemp(dir=SCRATCH)}/store.db", synchronous="normal")


def reopen_sqlite(store: Store) -> Store:
    assert isinstance(store, SqliteStore)
    again = SqliteStore(store.path, synchronous="normal")
    store.close()
    return again


@cache
def postgres_url() -> str:
    return the_cluster().url_of(new_schema())


def new_postgres() -> Store:
    store = PostgresStore(postgres_url())
    emptied(postgres_url())
    return store


def reopen_postgres(store: Store) -> Store:
    again = PostgresStore(postgres_url())
    store.close()
    return again


Hooks = tuple[Callable[[], Store], Callable[[Store], Store]]
STORES: dict[str, Hooks] = {
    "memory": (MemoryStore, lambda store: store),
    "jsonl": (lambda: JsonlStore(tempfile.mkdtemp(dir=SCRATCH)), reopen_jsonl),
    "sqlite": (new_sqlite, reopen_sqlite),
    "postgres": (new_postgres, reopen_postgres),
}
SLOWER = {"postgres": 10}
"""By how much fewer steps a store is put through that is reached over a network."""


def profile(steps: int) -> settings:
    return settings(
        max_examples=max(1, steps // LENGTH),
        stateful_step_count=LENGTH,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def as_after_a_crash(store: Store) -> Store:
    return store.crashed() if isinstance(store, BrokenStore) else store


@pytest.mark.parametrize("name", STORES)
def test_a_store_agrees_with_the_model(name: str) -> None:
    if name == "postgres" and SKIPPED:
        pytest.skip("MILECASTLE_NO_POSTGRES is set")
    steps = STEPS // SLOWER.get(name, 1)
    run_state_machine_as_test(store_machine(*STORES[name]), settings=profile(steps))


def search(broken: type[BrokenStore]) -> None:
    """Many short searches: they find a rare order of steps sooner than one long search does."""
    sought = settings(profile(TRIES * LENGTH), database=None, phases=[Phase.generate])
    for number in range(SEARCHES):
        machine = seed(number)(store_machine(broken, as_after_a_crash))
        run_state_machine_as_test(machine, settings=sought)


@pytest.mark.parametrize(
    "broken",
    sampled((store for store in BROKEN_STORES if store.seen_by_model), one_in=8),
    ids=lambda s: s.__name__,
)
def test_a_broken_store_disagrees_with_the_model(broken: type[BrokenStore]) -> None:
    with pytest.raises((AssertionError, StoreError, pytest.fail.Exception)):
        search(broken)
