"""Stores that break a promise on claims. ``ClaimContract`` must catch each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from typing import Any

import msgspec.structs

from milecastle.errors import Conflict
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.fairness import Rotation
from milecastle.ports.limits import Limit
from milecastle.ports.mailbox import Debounce, Marks, NewRun, Sent, StoredMessage
from milecastle.ports.store import Batch
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.memory import MemoryStore
from milecastle.stores.memory.store import MemoryMailbox
from tests.broken_stores.store import BrokenStore

__all__ = ["BROKEN_CLAIMS", "BrokenClaims"]


class BrokenClaims(BrokenStore):
    """The memory store, with ways round the rules of claims."""

    def lines(self) -> list[ThreadInfo]:
        """Every line in the index."""
        with self._lock:
            return [log.info for log in self._logs.values() if log.info is not None]

    def change(self, line: ThreadInfo, **changes: Any) -> ThreadInfo:
        """Write a line without asking."""
        changed = msgspec.structs.replace(line, **changes)
        with self._lock:
            self._logs[line.key].info = changed
            self._claims.note(line.key, changed)
        return changed

    def claimed_among(
        self, seen: Collection[ThreadInfo], worker: str, lanes: Sequence[str], limit: int
    ) -> Sequence[ThreadInfo]:
        """Claim as if nothing else waited."""
        hidden = [line for line in self.lines() if not line.worker and line not in seen]
        for line in hidden:
            self._claims.note(line.key, None)
        found = super().claim(worker, lanes, limit=limit)
        for line in hidden:
            self._claims.note(line.key, line)
        return found


class ForgetsWhatWasUsed(
    BrokenClaims,
    caught_by=(
        "test_a_changed_limit_gives_back_nothing_of_its_rate",
        "test_a_rate_by_key_is_not_exceeded",
    ),
):
    """A limit that is set again begins again."""

    def set_limit(self, limit: Limit) -> None:
        """Remove it first."""
        super().set_limit(Limit(graph=limit.graph, tenant=limit.tenant, key=limit.key))
        super().set_limit(limit)


class ClaimsWhatIsClaimed(BrokenClaims, caught_by=("test_a_due_thread_is_claimed_once",)):
    """The last worker that asks has it."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Take it from the worker that has it."""
        for line in self.lines():
            self.change(line, worker="")
        return super().claim(worker, lanes, limit=limit)


class ClaimsInTwoSteps(BrokenClaims, caught_by=("test_racing_claims_take_each_thread_once",)):
    """Looks first, and writes a moment later."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Compare nothing when writing."""
        found = [line for line in self.lines() if line.lane in lanes and not line.worker]
        time.sleep(0.001)
        return [self.change(line, worker=worker) for line in found[:limit]]


class ClaimsWhatIsNotDue(BrokenClaims, caught_by=("test_what_is_not_due_is_not_claimed",)):
    """Its clock is fast."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Look at a time that comes much later."""
        now, self._claims.now = self._claims.now, lambda: 2**60
        found = super().claim(worker, lanes, limit=limit)
        self._claims.now = now
        return found


class ClaimsWithoutALane(BrokenClaims, caught_by=("test_what_is_not_due_is_not_claimed",)):
    """What nobody may run, anybody may."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Put threads without a lane into the first that is asked for."""
        for line in self.lines() if lanes else ():
            self.change(line, lane=line.lane or lanes[0])
        return super().claim(worker, lanes, limit=limit)


class KeepsTheZero(BrokenClaims, caught_by=("test_a_line_that_is_due_at_0_is_due_now",)):
    """0 is long ago, and so due."""

    def commit(self, batch: Batch) -> None:
        """Write the time that was given."""
        super().commit(batch)
        if batch.thread is not None and batch.thread.due_at == 0:
            self.change(batch.thread)


class TakesADelayForATime(BrokenClaims, caught_by=("test_a_delay_begins_with_the_commit",)):
    """A time before 1970 has come."""

    def commit(self, batch: Batch) -> None:
        """Write the time that was given."""
        super().commit(batch)
        if batch.thread is not None and (batch.thread.due_at or 0) < 0:
            self.change(batch.thread)


