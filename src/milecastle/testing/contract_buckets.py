"""The contract of buckets: for every store from whose buckets runs take.

Fill the hooks and give the class a name that pytest collects::

    class TestBucketsOfMyStore(BucketContract):
        def open_store(self) -> Store:
            return MyStore(...)

        def reopen(self, store: Store) -> Store:
            return MyStore(...)  # on the same data, as after a crash

Each test names the rule of ``milecastle.ports.buckets`` that it checks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import pytest

from milecastle.errors import InvalidRequest
from milecastle.ports.buckets import Bucket, Buckets, Turn
from milecastle.ports.store import Store
from milecastle.testing.contract_hooks import ContractHooks
from milecastle.testing.races import switching_often

TENANT = "tenant"
_SECOND = 1_000_000
_RACERS = 6
_EACH = 10


def buckets_of(store: Store) -> Buckets:
    assert store.buckets is not None, "the store has no buckets"
    return store.buckets


def fill(store: Store, name: str = "gpt", tenant: str = "", **limits: float) -> Buckets:
    given = {"rate": 10, "period": 1.0, "burst": 5, **limits}
    rate, burst = int(given["rate"]), int(given["burst"])
    buckets = buckets_of(store)
    buckets.put(Bucket(name=name, tenant=tenant, rate=rate, period=given["period"], burst=burst))
    return buckets


def take(buckets: Buckets, mark: str, amount: int = 1, tenant: str = TENANT) -> Turn:
    found = buckets.take(tenant, "gpt", amount, mark)
    assert found is not None, "the store does not find the bucket"
    return found


def waits(turns: Sequence[Turn]) -> list[bool]:
    return [turn.wait > 0 for turn in turns]


def most_within(grants: Sequence[tuple[int, int]], span: int) -> int:
    """The most granted within any interval of this length."""
    ordered = sorted(grants)
    return max(
        sum(amount for at, amount in ordered if begin <= at <= begin + span) for begin, _ in ordered
    )


class BucketContract(ContractHooks):
    """Every clause on buckets, for one store. Needs ``open_store`` and ``reopen``."""

    def test_turns_come_in_the_order_of_arrival(self, store: Store) -> None:
        # Rules 2 and 3: the burst at once, then one after another, as fast as the rate.
        buckets = fill(store, rate=1)
        turns = [take(buckets, f"{number}") for number in range(9)]
        assert waits(turns) == [False] * 5 + [True] * 4
        gaps = [b.ready_at - a.ready_at for a, b in pairwise(turns[5:])]
        assert gaps == [_SECOND] * 3
        assert 0 < turns[5].ready_at - turns[0].ready_at <= _SECOND
        assert all(0 < turn.wait < 5 for turn in turns[5:])
        larger = take(buckets, "larger", 4)
        assert larger.ready_at - turns[8].ready_at == 4 * _SECOND

    def test_a_turn_is_granted_when_it_is_ready(self, store: Store) -> None:
        # Rule 4: not before, and then at once; who comes meanwhile does not get it.
        buckets = fill(store, rate=3, burst=1)
        assert waits([take(buckets, "a"), take(buckets, "b"), take(buckets, "c")]) == [0, 1, 1]
        promised = take(buckets, "b")
        assert promised.wait > 0
        time.sleep(promised.wait)
        granted = take(buckets, "b")
        assert granted.wait == 0
        assert granted.ready_at >= promised.ready_at
        assert take(buckets, "d").wait > take(buckets, "c").wait > 0

    def test_a_mark_takes_once(self, store: Store) -> None:
        # Rule 4: also in another process, whether its turn has come or not.
        buckets = fill(store, rate=1, burst=2)
        first = [take(buckets, mark, 1) for mark in "abc"]
        with self.reopened(store) as again:
            for each in (buckets, buckets_of(again)):
                turns = [take(each, mark, 1) for mark in "abc"]
                assert waits(turns) == waits(first) == [False, False, True]
                assert [turn.ready_at for turn in turns] == [turn.ready_at for turn in first]
            assert take(buckets_of(again), "d").ready_at == first[2].ready_at + _SECOND

    def test_takers_who_meet_get_different_turns(self, store: Store) -> None:
        # Rule 2: from many threads, and over connections of two stores.
        fill(store, rate=1, burst=1)
        with self.reopened(store) as again:
            each = [buckets_of(one) for one in (store, again)]
            begin = Barrier(_RACERS, timeout=60)

            def race(racer: int) -> list[Turn]:
                begin.wait()
                marks = [f"{racer}-{number}" for number in range(_EACH)]
                return [take(each[racer % 2], mark) for mark in marks]

            with ThreadPoolExecutor(_RACERS) as pool, switching_often():
                found = [turn for some in pool.map(race, range(_RACERS)) for turn in some]
        times = sorted(turn.ready_at for turn in found)
        assert waits(found).count(False) == 1
        gaps = {b - a for a, b in pairwise(times[1:])}
        assert gaps == {_SECOND}

    def test_racers_with_one_mark_take_once(self, store: Store) -> None:
        # Rule 4: a worker that was thought lost, and the one that has its thread now.
        fill(store, rate=1, burst=3)
        with self.reopened(store) as again:
            each = [buckets_of(one) for one in (store, again)]
            for name in ("a", "b", "c", "d"):
                begin = Barrier(_RACERS, timeout=60)

                def race(racer: int, name: str = name, begin: Barrier = begin) -> Turn:
                    begin.wait()
                    return take(each[racer % 2], name)

                with ThreadPoolExecutor(_RACERS) as pool, switching_often():
                    found = list(pool.map(race, range(_RACERS)))
                assert len({turn.ready_at for turn in found}) == 1
                assert waits(found) == [name == "d"] * _RACERS

    def test_late_takers_do_not_exceed_the_rate(self, store: Store) -> None:
        # Rules 3 and 4: turns that were missed, because no worker ran, are not granted together.
        buckets = fill(store, rate=50, burst=5)
        marks = [f"{number:02}" for number in range(25)]
        for mark in marks:
            take(buckets, mark)
        time.sleep(0.45)
        grants: list[tuple[int, int]] = []
        left = marks
        while left:
            turns = {mark: take(buckets, mark) for mark in left}
            grants += [(turn.ready_at, 1) for turn in turns.values() if turn.wait == 0]
            left = [mark for mark, turn in turns.items() if turn.wait > 0]
            time.sleep(0.01)
        for span in (1, 100_000, 200_000, 400_000):
            assert most_within(grants, span) <= 5 + 50 * span // _SECOND + 1
        assert len(grants) == len(marks)

    def test_a_settled_amount_counts_once(self, store: Store) -> None:
        # Rule 5: given back to those who come next, or taken from them.
        buckets = fill(store, rate=1, burst=5)
        take(buckets, "a", 5)
        for _ in range(2):
            assert buckets.settle(TENANT, "gpt", -3, "a settled")
        turns = [take(buckets, mark) for mark in ("b", "c", "d", "e")]
        assert waits(turns) == [False, False, False, True]
        for _ in range(2):
            assert buckets.settle(TENANT, "gpt", 2, "b settled")
        later = take(buckets, "f").ready_at - turns[3].ready_at
        assert 1_900_000 < later <= 2_000_000  # the turn of e is behind the two as well
        assert not buckets.settle(TENANT, "another", 1, "x")

    def test_what_was_taken_more_delays_turns(self, store: Store) -> None:
        # Rule 5: also those that were promised before.
        buckets = fill(store, rate=3, burst=1)
        take(buckets, "a")
        promised = take(buckets, "b")
        buckets.settle(TENANT, "gpt", 5, "a settled")
        time.sleep(promised.wait)
        assert take(buckets, "b").wait > 0.2

    def test_a_held_bucket_grants_nothing_until_its_time(self, store: Store) -> None:
        # Rule 6: neither at once nor to those whose turn comes meanwhile.
        buckets = fill(store, rate=4, burst=1)
        first = take(buckets, "a")
        promised = take(buckets, "b")
        assert buckets.hold(TENANT, "gpt", None, 0.6)
        until = first.ready_at + 600_000
        time.sleep(promised.wait)
        turns = [take(buckets, mark) for mark in ("b", "c")]
        assert all(turn.wait > 0.1 and turn.ready_at > until for turn in turns)
        assert buckets.hold(TENANT, "gpt", until + 700_000, 0.0)
        assert buckets.hold(TENANT, "gpt", until, 0.0)
        assert take(buckets, "d").ready_at > until + 700_000
        assert not buckets.hold(TENANT, "another", None, 1.0)

    def test_a_tenant_has_its_own_buckets_and_the_shared_ones(self, store: Store) -> None:
        # Rule 1: its own comes first; of a shared one all tenants take together.
        shared = fill(store, rate=1, period=60.0, burst=2)
        fill(store, tenant="own", rate=1, period=60.0, burst=3)
        assert waits([take(shared, f"own {n}", tenant="own") for n in range(4)]) == [0, 0, 0, 1]
        assert waits([take(shared, f"{t}", tenant=t) for t in "abc"]) == [0, 0, 1]
        assert buckets_of(store).take("own", "another", 1, "x") is None
        fill(store, "private", tenant="other")
        assert buckets_of(store).take("own", "private", 1, "x") is None
        with self.reopened(store) as again:
            assert waits([take(buckets_of(again), "own 4", tenant="own")]) == [True]

    def test_buckets_are_listed_as_they_were_set(self, store: Store) -> None:
        # Rules 1 and 7: by name; what was taken stays taken when they are set again.
        buckets = fill(store, "b \U0001f3f0 'x'", rate=2**31 - 1, period=0.001, burst=2**31 - 1)
        fill(store, rate=1, burst=2)
        fill(store, "a:b/c%", rate=3, period=86400.0, burst=1)
        turns = [take(buckets, mark) for mark in "abc"]
        fill(store, rate=10, burst=2)
        changed = take(buckets, "d")
        assert changed.ready_at == turns[2].ready_at + 100_000 + 1_800_000  # its burst is shorter
        with self.reopened(store) as again:
            levels = buckets_of(again).levels()
        names = [level.bucket.name for level in levels]
        assert names == ["a:b/c%", "b \U0001f3f0 'x'", "gpt"]
        assert [level.waiting for level in levels] == [0, 0, 2]
        assert [level.bucket.rate for level in levels] == [3, 2**31 - 1, 10]
        assert [level.bucket.period for level in levels] == [86400.0, 0.001, 1.0]
        now = changed.ready_at - round(changed.wait * _SECOND)
        assert [level.left(now) for level in levels][2] == 0

    def test_a_removed_bucket_is_forgotten(self, store: Store) -> None:
        # Rule 7: with its turns.
        buckets = fill(store, rate=1, burst=1)
        assert waits([take(buckets, mark) for mark in "ab"]) == [False, True]
        assert not buckets.drop(TENANT, "gpt")
        assert buckets.drop("", "gpt")
        assert not buckets.drop("", "gpt")
        assert buckets.take(TENANT, "gpt", 1, "b") is None
        assert list(buckets.waiting(TENANT, "")) == []
        fill(store, rate=1, burst=1)
        assert waits([take(buckets, mark) for mark in "ba"]) == [False, True]

    def test_more_than_the_burst_is_refused(self, store: Store) -> None:
        # Rule 3: it could never be granted, and takes nothing.
        buckets = fill(store, rate=1, burst=3)
        with pytest.raises(InvalidRequest, match="at most 3"):
            take(buckets, "a", 4)
        assert take(buckets, "b", 3).wait == 0

    def test_waiting_turns_are_found_by_their_marks(self, store: Store) -> None:
        # Rule 4: those that were not granted yet; the first first.
        buckets = fill(store, rate=1, burst=1)
        fill(store, "mine", tenant=TENANT, rate=1, burst=1)
        for mark in ("x/1", "x/2", "y/1", "x/3"):
            take(buckets, mark)
        for mark in ("x/4", "x/5"):
            assert buckets.take(TENANT, "mine", 1, mark) is not None
        found = buckets.waiting(TENANT, "x/")
        assert [turn.bucket for turn in found] == ["gpt", "mine", "gpt"]
        assert 0 < found[0].wait <= found[1].wait <= 1 < found[2].wait <= 3
        assert [turn.bucket for turn in buckets.waiting("other", "x/")] == ["gpt", "gpt"]


def bucket_clauses() -> list[str]:
    return sorted(name for name in dir(BucketContract) if name.startswith("test_"))
