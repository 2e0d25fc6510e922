from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from milecastle.errors import InvalidRequest
from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit
from milecastle.testing.contract_claims import FAR, LANE, ClaimHooks, a_line, names, queued
from milecastle.testing.entries import a_key
from milecastle.testing.races import switching_often

_RACERS = 6
_PERIOD = 0.25


class LimitKeyClauses(ClaimHooks):
    """Rules 6 and 8: each value of a limit key has its own limit and its turn."""

    def test_the_limit_key_is_stored_with_the_index_row(self, store: ClaimStore) -> None:
        # Rule 2: what a commit of a row writes stays until another row is committed.
        hard = "customer=a=b ~ \U0001f3f0"
        writer = queued(store, "a", limit_key=hard)
        queued(store, "b", 2)
        again = self.reopen(store)
        try:
            found = {
                line.key.thread: line.limit_key for line in again.claim("one", [LANE], limit=9)
            }
            assert found == {"a": hard, "b": ""}
            again.give_back("one", writer.key)
            listed = [line.limit_key for line in again.threads("tenant")]
            assert listed == [hard, ""]
            writer.append(again, thread=a_line(writer))
            line = again.thread(writer.key)
            assert line is not None
            assert line.limit_key == ""
        finally:
            again.close()

    def test_a_limit_by_key_holds_for_each_of_its_values(self, store: ClaimStore) -> None:
        # Rule 8: counted over what it covers; a thread without the key is not covered.
        store.set_limit(Limit(graph="graph", key="customer", concurrency=1))
        writers = [
            queued(store, f"{value} {number}", limit_key=f"customer={value}", tenant=tenant)
            for number, tenant in enumerate("aab")
            for value in ("c1", "c2")
        ]
        for number in range(2):
            queued(store, f"free {number}", 7 + number, tenant="a")
            queued(store, f"else {number}", 9 + number, limit_key="customers=c1", tenant="a")
        found = [*store.claim("one", [LANE], limit=3), *store.claim("two", [LANE], limit=9)]
        keys = sorted(line.limit_key for line in found)
        assert keys == ["", "", "customer=c1", "customer=c2", "customers=c1", "customers=c1"]
        assert store.claim("one", [LANE], limit=9) == []
        held = next(line for line in found if line.limit_key == "customer=c1")
        writer = next(each for each in writers if each.key == held.key)
        asleep = a_line(writer, status="sleeping", due_at=FAR, limit_key="customer=c1")
        writer.append(store, thread=asleep)  # it takes no place
        (line,) = store.claim("one", [LANE], limit=9)
        assert line.limit_key == "customer=c1"
        store.set_limit(Limit(graph="graph", key="customer", concurrency=2))
        found = [*store.claim("one", [LANE], limit=9)]
        assert sorted(line.limit_key for line in found) == ["customer=c1", "customer=c2"]
        store.set_limit(Limit(graph="graph", key="customer"))
        assert len(store.claim("one", [LANE], limit=9)) == 1

    def test_a_limit_by_key_lets_somebody_run(self, store: ClaimStore) -> None:
        # Rule 8: nothing would say of which values; a graph or a tenant is paused instead.
        with pytest.raises(InvalidRequest):
            store.set_limit(Limit(key="customer", concurrency=0))
        with pytest.raises(InvalidRequest):
            store.set_limit(Limit(key="customer", paused=True))
        limits = [Limit(key="customer", rate=3), Limit(graph="g", key="k", concurrency=1)]
        for limit in (*limits, Limit(graph="g", concurrency=9)):
            store.set_limit(limit)
        store.set_limit(Limit(graph="g"))
        assert list(store.limits()) == limits

    def test_racing_claims_do_not_exceed_a_limit_by_key(self, store: ClaimStore) -> None:
        # Rule 8: from many threads at once.
        store.set_limit(Limit(key="customer", concurrency=1))
        for number in range(1, 31):
            queued(store, f"{number:02}", number, limit_key=f"customer={number % 5}")
        begin = Barrier(_RACERS, timeout=60)

        def race(worker: str) -> list[str]:
            begin.wait()
            found = [store.claim(worker, [LANE], limit=2) for _ in range(4)]
            return [line.limit_key for lines in found for line in lines]

        with ThreadPoolExecutor(_RACERS) as pool, switching_often():
            racers = [pool.submit(race, f"worker {number}") for number in range(_RACERS)]
            got = [key for racer in racers for key in racer.result()]
        got += [line.limit_key for line in store.claim("last", [LANE], limit=9)]
        assert sorted(got) == [f"customer={number}" for number in range(5)]

    def test_a_rate_by_key_is_not_exceeded(self, store: ClaimStore) -> None:
        # Rule 8: each value has its period, which begins with its first claim.
        for number in range(1, 13):
            queued(store, f"{number:02}", number, limit_key=f"customer={number % 2}")
        store.set_limit(Limit(graph="graph", key="customer", rate=2, period=3600.0))
        first = store.claim("one", [LANE], limit=9)
        assert sorted(line.limit_key[-1] for line in first) == ["0", "0", "1", "1"]
        for line in first:
            assert store.give_back("one", line.key)
        assert store.claim("one", [LANE], limit=9) == []
        store.set_limit(Limit(graph="graph", key="customer", rate=3, period=3600.0))
        assert sorted(line.limit_key[-1] for line in store.claim("one", [LANE], limit=9)) == [
            "0",
            "1",
        ]
        store.set_limit(Limit(graph="graph", key="customer", rate=2, period=_PERIOD))
        self.wait(2 * _PERIOD)
        assert len(store.claim("one", [LANE], limit=9)) == 4
        store.set_limit(Limit(graph="graph", key="customer", rate=2, period=3600.0))
        assert store.claim("one", [LANE], limit=9) == []

    def test_keys_take_turns(self, store: ClaimStore) -> None:
        # Rule 6: one of each key in turn, those without one together, also between claims.
        for number in range(1, 31):
            queued(store, f"1 {number}", number, limit_key="customer=c1", due_at=number)
        for number in range(1, 7):
            queued(store, f"2 {number}", 40 + number, limit_key="customer=c2", due_at=99)
            queued(store, f"3 {number}", 50 + number, limit_key="region=eu", due_at=99)
            queued(store, f"4 {number}", 60 + number, due_at=99, priority=9)
        for size, turns in ((1, 8), (2, 4), (4, 2)):
            found = [store.claim("one", [LANE], limit=size) for _ in range(turns)]
            served = sorted(name[0] for lines in found for name in names(lines))
            assert served == ["1", "1", "2", "2", "3", "3", "4", "4"], size
        assert names(store.claim("one", [LANE], limit=99))[:3] == ["1 7", "1 8", "1 9"]

    def test_tenants_take_turns_before_their_keys(self, store: ClaimStore) -> None:
        # Rule 6: a tenant with many keys has one turn, as one with none.
        store.set_limit(Limit(key="customer", concurrency=9))
        for number in range(1, 13):
            queued(store, f"{number:02}", number, tenant="a", limit_key=f"customer={number % 6}")
            queued(store, f"{number:02}", number, tenant="b")
        for size in (1, 2, 4):
            found = [store.claim("one", [LANE], limit=size) for _ in range(4 // size)]
            tenants = sorted(line.key.tenant for lines in found for line in lines)
            assert tenants == ["a", "a", "b", "b"], size

    def test_tenants_with_keys_take_turns_beside_another_lane(self, store: ClaimStore) -> None:
        # Rule 6: what is due in one lane takes no turn in another, before or behind it.
        for number in range(1, 25):
            tenant, key = f"t{number % 6}", f"customer={number}"
            queued(store, f"{number:02}", number, tenant=tenant, limit_key=key)
        for lanes in (["a@1", LANE], [LANE, "z@1"]):
            found = [store.claim("one", lanes, limit=2) for _ in range(6)]
            served = Counter(line.key.tenant for lines in found for line in lines)
            assert served == {f"t{number}": 2 for number in range(6)}, lanes

    def test_a_key_at_its_limit_hides_nobody(self, store: ClaimStore) -> None:
        # Rules 6 and 8: a claim steps over it, to what is due behind it.
        store.set_limit(Limit(graph="graph", key="customer", concurrency=1))
        for number in range(1, 31):
            line = {"limit_key": "customer=a", "due_at": number, "priority": number % 3}
            queued(store, f"a {number:02}", number, tenant="a", **line)
        assert len(store.claim("one", [LANE], limit=9)) == 1
        queued(store, "b", 41, tenant="a", limit_key="customer=b", due_at=50)
        queued(store, "c", 42, tenant="a", due_at=51)
        queued(store, "d", 43, tenant="b", limit_key="customer=d", due_at=52)
        queued(store, "e", 44, tenant="b", limit_key="customer=a", due_at=53)
        found = [name for _ in range(3) for name in names(store.claim("one", [LANE], limit=1))]
        assert sorted(found) == ["b", "c", "d"]
        assert store.claim("one", [LANE], limit=1) == []
        assert store.thread(a_key("e", "b")) is not None