class ClaimsInEveryLane(BrokenClaims, caught_by=("test_a_worker_claims_in_its_lanes",)):
    """Work is work."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Look into all of them."""
        every = sorted({line.lane for line in self.lines()})
        return super().claim(worker, every, limit=limit)


_ORDER = "test_those_that_were_due_first_are_claimed_first"


class ClaimsByName(BrokenClaims, caught_by=(_ORDER,)):
    """Alphabetical order is order."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Take them backwards."""
        found = super().claim(worker, lanes, limit=2**70)[::-1]
        for line in found[max(0, limit) :]:
            self.change(line, worker="")
        return found[: max(0, limit)]


class ForgetsWhoseTurnItIs(BrokenClaims, caught_by=("test_tenants_and_lanes_take_turns",)):
    """Each claim begins with the first tenant."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Begin again."""
        self._claims.rotation = Rotation()
        return super().claim(worker, lanes, limit=limit)


class TakesTwoLanesForOne(
    BrokenClaims, caught_by=("test_tenants_with_keys_take_turns_beside_another_lane",)
):
    """Beside another lane, each claim begins with the first tenant."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Begin again."""
        if len(lanes) > 1:
            self._claims.rotation = Rotation()
        return super().claim(worker, lanes, limit=limit)


class LooksTwice(
    BrokenClaims,
    caught_by=("test_tenants_take_turns_under_limits", "test_lanes_take_turns_under_limits"),
):
    """Looks without limits first, and counts what it saw as taken."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Give the first claim back, in secret."""
        if self.limits():
            for line in super().claim("nobody", lanes, limit=limit):
                self.change(line, worker="")
        return super().claim(worker, lanes, limit=limit)


class GivesEachLaneATurn(BrokenClaims, caught_by=("test_lanes_take_turns_beside_empty_ones",)):
    """Lanes take turns, also those in which nothing is due: the next one gets theirs."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Begin with another lane each time."""
        self._turn = getattr(self, "_turn", 0) + 1
        turn = self._turn % max(1, len(lanes))
        for lane in [*lanes[turn:], *lanes[:turn]]:
            if found := super().claim(worker, [lane], limit=limit):
                return found
        return []


class StaysBehindTheLastTenant(
    BrokenClaims, caught_by=("test_tenants_take_turns_also_after_the_last_of_them",)
):
    """Where a claim ended is noted, until one has ended with the last tenant."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Do not note it any more."""
        before = deepcopy(self._claims.rotation)
        last = max((line.key.tenant for line in self.lines()), default="")
        found = super().claim(worker, lanes, limit=limit)
        if any(after[0] == last for _, after in deepcopy(before).lanes(lanes)):
            self._claims.rotation = before
        return found


class IgnoresPriorities(BrokenClaims, caught_by=("test_a_higher_priority_is_claimed_first",)):
    """All threads are equal."""

    def commit(self, batch: Batch) -> None:
        """Drop the priority."""
        super().commit(batch)
        line = self.thread(batch.key)
        if line is not None:
            self.change(line, priority=0)


class DropsLimitKeys(BrokenClaims, caught_by=("test_the_limit_key_is_stored_with_the_index_row",)):
    """Whoever claims knows what it is."""

    def commit(self, batch: Batch) -> None:
        """Write the row without it."""
        super().commit(batch)
        line = self.thread(batch.key)
        if line is not None:
            self.change(line, limit_key="")


class LimitsEveryValueTogether(
    BrokenClaims, caught_by=("test_a_limit_by_key_holds_for_each_of_its_values",)
):
    """A limit is a limit."""

    def set_limit(self, limit: Limit) -> None:
        """Set it for the graph."""
        super().set_limit(msgspec.structs.replace(limit, key=""))


class TakesLimitsThatLetNobodyRun(
    BrokenClaims, caught_by=("test_a_limit_by_key_lets_somebody_run",)
):
    """Lists what was set last."""

    def limits(self) -> Sequence[Limit]:
        """Leave out what has a key."""
        return [limit for limit in super().limits() if not limit.key]


