from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec.structs
import pytest

from milecastle.errors import Conflict, Unavailable
from milecastle.ports.claims import ClaimStore, was_lost
from milecastle.ports.limits import Limit
from milecastle.ports.workers import LaneDepth
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

_MOMENT = 0.05


class WorkerClauses(ClaimHooks):
    """Rules 4 to 7: workers and lanes."""

    def test_threads_of_a_silent_worker_are_reclaimed(self, store: ClaimStore) -> None:
        # Rule 4: they are due at once, and the worker is forgotten; so is one without threads.
        for id in ("one", "idle"):
            store.beat(a_worker(id))
        for number, name in enumerate("ab", 1):
            queued(store, name, number)
        store.claim("one", [LANE], limit=9)
        running = queued(store, "c", 3, status="running", due_at=None, worker="one")
        self.wait(_MOMENT)
        assert store.reclaim(3600) == 0
        assert store.reclaim(_MOMENT / 2) == 3
        assert list(store.workers()) == []
        assert store.claimed("one") == []
        line = store.thread(running.key)
        assert line is not None
        assert (line.status, line.worker, line.due_at is None) == ("running", "", False)
        taken = store.claim("two", [LANE], limit=9)
        assert sorted(names(taken)) == ["a", "b", "c"]
        assert all(map(was_lost, taken))  # rule 5
        assert not store.give_back("one", running.key)

    def test_each_worker_says_how_long_it_may_be_silent(self, store: ClaimStore) -> None:
        # Rule 4: its heartbeat does, and not the one that looks.
        for id, limit in (("short", _MOMENT / 2), ("long", 3600.0)):
            store.beat(a_worker(id, silent_after=limit))
            queued(store, id)
            store.claim(id, [LANE], limit=1)
        self.wait(_MOMENT)
        assert {one.id: one.is_gone for one in store.workers()} == {"long": False, "short": True}
        assert store.reclaim() == 1
        assert [(one.id, one.silent_after) for one in store.workers()] == [("long", 3600.0)]
        assert store.claimed("long") == [a_key("long")]
        store.beat(a_worker("long", silent_after=_MOMENT / 2))
        self.wait(_MOMENT)
        assert store.reclaim() == 1

    def test_threads_of_an_unknown_worker_are_reclaimed(self, store: ClaimStore) -> None:
        # Rule 4: a worker that never called ``beat``, or that was forgotten, is not alive.
        store.beat(a_worker("known"))
        for number, name in enumerate("abc", 1):
            queued(store, name, number)
        store.claim("unknown", [LANE], limit=2)
        store.claim("known", [LANE], limit=1)
        assert store.reclaim(3600) == 2
        assert store.claimed("unknown") == []
        assert store.claimed("known") == [a_key("c")]
        assert names(store.claim("known", [LANE], limit=9)) == ["a", "b"]
        assert store.reclaim(3600) == 0

    def test_a_living_worker_keeps_its_threads(self, store: ClaimStore) -> None:
        # Rule 4: each call of ``beat`` counts, and others that are silent change nothing.
        queued(store, "a")
        for id in ("one", "other"):
            store.beat(a_worker(id))
        store.claim("one", [LANE], limit=1)
        self.wait(20 * _MOMENT)
        store.beat(a_worker("one"))
        assert store.reclaim(18 * _MOMENT) == 0
        assert store.claimed("one") == [a_key("a")]
        assert [worker.id for worker in store.workers()] == ["one"]

    def test_a_worker_that_retires_gives_its_threads_back(self, store: ClaimStore) -> None:
        # Rule 4: all of them, at once, and those of no other.
        for id in ("one", "two"):
            store.beat(a_worker(id))
        for number, name in enumerate("abc", 1):
            queued(store, name, number, due_at=number)
        store.claim("one", [LANE], limit=2)
        store.claim("two", [LANE], limit=1)
        assert store.retire("one") == 2
        assert [worker.id for worker in store.workers()] == ["two"]
        assert (store.claimed("one"), store.claimed("two")) == ([], [a_key("c")])
        assert sorted(names(store.claim("two", [LANE], limit=9))) == ["a", "b"]
        assert (store.retire("one"), store.retire("nobody"), store.retire("")) == (0, 0, 0)
        assert len(store.claimed("two")) == 3

    def test_workers_are_listed_as_they_describe_themselves(self, store: ClaimStore) -> None:
        # Rule 4: by id, as of the last beat, with what only the store knows.
        hard = a_worker("b \U0001f3f0", lanes=("", "x\ny", LANE, "\ud800"), capacity=7)
        plain = a_worker("a", started_at=2**52)
        for worker in (hard, plain, msgspec.structs.replace(hard, draining=True, silent=9.0)):
            store.beat(worker)
        queued(store, "a")
        store.claim(hard.id, [LANE], limit=1)
        self.wait(_MOMENT)
        first, second = store.workers()
        assert _MOMENT / 2 < second.silent < 60
        databases = tuple(store.cells.names) if store.cells else ()
        expected = msgspec.structs.replace(plain, databases=databases)
        assert msgspec.structs.replace(first, silent=0.0) == expected
        expected = msgspec.structs.replace(hard, draining=True, running=1, databases=databases)
        assert msgspec.structs.replace(second, silent=0.0) == expected
        store.beat(hard)
        assert not store.workers()[1].draining

    def test_the_threads_of_a_worker_are_listed(self, store: ClaimStore) -> None:
        for number, tenant in enumerate(("b", "a"), 1):
            for name in "yx":
                queued(store, name, number, tenant=tenant)
        store.claim("one", [LANE], limit=9)
        assert [(key.tenant, key.thread) for key in store.claimed("one")] == [
            ("a", "x"),
            ("a", "y"),
            ("b", "x"),
            ("b", "y"),
        ]
        assert list(store.claimed("two")) == []

    def test_a_store_says_when_something_is_due(self, store: ClaimStore) -> None:
        # Rule 1: in these lanes, the first of all that nobody has.
        assert store.due_in([LANE]) is None
        queued(store, "late", 1, due_at=FAR)
        queued(store, "other", 2, lane="other")
        queued(store, "never", 3, due_at=None)
        queued(store, "local", 4, lane="")
        left = store.due_in([LANE])
        assert left is not None
        assert left > 3600
        assert store.due_in([]) is None
        assert store.due_in([""]) is None
        now = store.due_in([LANE, "other"])
        assert now is not None
        assert -60 < now <= 0
        store.claim("one", ["other"], limit=1)
        assert store.due_in(["other"]) is None

    def test_depths_are_counted(self, store: ClaimStore) -> None:
        # Rule 5: by lane and tenant: due, later and running; what has ended is in no lane.
        assert list(store.depths()) == []
        queued(store, "taken", 1, due_at=1)
        store.claim("one", [LANE], limit=1)
        for number in (2, 3):
            queued(store, f"due {number}", number)
        queued(store, "running", 4, lane="b", status="running", due_at=None, worker="one")
        queued(store, "later", 5, lane="b", due_at=FAR)
        queued(store, "other", 6, tenant="other", due_at=1)
        queued(store, "over", 7, status="completed", due_at=None)
        queued(store, "local", 8, lane="", due_at=1)
        found = list(store.depths())
        assert [_counts(depth) for depth in found] == [
            ("b", "tenant", 0, 1, 1),
            (LANE, "other", 1, 0, 0),
            (LANE, "tenant", 2, 0, 1),
        ]
        assert found[0].oldest == 0
        assert found[1].oldest > 3600
        assert 0 <= found[2].oldest < 60

    def test_claims_and_commits_do_not_stop_each_other(self, store: ClaimStore) -> None:
        # Rules 2 and 3: whatever meets whatever, each call ends, and no thread is lost.
        writers = [queued(store, f"{number}", number) for number in range(1, 13)]
        store.beat(a_worker("alive"))

        def commit(part: list[Writer]) -> None:
            for _ in range(8):
                for writer in part:
                    writer.append(store, thread=a_line(writer))

        def claim(worker: str) -> None:
            for _ in range(25):
                for line in store.claim(worker, [LANE], limit=4):
                    store.give_back(worker, line.key)
                store.retire(worker)

        def reclaim() -> None:
            for _ in range(25):
                store.reclaim(3600)
                store.claim("silent", [LANE], limit=4)

        with ThreadPoolExecutor(5) as pool, switching_often():
            calls = [
                pool.submit(commit, writers[:6]),
                pool.submit(commit, writers[6:]),
                pool.submit(claim, "one"),
                pool.submit(claim, "alive"),
                pool.submit(reclaim),
            ]
            for call in calls:
                call.result(timeout=120)
        store.retire("alive")
        store.claim("silent", [LANE], limit=99)
        store.reclaim(0)
        lines = store.claim("last", [LANE], limit=99)
        assert sorted(names(lines), key=int) == [writer.key.thread for writer in writers]

    def test_a_late_worker_is_refused_by_the_log(self, store: ClaimStore) -> None:
        # Rule 3: a claim that was lost is noticed at the first commit behind another's.
        late = queued(store, "a")
        store.claim("late", [LANE], limit=1)
        assert store.reclaim(3600) == 1
        store.claim("next", [LANE], limit=1)
        running = a_line(late, status="running", due_at=None, worker="next")
        batch = late.batch(late.plan(), thread=a_line(late, status="running", worker="late"))
        late.append(store, source="takeover", thread=running)
        with pytest.raises(Conflict):
            store.commit(batch)
        assert store.thread(late.key) == running

    def test_a_store_tells_the_time_by_which_threads_are_due(self, store: ClaimStore) -> None:
        # Rule 1: the clock that dates a line is the clock of ``now``.
        before = store.now()
        self.wait(_MOMENT)
        line = store.thread(queued(store, "a").key)
        self.wait(_MOMENT)
        assert line is not None
        assert line.due_at is not None
        assert before < line.due_at < store.now()

    def test_a_closed_store_answers_no_call_of_a_worker(self, store: ClaimStore) -> None:
        # Rule 12 of every store.
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.beat(a_worker("one")),
            lambda: store.retire("one"),
            store.workers,
            lambda: store.claim("one", [LANE], limit=1),
            lambda: store.give_back("one", a_key()),
            lambda: store.reclaim(1),
            lambda: store.claimed("one"),
            lambda: store.due_in([LANE]),
            store.now,
            store.depths,
            store.limits,
            lambda: store.set_limit(Limit(paused=True)),
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                call()


def _counts(depth: LaneDepth) -> tuple[str, str, int, int, int]:
    return depth.lane, depth.tenant, depth.due, depth.later, depth.running
