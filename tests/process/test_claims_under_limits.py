"""Claims under limits, while a process that claims is suspended, and behind many held back."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from milecastle import Unavailable
from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.sharded import ShardedStore
from milecastle.testing.contract_claims import LANE, names, queued
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster
from tests.sharded_cluster import new_map

pytestmark = needs_postgres


class Suspended:
    """A function that stops in its first call until it is told to continue."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real, self.reached, self.continues = real, Event(), Event()

    def __call__(self, *given: Any) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            assert self.continues.wait(60)
        return self.real(*given)


@contextmanager
def one_suspended_of_two(
    of: ClaimStore, other: ClaimStore, place: Suspended
) -> Generator[list[str], None, None]:
    """Suspend a claim of one store; the threads that the other one gets meanwhile."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(of.claim, "suspended", [LANE], limit=1)
        try:
            assert place.reached.wait(30)
            other.set_limit(Limit(graph="another", concurrency=3))
            yield names(pool.submit(other.claim, "other", [LANE], limit=1).result(20))
        finally:
            place.continues.set()
        with pytest.raises(Unavailable):
            first.result(30)


def test_a_suspended_claim_stops_no_other_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed: it held the locks of the limits, and others waited as long as it was suspended."""
    url = the_cluster().url_of(new_schema())
    with closing(PostgresStore(url)) as store, closing(PostgresStore(url)) as other:
        queued(store, "a", 1)
        queued(store, "b", 2)
        store.set_limit(Limit(graph="graph", concurrency=1))
        claims: Any = vars(store)["_claims"]
        place = Suspended(claims._take)
        monkeypatch.setattr(claims, "_take", place)
        with one_suspended_of_two(store, other, place) as got:
            assert got == ["a"]
        assert store.claimed("suspended") == []


def test_a_suspended_claim_over_databases_takes_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed: others waited, and what it took afterwards would have exceeded the limit."""
    path = new_map(tmp_path)
    with (
        closing(ShardedStore(path)) as store,
        closing(ShardedStore(path)) as other,
    ):
        for number in range(1, 9):
            queued(store, f"{number}", number, due_at=number)
        store.set_limit(Limit(graph="graph", concurrency=1, rate=5, period=3600.0))
        claims: Any = vars(store)["_claims"]
        place = Suspended(claims._take)
        monkeypatch.setattr(claims, "_take", place)
        with one_suspended_of_two(store, other, place) as got:
            assert len(got) == 1
        assert store.claimed("suspended") == []
        assert len(store.claimed("other")) == 1


def test_more_held_back_than_a_look_visits_hide_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed: each claim got past a few of them, and a worker waited longer after each."""
    monkeypatch.setattr("milecastle.stores.postgres.claiming.VISITS", 3)
    with closing(PostgresStore(the_cluster().url_of(new_schema()))) as store:
        for number in range(1, 11):
            queued(store, "x", number, tenant=f"held {number:02}", due_at=number)
            queued(store, "y", 40 + number, tenant=f"asleep {number:02}", due_at=2**53)
            store.set_limit(Limit(tenant=f"held {number:02}", concurrency=0))
        for number in range(11, 15):
            queued(store, f"{number}", number, tenant="zz", due_at=number)
        assert [names(store.claim("one", [LANE], limit=1)) for _ in range(5)] == [
            ["11"],
            ["12"],
            ["13"],
            ["14"],
            [],
        ]


def test_more_full_keys_than_a_look_visits_hide_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed with a scan that continues behind the tenant at which it gave up."""
    monkeypatch.setattr("milecastle.stores.postgres.claiming.VISITS", 3)
    with closing(PostgresStore(the_cluster().url_of(new_schema()))) as store:
        store.set_limit(Limit(key="customer", concurrency=1))
        for number in range(1, 11):
            key = f"customer={number:02}"
            queued(store, f"runs {number}", number, limit_key=key, due_at=1)
        assert len(store.claim("one", [LANE], limit=99)) == 10
        for number in range(1, 11):
            key = f"customer={number:02}"
            queued(store, f"held {number}", 20 + number, limit_key=key, due_at=2)
            queued(store, f"asleep {number}", 40 + number, limit_key=f"b={number:02}", due_at=2**53)
        for number in range(11, 14):
            queued(store, f"{number}", 60 + number, limit_key=f"customer={number}", due_at=number)
        queued(store, "14", 80, due_at=14)
        found = [names(store.claim("one", [LANE], limit=1)) for _ in range(5)]
        assert found == [["11"], ["12"], ["13"], ["14"], []]