class LooksAtKeysFirst(
    BrokenClaims, caught_by=("test_racing_claims_do_not_exceed_a_limit_by_key",)
):
    """Looks which keys run, and claims a moment later."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Compare nothing when writing."""
        running = {line.limit_key for line in self.lines() if line.worker}
        free = {line.limit_key: line for line in self.lines() if line.limit_key not in running}
        time.sleep(0.001)
        return [self.change(line, worker=worker) for line in list(free.values())[:limit]]


class ForgetsWhichKeyIsNext(BrokenClaims, caught_by=("test_keys_take_turns",)):
    """Each claim begins with a tenant's first key."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Remember the tenants alone."""
        self._claims.rotation._keys.clear()  # pyright: ignore[reportPrivateUsage]
        return super().claim(worker, lanes, limit=limit)


class PrefersKeys(BrokenClaims, caught_by=("test_tenants_take_turns_before_their_keys",)):
    """What is limited is claimed while it may be."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Claim the rest if there is none."""
        own = [line for line in self.lines() if line.limit_key]
        return self.claimed_among(own, worker, lanes, limit) or super().claim(
            worker, lanes, limit=limit
        )


class LooksAtTheFront(BrokenClaims, caught_by=("test_a_key_at_its_limit_hides_nobody",)):
    """Those that have waited longest are next."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Look at as many as are asked for."""
        due = sorted(
            (line for line in self.lines() if not line.worker),
            key=lambda line: (line.due_at or 0, line.key),
        )
        return self.claimed_among(due[: limit + 1], worker, lanes, limit)


class ClaimsAllThatIsDue(BrokenClaims, caught_by=(_ORDER,)):
    """More is better."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Ignore the limit."""
        return super().claim(worker, lanes, limit=2**70)


class ClaimsOfOneTenant(BrokenClaims, caught_by=("test_threads_of_every_tenant_are_claimed",)):
    """A worker belongs to one tenant."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Look at the first tenant."""
        first = min((line.key.tenant for line in self.lines()), default="")
        own = [line for line in self.lines() if line.key.tenant == first]
        return self.claimed_among(own, worker, lanes, limit)


_ENDS = "test_a_commit_of_another_line_ends_a_claim"


class KeepsClaimsThroughCommits(BrokenClaims, caught_by=(_ENDS,)):
    """What a worker has, it has."""

    def commit(self, batch: Batch) -> None:
        """Write the line, but for the worker."""
        known = self.thread(batch.key)
        super().commit(batch)
        if batch.thread is not None and known is not None and known.worker:
            self.change(batch.thread, worker=known.worker)


class EndsClaimsWithEachCommit(BrokenClaims, caught_by=(_ENDS,)):
    """A step ends a claim."""

    def commit(self, batch: Batch) -> None:
        """Take the worker out of the line."""
        super().commit(batch)
        known = self.thread(batch.key)
        if batch.thread is None and known is not None:
            self.change(known, worker="")


class GivesBackForAnybody(BrokenClaims, caught_by=("test_a_thread_is_given_back",)):
    """Whoever asks."""

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        """Do not look at which worker has it."""
        known = self.thread(key)
        return super().give_back(known.worker if known else worker, key, delay=delay)


class GivesBackAtOnce(BrokenClaims, caught_by=("test_a_thread_is_given_back",)):
    """A delay costs time."""

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        """Forget the delay."""
        return super().give_back(worker, key)


class ForgetsClaimsInACrash(BrokenClaims, caught_by=("test_claims_are_durable",)):
    """Claims are in memory."""

    def crashed(self) -> MemoryStore:
        """Lose them."""
        for line in self.lines():
            self.change(line, worker="")
        return self


class ClaimsWhatWasDeleted(BrokenClaims, caught_by=("test_a_deleted_thread_is_not_claimed",)):
    """A queue of its own."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Leave the thread in the queue."""
        line = self.thread(key)
        found = super().delete(key, head=head, head_id=head_id)
        self._claims.note(key, line)
        return found


