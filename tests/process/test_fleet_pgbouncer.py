"""Behind pgbouncer in transaction mode: all of it works, and hints are not heard.

Listening needs a direct connection (``docs/reference/store-urls.md``): without one workers find
what is due by looking, once a second or as often as ``--poll`` says.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.stores.postgres import PostgresStore
from milecastle.testing import ClaimContract, StoreContract
from tests.postgres_cluster import emptied, needs_postgres, new_schema
from tests.process.fleet_chaos import disturbed
from tests.process.postgres_pooler import needs_pooler, pooled_url

pytestmark = [needs_postgres, needs_pooler]

ROUNDS = int(os.environ.get("MILECASTLE_FLEET_ROUNDS", "2"))
RUNS = int(os.environ.get("MILECASTLE_FLEET_RUNS", "15"))


@cache
def shared_url() -> str:
    return pooled_url(new_schema())


@pytest.mark.requirement("F3")
def test_every_run_ends_as_it_must_behind_a_pooler(tmp_path: Path) -> None:
    url = pooled_url(new_schema())
    outcome = disturbed(url, tmp_path, seed=4, runs=RUNS, rounds=ROUNDS)
    assert outcome.is_good, outcome


class TestStoreBehindPooler(StoreContract):
    def open_store(self) -> Store:
        store = PostgresStore(shared_url())
        emptied(shared_url())
        return store

    def reopen(self, store: Store) -> Store:
        return PostgresStore(shared_url())


class TestClaimsBehindPooler(ClaimContract):
    def open_store(self) -> ClaimStore:
        store = PostgresStore(shared_url())
        emptied(shared_url())
        return store

    def reopen(self, store: Store) -> ClaimStore:
        return PostgresStore(shared_url())
