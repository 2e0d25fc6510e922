from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import msgspec.structs
import pytest

from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import ClaimStore
from milecastle.testing.contract_claims import (
    FAR,
    LANE,
    ClaimHooks,
    a_line,
    a_worker,
    names,
    queued,
)
from milecastle.testing.entries import Writer, a_key
from milecastle.testing.races import switching_often

_RACERS = 8
_RACED = 60


class ClaimingClauses(ClaimHooks):
    """Rules 1, 2 and 5: due threads, and a claim's effect."""

    def test_a_due_thread_is_claimed_once(self, store: ClaimStore) -> None:
        # Rule 2: by the first of two workers; neither gets it again.
        queued(store, "a")
        (line,) = store.claim("one", [LANE], limit=9)
        assert (line.key, line.worker, line.status) == (a_key("a"), "one", "queued")
        assert store.thread(a_key("a")) == line
        assert store.claim("two", [LANE], limit=9) == []
        assert store.claim("one", [LANE], limit=9) == []
        assert store.thread(a_key("a")) == line

    def test_lanes_that_wait_for_long_are_listed(self, store: ClaimStore) -> None:
        # Rule 1: those with a thread that was due before, has no worker, and is not to come.
        queued(store, "late", 1, lane="g@1", due_at=5)
        queued(store, "later", 2, lane="g@1", due_at=6)
        queued(store, "far", 3, lane="g@2", due_at=FAR)
        queued(store, "held", 4, lane="g@3", due_at=5, worker="one")
        queued(store, "none", 5, lane="", due_at=5)
        queued(store, "wide \U0001f3f0", 6, lane="h \U0001f3f0@1", due_at=5)
        queued(store, "now", 7, lane="i@1")
        assert list(store.overdue(60)) == ["g@1", "h \U0001f3f0@1"]

    def test_racing_claims_take_each_thread_once(self, store: ClaimStore) -> None:
        # Rule 2: from many threads at once, with none left behind.
        for number in range(1, _RACED + 1):
            queued(store, f"{number:02}", number)
        begin = Barrier(_RACERS, timeout=60)

        def race(worker: str) -> list[ThreadInfo]:
            begin.wait()
            found: list[ThreadInfo] = []
            while more := store.claim(worker, [LANE], limit=3):
                found += more
            return found

        with ThreadPoolExecutor(_RACERS) as pool, switching_often():
            racers = [pool.submit(race, f"worker {number}") for number in range(_RACERS)]
            got = [racer.result() for racer in racers]
        got.append(list(store.claim("worker last", [LANE], limit=_RACED)))
        assert sorted(line.key for lines in got for line in lines) == [
            a_key(f"{number:02}") for number in range(1, _RACED + 1)
        ]
        for lines in got:
            assert [store.thread(line.key) for line in lines] == lines

    def test_what_is_not_due_is_not_claimed(self, store: ClaimStore) -> None:
        # Rule 1: a time that has not come, no time, no lane, or a worker that has it.
        queued(store, "later", 1, due_at=FAR)
        queued(store, "never", 2, due_at=None)
        queued(store, "local", 3, lane="")
        queued(store, "taken", 4, worker="two")
        Writer(a_key("plain"), 5).begin(store)
        for lanes in ([LANE], [LANE, ""], [""], []):
            assert store.claim("one", lanes, limit=9) == []

    def test_a_line_that_is_due_at_0_is_due_now(self, store: ClaimStore) -> None:
        # Rule 1: the store puts its own time in place of 0, in every form of commit.
        first = queued(store, "first")
        line = store.thread(first.key)
        assert line is not None
        assert line.due_at
        again = Writer(a_key("second"), 2).begin(store)
        again.append(store, source="sleep", thread=a_line(again))
        if store.commit_many is not None:
            third = Writer(a_key("third"), 3).begin(store)
            batch = third.batch(third.plan(), thread=a_line(third))
            assert list(store.commit_many([batch])) == [None]
        due = [store.thread(a_key(name)) for name in ("first", "second", "third")]
        times = [info.due_at for info in due if info is not None]
        assert times == sorted(time for time in times if time)
        assert names(store.claim("one", [LANE], limit=2)) == ["first", "second"]

    def test_a_delay_begins_with_the_commit(self, store: ClaimStore) -> None:
        # Rule 1: the store adds it to its own time, whatever the clock of the caller says.
        delay = 3600 * 1_000_000
        before = store.now()
        queued(store, "first", due_at=-delay)
        again = Writer(a_key("second"), 2).begin(store)
        again.append(store, source="sleep", thread=a_line(again, due_at=-delay))
        if store.commit_many is not None:
            third = Writer(a_key("third"), 3).begin(store)
            batch = third.batch(third.plan(), thread=a_line(third, due_at=-delay))
            assert list(store.commit_many([batch])) == [None]
        lines = [store.thread(a_key(name)) for name in ("first", "second", "third")]
        for line in lines:
            if line is not None:
                assert before <= (line.due_at or 0) - delay <= store.now()
        assert store.claim("one", [LANE], limit=9) == []

    def test_a_worker_claims_in_its_lanes(self, store: ClaimStore) -> None:
        # Rule 1: those that it names, and no other; naming one twice changes nothing.
        for number, lane in enumerate(("x", "y", "z", "X", "x "), 1):
            queued(store, lane, number, lane=lane, due_at=number)
        assert names(store.claim("one", ["z", "x", "z"], limit=9)) == ["x", "z"]
        assert names(store.claim("one", ["x ", "nothing"], limit=9)) == ["x "]
        assert store.claim("one", ["nothing"], limit=9) == []

    def test_those_that_were_due_first_are_claimed_first(self, store: ClaimStore) -> None:
        # Rules 2 and 6: of one tenant's lane, and no more than asked for.
        for number, name in enumerate("fbdaec", 1):
            queued(store, name, number, due_at=ord(name))
        queued(store, "A", 7, lane="other", due_at=ord("A"))
        assert store.claim("one", [LANE], limit=0) == []
        assert store.claim("one", [LANE], limit=-1) == []
        assert names(store.claim("one", [LANE], limit=1)) == ["a"]
        assert names(store.claim("two", [LANE], limit=3)) == ["b", "c", "d"]
        assert names(store.claim("one", [LANE, "other"], limit=2**70)) == ["A", "e", "f"]

    def test_a_claim_is_shared_among_tenants(self, store: ClaimStore) -> None:
        # Rule 6: one of each in turn, whoever came first and however much they have.
        for number in range(1, 21):
            queued(store, f"{number:02}", number, tenant="many", due_at=number)
        for number, tenant in enumerate(("few", "one"), 21):
            queued(store, "x", number, tenant=tenant, due_at=number)
        queued(store, "y", 23, tenant="few", due_at=23)
        queued(store, "asleep", 24, tenant="asleep", due_at=FAR)
        assert _served(store, limit=3) == ["few x", "many 01", "one x"]
        assert _served(store, limit=5) == ["few y", "many 02", "many 03", "many 04", "many 05"]
        assert len(store.claim("one", [LANE], limit=99)) == 15

    def test_tenants_and_lanes_take_turns(self, store: ClaimStore) -> None:
        # Rule 6: also between claims of one thread each.
        for number in range(1, 9):
            queued(store, f"{number}", number, tenant="a", due_at=number)
        for number, tenant in enumerate("bcd", 9):
            queued(store, "x", number, tenant=tenant, due_at=number)
            queued(store, "y", number + 10, tenant=tenant, lane="other", due_at=number)
        first = [store.claim("one", [LANE], limit=1) for _ in range(4)]
        assert sorted(line.key.tenant for (line,) in first) == ["a", "b", "c", "d"]
        mixed = [store.claim("one", [LANE, "other"], limit=1) for _ in range(6)]
        assert sorted(line.lane for (line,) in mixed) == 3 * [LANE] + 3 * ["other"]

    def test_lanes_take_turns_beside_empty_ones(self, store: ClaimStore) -> None:
        # Rule 6: a lane in which nothing is due gives its turn to all the others, not to one.
        lanes = [f"{name}@3f" for name in ("a", "b", "empty", "full", "rest", "void")]
        for number in range(1, 21):
            queued(store, f"a {number}", number, lane="full@3f", due_at=number)
            queued(store, f"b {number}", 30 + number, lane="rest@3f", due_at=30 + number)
        claims = [store.claim("one", lanes, limit=1) for _ in range(24)]
        served = [line.lane for lines in claims for line in lines]
        assert sorted(served) == 12 * ["full@3f"] + 12 * ["rest@3f"]

    def test_tenants_take_turns_also_after_the_last_of_them(self, store: ClaimStore) -> None:
        # Rule 6: claims that end with the last tenant begin with the first again, once.
        for number in range(1, 25):
            queued(store, f"{number:02}", number, tenant="abcdef"[number % 6], due_at=number)
        for turn in range(1, 4):
            served = [name.split()[0] for _ in range(3) for name in _served(store, limit=2)]
            assert sorted(served) == list("abcdef"), f"turn {turn}"

    def test_a_higher_priority_is_claimed_first(self, store: ClaimStore) -> None:
        # Rule 6: of one tenant's lane, not before other tenants, and not before its time.
        for number, priority in enumerate((0, -1, 5, 5, 0), 1):
            queued(store, f"{number}", number, priority=priority, due_at=number)
        queued(store, "asleep", 6, priority=9, due_at=FAR)
        queued(store, "x", 7, tenant="other", due_at=7)
        assert _served(store, limit=2) == ["other x", "tenant 3"]
        order = [name for _ in range(4) for name in _served(store, limit=1)]
        assert order == ["tenant 4", "tenant 1", "tenant 5", "tenant 2"]
        assert store.claim("one", [LANE], limit=9) == []

    def test_threads_of_every_tenant_are_claimed(self, store: ClaimStore) -> None:
        # Rule 1: a worker serves the whole store.
        for number, tenant in enumerate(("b", "a", "c"), 1):
            queued(store, "same", number, tenant=tenant, due_at=number)
        found = store.claim("one", [LANE], limit=9)
        assert [line.key for line in found] == [ThreadKey(tenant, "same") for tenant in "bac"]
        assert [line.run_id for line in found] == [store.runs(line.key)[0].run_id for line in found]

    def test_a_commit_of_another_line_ends_a_claim(self, store: ClaimStore) -> None:
        # Rule 2: and only that; what is committed without a line leaves the claim as it is.
        writer = queued(store, "a")
        (claimed,) = store.claim("one", [LANE], limit=1)
        writer.append(store)
        ended = msgspec.structs.replace(writer.run, retry_count=1)
        store.commit(writer.batch(runs=(ended,), thread=None))
        writer.append(store, SNAPSHOT)
        writer.prune(store, 2)
        assert store.thread(writer.key) == claimed
        assert store.claimed("one") == [writer.key]
        running = a_line(writer, status="running", due_at=None, worker="one")
        writer.append(store, thread=running)
        assert store.claimed("one") == [writer.key]
        assert store.thread(writer.key) == running
        writer.append(store, thread=a_line(writer))
        assert store.claimed("one") == []
        assert names(store.claim("two", [LANE], limit=1)) == ["a"]
        asleep = a_line(writer, status="sleeping", due_at=FAR)
        writer.append(store, thread=asleep)
        assert store.thread(writer.key) == asleep
        assert store.claim("one", [LANE], limit=1) == []

    def test_a_thread_is_given_back(self, store: ClaimStore) -> None:
        # Rule 2: by the worker that has it, at once or after a delay.
        queued(store, "a")
        queued(store, "b", 2)
        store.claim("one", [LANE], limit=9)
        key = a_key("a")
        assert not store.give_back("two", key)
        assert not store.give_back("", key)
        assert not store.give_back("one", a_key("nobody"))
        assert store.claimed("one") == [key, a_key("b")]
        assert store.give_back("one", key)
        assert not store.give_back("one", key)
        assert store.claimed("one") == [a_key("b")]
        assert names(store.claim("two", [LANE], limit=9)) == ["a"]
        assert store.give_back("two", key, delay=3600.0)
        assert store.claim("one", [LANE], limit=9) == []
        left = store.due_in([LANE])
        assert left is not None
        assert 3500 < left <= 3600

    def test_claims_are_durable(self, store: ClaimStore) -> None:
        # Rule 2: what was claimed, given back and beaten is so after a crash.
        for number, name in enumerate("abc", 1):
            queued(store, name, number, due_at=number)
        store.beat(a_worker("one"))
        store.claim("one", [LANE], limit=2)
        store.give_back("one", a_key("a"), delay=3600)
        before = [store.thread(a_key(name)) for name in "abc"]
        again = self.reopen(store)
        try:
            assert [again.thread(a_key(name)) for name in "abc"] == before
            assert again.claimed("one") == [a_key("b")]
            assert [worker.id for worker in again.workers()] == ["one"]
            assert again.reclaim(3600) == 0
            assert names(again.claim("two", [LANE], limit=9)) == ["c"]
        finally:
            again.close()

    def test_a_deleted_thread_is_not_claimed(self, store: ClaimStore) -> None:
        # Rule 1: nor held; one that is created again is as new as any.
        queued(store, "a", due_at=1)
        queued(store, "b", 2, due_at=2)
        store.claim("one", [LANE], limit=1)
        store.delete(a_key("a"))
        store.delete(a_key("b"))
        assert store.claimed("one") == []
        assert store.claim("two", [LANE], limit=9) == []
        assert (store.due_in([LANE]), store.depths()) == (None, [])
        assert not store.give_back("one", a_key("a"))
        Writer(a_key("a"), 7).begin(store)
        assert store.claim("two", [LANE], limit=9) == []
        queued(store, "b", 8)
        assert names(store.claim("two", [LANE], limit=9)) == ["b"]

    def test_a_worker_has_an_id(self, store: ClaimStore) -> None:
        # Rule 2: a claim by nobody would leave the thread to others.
        queued(store, "a")
        with pytest.raises(InvalidRequest):
            store.claim("", [LANE], limit=1)
        with pytest.raises(InvalidRequest):
            store.beat(a_worker(""))
        assert names(store.claim("one", [LANE], limit=1)) == ["a"]
        assert store.claimed("") == []


def _served(store: ClaimStore, limit: int) -> list[str]:
    lines = store.claim("one", [LANE], limit=limit)
    return sorted(f"{line.key.tenant} {line.key.thread}" for line in lines)