class ClaimsForNobody(BrokenClaims, caught_by=("test_a_worker_has_an_id",)):
    """A name is a formality."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Accept a worker without one."""
        return super().claim(worker, lanes, limit=limit) if worker else []


class KeepsEmptyLimits(BrokenClaims, caught_by=("test_limits_are_listed_as_they_were_set",)):
    """A limit stays."""

    def set_limit(self, limit: Limit) -> None:
        """Remove nothing."""
        if not limit.is_empty:
            super().set_limit(limit)


class _ChangesLimits(BrokenClaims):
    """Claims with other limits than were set."""

    def changed(self, limit: Limit, worker: str) -> Limit:
        """What it makes of a limit."""
        raise NotImplementedError

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Put the limits back afterwards."""
        known = self.limits()
        for each in known:
            self.set_limit(self.changed(each, worker))
        found = super().claim(worker, lanes, limit=limit)
        for each in known:
            self.set_limit(each)
        return found


class IgnoresConcurrency(
    _ChangesLimits, caught_by=("test_a_limit_of_concurrency_is_not_exceeded",)
):
    """There is always room for one more."""

    def changed(self, limit: Limit, worker: str) -> Limit:
        """Without a concurrency."""
        return msgspec.structs.replace(limit, concurrency=None)


class LimitsEachWorker(_ChangesLimits, caught_by=("test_racing_claims_do_not_exceed_a_limit",)):
    """Each worker keeps the limit."""

    def changed(self, limit: Limit, worker: str) -> Limit:
        """Do not count what others run."""
        others = sum(line.worker not in ("", worker) for line in self.lines())
        return msgspec.structs.replace(limit, concurrency=(limit.concurrency or 0) + others)


class IgnoresRates(_ChangesLimits, caught_by=("test_a_rate_is_not_exceeded",)):
    """Faster is better."""

    def changed(self, limit: Limit, worker: str) -> Limit:
        """Without a rate."""
        return msgspec.structs.replace(limit, rate=None)


class ClaimsWhatIsPaused(_ChangesLimits, caught_by=("test_what_is_paused_is_not_claimed",)):
    """A pause is a wish."""

    def changed(self, limit: Limit, worker: str) -> Limit:
        """Resumed."""
        return msgspec.structs.replace(limit, paused=False)


class LooksAtTheOldest(
    BrokenClaims,
    caught_by=("test_a_claim_is_shared_among_tenants", "test_many_that_are_paused_hide_nobody"),
):
    """First come, first served: considers as many threads as it may claim."""

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Hide all others."""
        waiting = [line for line in self.lines() if not line.worker and line.due_at is not None]
        oldest = sorted(waiting, key=lambda line: line.due_at or 0)[: max(0, limit)]
        return self.claimed_among(oldest, worker, lanes, limit)


_SILENT = "test_threads_of_a_silent_worker_are_reclaimed"


class GoesByOneLimit(BrokenClaims, caught_by=("test_each_worker_says_how_long_it_may_be_silent",)):
    """All workers are alike."""

    def reclaim(self, timeout: float | None = None) -> int:
        """Do not read their heartbeats."""
        return super().reclaim(15.0 if timeout is None else timeout)


class NeverReclaims(BrokenClaims, caught_by=(_SILENT,)):
    """A worker will be back."""

    def reclaim(self, timeout: float | None = None) -> int:
        """Wait for it."""
        return 0


class KeepsTheTimeOfWhatItReclaims(BrokenClaims, caught_by=(_SILENT,)):
    """Only the worker changes: what was running is not due."""

    def reclaim(self, timeout: float | None = None) -> int:
        """Leave ``due_at`` as it was."""
        before = {line.key: line.due_at for line in self.lines()}
        count = super().reclaim(timeout)
        for line in self.lines():
            self.change(line, due_at=before[line.key])
        return count


class KeepsSilentWorkers(BrokenClaims, caught_by=(_SILENT,)):
    """Takes the threads and still counts on the worker."""

    def reclaim(self, timeout: float | None = None) -> int:
        """Remember every worker."""
        known = self.workers()
        count = super().reclaim(timeout)
        for worker in known:
            self.beat(worker)
        return count


