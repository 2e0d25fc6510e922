from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit
from milecastle.testing.contract_claims import LANE, ClaimHooks, a_line, names, queued
from milecastle.testing.entries import a_key
from milecastle.testing.races import switching_often

_RACERS = 6
_PERIOD = 0.25


class LimitClauses(ClaimHooks):
    """Rule 9: concurrency, rates and pauses, for graphs and tenants."""

    def test_limits_are_listed_as_they_were_set(self, store: ClaimStore) -> None:
        # Rule 9: by graph and tenant; set again they are replaced, and empty they are gone.
        hard = Limit(graph="b \U0001f3f0\ud800", tenant="t", rate=3, period=0.5)
        assert list(store.limits()) == []
        for limit in (hard, Limit(graph="a", concurrency=0), Limit(tenant="t", paused=True)):
            store.set_limit(limit)
        store.set_limit(Limit(graph="a", tenant="t"))
        changed = Limit(graph="a", concurrency=7, rate=2**31 - 1, period=86400.0)
        store.set_limit(changed)
        again = self.reopen(store)
        try:
            assert list(again.limits()) == [Limit(tenant="t", paused=True), changed, hard]
            again.set_limit(Limit(tenant="t"))
            assert list(again.limits()) == [changed, hard]
        finally:
            again.close()

    def test_a_limit_of_concurrency_is_not_exceeded(self, store: ClaimStore) -> None:
        # Rule 9: of all that it covers, in whatever claim; each thread that ends makes room.
        writers = {
            tenant: [queued(store, name, tenant=tenant, due_at=5) for name in "pqr"]
            for tenant in "abc"
        }
        queued(store, "x", lane="other@3f", due_at=6)
        store.set_limit(Limit(graph="graph", concurrency=4))
        store.set_limit(Limit(graph="graph", tenant="a", concurrency=1))
        store.set_limit(Limit(tenant="b", concurrency=2))
        store.set_limit(Limit(graph="another", concurrency=0))
        found = [*store.claim("one", [LANE], limit=3), *store.claim("two", [LANE], limit=9)]
        tenants = sorted(line.key.tenant for line in found)
        assert len(tenants) == 4
        assert tenants.count("a") <= 1
        assert tenants.count("b") <= 2
        assert store.claim("one", [LANE], limit=9) == []
        assert names(store.claim("one", [LANE, "other@3f"], limit=9)) == ["x"]
        ended = next(line for line in found if line.key.tenant == "c")
        writer = next(each for each in writers["c"] if each.key == ended.key)
        writer.append(store, thread=a_line(writer, status="completed", due_at=None))
        assert len(store.claim("one", [LANE], limit=9)) == 1
        store.set_limit(Limit(graph="graph"))
        store.set_limit(Limit(tenant="b"))
        rest = [line.key.tenant for line in store.claim("one", [LANE], limit=9)]
        assert (len(rest), "a" in rest) == (2, False)

    def test_racing_claims_do_not_exceed_a_limit(self, store: ClaimStore) -> None:
        # Rule 9: from many threads at once.
        for number in range(1, 31):
            queued(store, f"{number:02}", number, tenant=f"{number % 3}")
        store.set_limit(Limit(graph="graph", concurrency=5))
        begin = Barrier(_RACERS, timeout=60)

        def race(worker: str) -> int:
            begin.wait()
            return sum(len(store.claim(worker, [LANE], limit=2)) for _ in range(4))

        with ThreadPoolExecutor(_RACERS) as pool, switching_often():
            racers = [pool.submit(race, f"worker {number}") for number in range(_RACERS)]
            assert sum(racer.result() for racer in racers) <= 5
        last = store.claim("last", [LANE], limit=9)
        claimed = [len(store.claimed(f"worker {number}")) for number in range(_RACERS)]
        assert sum(claimed) + len(last) == 5

    def test_a_rate_is_not_exceeded(self, store: ClaimStore) -> None:
        # Rule 9: within a period, which begins with its first claim.
        for number in range(1, 10):
            queued(store, f"{number}", number)
        slow = Limit(graph="graph", tenant="tenant", rate=3, period=3600.0)
        store.set_limit(slow)
        assert len(store.claim("one", [LANE], limit=2)) == 2
        for line in store.claim("one", [LANE], limit=9):
            assert store.give_back("one", line.key)
        assert store.claim("one", [LANE], limit=9) == []
        store.set_limit(Limit(graph="graph", tenant="tenant", rate=3, period=_PERIOD))
        self.wait(2 * _PERIOD)
        assert len(store.claim("one", [LANE], limit=9)) == 3
        store.set_limit(Limit(graph="graph", tenant="tenant"))
        assert len(store.claim("one", [LANE], limit=9)) == 4

    def test_a_changed_limit_gives_back_nothing_of_its_rate(self, store: ClaimStore) -> None:
        # Rule 9: setting a limit again changes what may be claimed, not what was.
        for number in range(1, 10):
            queued(store, f"{number}", number)
        store.set_limit(Limit(graph="another", rate=9, period=3600.0))
        store.set_limit(Limit(graph="graph", rate=3, period=3600.0))
        assert len(store.claim("one", [LANE], limit=9)) == 3
        store.set_limit(Limit(graph="graph", rate=5, period=3600.0))
        assert len(store.claim("one", [LANE], limit=9)) == 2

    def test_what_is_paused_is_not_claimed(self, store: ClaimStore) -> None:
        # Rule 9: it stays due; what runs is not affected, and other tenants are served.
        queued(store, "1", 1, tenant="a", due_at=1)
        assert names(store.claim("one", [LANE], limit=1)) == ["1"]
        for number, tenant in ((2, "a"), (3, "b")):
            queued(store, f"{number}", number, tenant=tenant, due_at=number)
        for paused in (Limit(tenant="a", paused=True), Limit(graph="graph", tenant="a", rate=9)):
            store.set_limit(paused)
        assert store.claimed("one") == [a_key("1", "a")]
        assert names(store.claim("one", [LANE], limit=1)) == ["3"]
        assert store.claim("one", [LANE], limit=9) == []
        assert [depth.due for depth in store.depths()] == [1, 0]
        store.set_limit(Limit(tenant="a"))
        assert names(store.claim("one", [LANE], limit=9)) == ["2"]

    def test_many_that_are_paused_hide_nobody(self, store: ClaimStore) -> None:
        # Rules 6 and 9: a claim gets past them at once, to what is due behind them.
        for number in range(1, 6):
            queued(store, "x", number, tenant=f"paused {number}", due_at=number)
            store.set_limit(Limit(tenant=f"paused {number}", paused=True))
        queued(store, "x", 9, tenant="served", due_at=9)
        assert [line.key.tenant for line in store.claim("one", [LANE], limit=1)] == ["served"]
        assert store.claim("one", [LANE], limit=1) == []

    def test_tenants_take_turns_under_limits(self, store: ClaimStore) -> None:
        # Rules 6 and 9: whether a limit covers them or not, and however little it leaves.
        for limit in (Limit(graph="another", concurrency=5), Limit(graph="graph", concurrency=99)):
            store.set_limit(limit)
            for number in range(1, 31):
                queued(store, f"{limit.graph} {number}", number, tenant="abcdef"[number % 6])
            claims = [store.claim("one", [LANE], limit=4) for _ in range(6)]
            served = [line.key.tenant for lines in claims for line in lines]
            assert {tenant: served.count(tenant) for tenant in "abcdef"} == dict.fromkeys(
                "abcdef", 4
            )
            assert len(store.claim("one", [LANE], limit=99)) == 6
        store.retire("one")
        store.set_limit(Limit(graph="graph", concurrency=1))
        for _ in range(2):
            served.clear()
            for _ in range(6):
                (line,) = store.claim("one", [LANE], limit=99)
                served.append(line.key.tenant)
                assert store.give_back("one", line.key, delay=3600)
            assert sorted(served) == list("abcdef")

    def test_lanes_take_turns_under_limits(self, store: ClaimStore) -> None:
        # Rules 6 and 9: also beside lanes in which nothing is due.
        lanes = [f"{name}@3f" for name in ("a", "b", "empty", "full", "rest", "void")]
        for number in range(1, 21):
            queued(store, f"a {number}", number, lane="full@3f", due_at=number)
            queued(store, f"b {number}", 30 + number, lane="rest@3f", due_at=30 + number)
        for limit in (Limit(graph="another", rate=9), Limit(graph="full", concurrency=99)):
            store.set_limit(limit)
            claims = [store.claim("one", lanes, limit=1) for _ in range(12)]
            served = [line.lane for lines in claims for line in lines]
            assert sorted(served) == 6 * ["full@3f"] + 6 * ["rest@3f"]