class SparesTheUnknown(
    BrokenClaims, caught_by=("test_threads_of_an_unknown_worker_are_reclaimed",)
):
    """A worker that never said anything is not silent."""

    def reclaim(self, timeout: float | None = None) -> int:
        """Look only at those that are known."""
        known = {worker.id for worker in self.workers()}
        held = [line for line in self.lines() if line.worker and line.worker not in known]
        count = super().reclaim(timeout)
        for line in held:
            self.change(line)
        return count - len(held)


class CountsTheFirstBeat(BrokenClaims, caught_by=("test_a_living_worker_keeps_its_threads",)):
    """A worker lives so long after it began."""

    def beat(self, worker: WorkerInfo) -> None:
        """Note the first beat."""
        if worker.id not in {known.id for known in self.workers()}:
            super().beat(worker)


class RetiresTheWorkerAlone(
    BrokenClaims, caught_by=("test_a_worker_that_retires_gives_its_threads_back",)
):
    """The threads are found later."""

    def retire(self, worker: str) -> int:
        """Forget the worker, and leave its threads."""
        held = [line for line in self.lines() if line.worker == worker]
        count = super().retire(worker)
        for line in held:
            self.change(line)
        return count


class ListsWorkersAsTheyWere(
    BrokenClaims, caught_by=("test_workers_are_listed_as_they_describe_themselves",)
):
    """What a worker says of itself is taken as it is."""

    def workers(self) -> Sequence[WorkerInfo]:
        """Count nothing."""
        return [msgspec.structs.replace(worker, running=0) for worker in super().workers()]


class ListsClaimsAsTheyCame(BrokenClaims, caught_by=("test_the_threads_of_a_worker_are_listed",)):
    """In no order."""

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        """Turn the list round."""
        return super().claimed(worker)[::-1]


class CountsWhatIsTaken(BrokenClaims, caught_by=("test_a_store_says_when_something_is_due",)):
    """What is due is due, whoever has it."""

    def due_in(self, lanes: Sequence[str]) -> float | None:
        """Look at every line."""
        times = [line.due_at for line in self.lines() if line.due_at and line.lane in lanes]
        return (min(times) - self._claims.now()) / 1e6 if times else None


class TellsTheTimeOfAnotherClock(
    BrokenClaims, caught_by=("test_a_store_tells_the_time_by_which_threads_are_due",)
):
    """An hour ahead."""

    def now(self) -> int:
        """Add an hour."""
        return super().now() + 3_600_000_000


class CountsTheLaterAsDue(BrokenClaims, caught_by=("test_depths_are_counted",)):
    """All that waits."""

    def depths(self) -> Sequence[LaneDepth]:
        """Add up."""
        return [
            msgspec.structs.replace(depth, due=depth.due + depth.later, later=0)
            for depth in super().depths()
        ]


class LosesWhatItReclaims(
    BrokenClaims, caught_by=("test_claims_and_commits_do_not_stop_each_other",)
):
    """Takes threads from a worker and offers them to nobody."""

    def reclaim(self, timeout: float | None = None) -> int:
        """Forget when they were due."""
        held = [line for line in self.lines() if line.worker]
        count = super().reclaim(timeout)
        for line in held:
            self.change(line, worker="", due_at=None)
        return count


class LetsLateWorkersWrite(BrokenClaims, caught_by=("test_a_late_worker_is_refused_by_the_log",)):
    """A claim is enough."""

    def commit(self, batch: Batch) -> None:
        """Write whatever a worker brings."""
        try:
            super().commit(batch)
        except Conflict:
            self.force(batch)


class AnswersWhenClosed(
    BrokenClaims, caught_by=("test_a_closed_store_answers_no_call_of_a_worker",)
):
    """Nothing is nothing."""

    def depths(self) -> Sequence[LaneDepth]:
        """Look at what is left."""
        return self._claims.depths()


class ListsEveryLaneAsLate(BrokenClaims, caught_by=("test_lanes_that_wait_for_long_are_listed",)):
    """Everything is urgent."""

    def overdue(self, age: float) -> Sequence[str]:
        """Every lane that there is."""
        return sorted({line.lane for line in self.lines()})


Enqueue = Callable[..., Sent]


class BrokenInputs(BrokenClaims):
    """The memory store, with ways round the rules of waiting inputs."""

    @property
    def mailbox(self) -> MemoryMailbox:
        return _Inputs(self)

    def mailbox_of_memory(self) -> MemoryMailbox:
        """The mailbox that keeps the rules."""
        return super().mailbox

    def enqueue(self, enqueue: Enqueue, run: NewRun) -> Sent:
        return enqueue(run)

    def listed(self, key: ThreadKey, found: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        return found

    def after_restoring(self, line: ThreadInfo) -> None:
        """Called with the line from before."""

    def unread_of(self, key: ThreadKey) -> dict[int, StoredMessage]:
        messages = self._logs[key].messages if key in self._logs else None
        return dict(messages.unread) if messages else {}


class _Inputs(MemoryMailbox):
    """Lets the store break each call."""

    def __init__(self, store: BrokenInputs) -> None:
        self._store = store
        self._real = store.mailbox_of_memory()

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        run: NewRun | None = None,
        debounce: Debounce | None = None,
    ) -> Sent:
        def enqueue(run: NewRun, mark: str = mark, graph: str = graph) -> Sent:
            return self._real.send(key, topic, mark, payload, graph, run)

        if run is None:
            return self._real.send(key, topic, mark, payload, graph)
        return self._store.enqueue(enqueue, run)

    def unread(self, key: ThreadKey, **how: Any) -> Sequence[StoredMessage]:
        return self._store.listed(key, self._real.unread(key, **how))

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        line = self._store.thread(key)
        self._real.restore(key, messages, marks)
        if line is not None:
            self._store.after_restoring(line)


class TakesTheLastInputFirst(BrokenInputs, caught_by=("test_inputs_wait_in_their_order",)):
    """The newest is the most urgent."""

    def listed(self, key: ThreadKey, found: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """From the other end."""
        return found[::-1]


class EnqueuesAgain(BrokenInputs, caught_by=("test_a_run_is_enqueued_once",)):
    """Two calls are two inputs."""

    def enqueue(self, enqueue: Enqueue, run: NewRun) -> Sent:
        """Make every mark a new one."""
        return enqueue(run, mark=f"{run.record.run_id} {time.monotonic_ns()}")


class EndsWithoutALook(
    BrokenClaims,
    caught_by=(
        "test_the_end_of_a_run_makes_its_thread_due",
        "test_an_input_that_meets_the_end_of_a_run_is_not_forgotten",
    ),
):
    """The line is as the writer gave it, even if an input came a moment before."""

    def commit(self, batch: Batch) -> None:
        """Write it over."""
        if batch.thread is not None and batch.thread.status == "completed":
            time.sleep(0.001)  # let the input come first
        super().commit(batch)
        if batch.thread is not None and batch.thread.due_at is None:
            self.change(batch.thread)


class ComesWithoutALook(BrokenInputs, caught_by=("test_an_input_makes_a_free_thread_due",)):
    """The end of some run will find it."""

    def enqueue(self, enqueue: Enqueue, run: NewRun) -> Sent:
        """Leave the line as it was."""
        line = self.thread(run.record.key)
        sent = enqueue(run)
        if line is not None:
            self.change(line)
        return sent


class RestoresWithoutALook(
    BrokenInputs, caught_by=("test_a_restored_input_makes_a_free_thread_due",)
):
    """The copied line says when it is due."""

    def after_restoring(self, line: ThreadInfo) -> None:
        """Leave the line as it was."""
        self.change(line)


class WaitsBehindNobody(BrokenInputs, caught_by=("test_an_input_waits_behind_a_run_that_stopped",)):
    """A run that stopped has ended."""

    def enqueue(self, enqueue: Enqueue, run: NewRun) -> Sent:
        """Make the thread due whatever it waits for."""
        sent = enqueue(run)
        line = self.thread(run.record.key)
        if line is not None and line.status in ("failed", "interrupted"):
            self.change(line, due_at=1)
        return sent


class KeepsWhatWasApplied(
    BrokenInputs, caught_by=("test_a_batch_consumes_the_input_that_it_applies",)
):
    """Better twice than never."""

    def commit(self, batch: Batch) -> None:
        """Put the input back."""
        kept = self.unread_of(batch.key)
        super().commit(batch)
        if (messages := self._logs[batch.key].messages) is not None:
            messages.unread = kept


class TakesMessagesForInputs(BrokenInputs, caught_by=("test_messages_are_no_inputs",)):
    """What is unread is to be run."""

    def commit(self, batch: Batch) -> None:
        """Make a free thread due, in the lane it had, for any message."""
        known = self.thread(batch.key)
        super().commit(batch)
        if self.unread_of(batch.key) and known and batch.thread and batch.thread.due_at is None:
            self.change(batch.thread, lane=known.lane, due_at=1)


class TakesInputsForNobody(BrokenInputs, caught_by=("test_a_thread_in_no_lane_takes_no_input",)):
    """Somebody will come."""

    def enqueue(self, enqueue: Enqueue, run: NewRun) -> Sent:
        """Accept it anyway."""
        return enqueue(run, graph="")


class ForgetsKeys(BrokenInputs, caught_by=("test_an_input_that_a_run_has_is_not_enqueued",)):
    """What does not wait is new, whatever its key."""

    def enqueue(self, enqueue: Enqueue, run: NewRun) -> Sent:
        """Look only at what waits."""
        return enqueue(NewRun(record=run.record))


class EnqueuesInTwoSteps(
    BrokenInputs,
    caught_by=("test_of_one_input_that_is_enqueued_and_started_at_once_one_wins",),
):
    """Looks first, and writes a moment later."""

    def enqueue(self, enqueue: Enqueue, run: NewRun) -> Sent:
        """Compare nothing when writing."""
        known = self.find_run(run.record.key, run.record.input_digest)
        time.sleep(0.001)
        if known is not None:
            return Sent(number=0, reused=True, status="running")
        return enqueue(NewRun(record=run.record))

    def commit(self, batch: Batch) -> None:
        """Here neither."""
        super().commit(msgspec.structs.replace(batch, unless=None))


class SleepsOn(
    BrokenClaims, caught_by=("test_an_input_behind_a_run_that_sleeps_is_due_when_it_wakes",)
):
    """Whoever let it sleep will wake it."""

    def commit(self, batch: Batch) -> None:
        """Write the line as it was given, in its lane."""
        known = self.thread(batch.key)
        super().commit(batch)
        if batch.thread is not None and batch.thread.status == "sleeping" and known is not None:
            self.change(batch.thread, lane=known.lane)


class DeletesInputsAtAHead(
    BrokenClaims,
    caught_by=(
        "test_a_thread_is_not_deleted_at_a_head_while_inputs_wait",
        "test_an_input_and_who_deletes_its_thread_do_not_both_win",
    ),
):
    """The head is all that counts."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Do not look at what waits."""
        time.sleep(0.001)  # let an input come first
        if key in self._logs:
            self._logs[key].messages = None
        return super().delete(key, head=head, head_id=head_id)


class KeepsInputsOfDeletedThreads(
    BrokenInputs, caught_by=("test_inputs_are_deleted_with_their_thread",)
):
    """Names are forever."""

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Remember what waited."""
        self._left = list(self.unread_of(key).values())
        return super().delete(key, head=head, head_id=head_id)

    def listed(self, key: ThreadKey, found: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """What waits now, or waited for the thread before."""
        left: list[StoredMessage] = getattr(self, "_left", [])
        return found or left


BROKEN_CLAIMS: tuple[type[BrokenClaims], ...] = tuple(
    store for store in BrokenStore.known if issubclass(store, BrokenClaims)
)
"""One for each way to break the contract of claims; each says which clauses catch it."""
