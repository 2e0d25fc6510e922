"""Claims: which threads a worker has. Every time in here is the server's.

Rules:

- Only ``give_back`` waits for another transaction, and only for that of one thread. All others
  leave out what is locked, so that they wait for nobody and take part in no deadlock. If there are
  limits, claims under them wait for each other, before they lock a thread.
- Each statement changes a bounded number of rows, and is its own transaction; only a claim under
  limits has several.
- If nothing is limited, one statement takes all that is due, if it fits into a claim, or one thread
  each of as many tenants as the claim asks for. Otherwise a claim looks first, and divides what it
  saw. Which of these is tried first is decided by what the last look saw.
- No claim waits for the disk. If a crash of the server takes one back, two workers may run the
  thread until one has written: the other is refused by the log.
- A claim whose answer was lost is not repeated: what it took is the worker's, as ``claimed`` tells.
- Row-level security shows one tenant at a time. A worker serves all of them, so it needs a role
  that is exempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import msgspec.structs

from milecastle.errors import Corrupted, StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.claims import (
    LaneDepth,
    WaitingInput,
    WorkerInfo,
    refuse_no_lane,
    require_worker,
)
from milecastle.ports.limits import Limit, Meter, Rooms, charged, graph_of
from milecastle.ports.sharing import VISITS, Group, Rotation, Scan, divide
from milecastle.stores.postgres import rows
from milecastle.stores.postgres.pool import Pool, Query
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost
from milecastle.stores.postgres.values import escape, unescape
from milecastle.stores.postgres.writing import owner_to, record_to

__all__ = ["Claims", "scan_from"]

_BATCH = 1000
_MOST = 2**31 - 1
_SECOND = 1_000_000
_ROUNDS = 8
_LANES = msgspec.json.Decoder(tuple[str, ...])

Repeat = Callable[[bytes, Parameters, str], list[Row]]


class _Asked(NamedTuple):
    """What a claim asks for, in the words of the database."""

    worker: str
    lanes: Sequence[str]
    limit: int


class Claims:
    """The claims of one schema. ``retry`` runs what may be run twice."""

    def __init__(self, pool: Pool, statements: Statements, retry: Repeat) -> None:
        self._pool = pool
        self._sql = statements
        self._retry = retry
        self._rotation = Rotation()
        self._quick: Callable[[_Asked], list[Row]] = self._take_all

    def beat(self, worker: WorkerInfo) -> None:
        """Record that a worker is alive."""
        require_worker(worker.id)
        lanes = [escape(lane) for lane in worker.lanes]
        self._run(
            self._sql.beat,
            id=escape(worker.id),
            started_at=worker.started_at,
            capacity=worker.capacity,
            draining=worker.draining,
            owner=owner_to(worker.owner),
            lanes=msgspec.json.encode(lanes).decode(),
        )

    def retire(self, worker: str) -> int:
        """Give all threads of a worker back, and forget it.

        Threads that a commit holds on to until the end are left to ``reclaim``.
        """
        name, count = escape(worker), 0
        for _ in zip(range(_ROUNDS), self._pool.attempts(), strict=False):
            last = _BATCH
            while last == _BATCH:
                last = self._run(self._sql.take_from, worker=name, limit=_BATCH)[0][0]
                count += last
            if not self.claimed(worker):
                break
        self._run(self._sql.forget, worker=name)
        return count

    def workers(self) -> list[WorkerInfo]:
        """Every worker, by id."""
        return [_worker_from(row) for row in self._run(self._sql.workers)]

    def claim(self, worker: str, lanes: Sequence[str], limit: int) -> list[ThreadInfo]:
        """Give due threads to a worker, shared among tenants, as far as limits allow."""
        require_worker(worker)
        self._check()
        if limit <= 0:
            return []
        asked = _Asked(escape(worker), [escape(lane) for lane in lanes if lane], min(limit, _MOST))
        try:
            found = self._quick(asked)
            if not found:
                groups, is_limited = self._share(asked, self._outside, None)
                if is_limited:
                    found = self._pool.transact(lambda run: self._limited(asked, run))
                else:
                    found = self._take(asked, groups, self._once)
        except Lost as lost:
            raise Unavailable(
                f"the connection to PostgreSQL was lost during a claim by worker '{worker}': "
                f"{lost}; claimed() says which threads it got"
            ) from lost
        return [rows.info_from(row[0], row[1:]) for row in found]

    def look(self, behind: Mapping[str, str], limit: int) -> list[Row]:
        """What is due in lanes, each from behind a tenant on; names are the database's."""
        self._check()
        return self._outside(self._sql.look, _behind(behind, limit))

    def first_due(self, groups: Sequence[Group]) -> list[list[int]]:
        """When the first threads of each group were due, as many as its size."""
        times: list[list[int]] = [list[int]() for _ in groups]
        for number, due_at in self._outside(self._sql.first_due, _columns(groups)):
            times[int(number) - 1].append(due_at)
        return times

    def take(self, worker: str, groups: Sequence[Group]) -> list[ThreadInfo]:
        """Give so many threads of each group to a worker."""
        limit = sum(group.size for group in groups)
        found = self._take(_Asked(worker, (), limit), groups, self._once)
        return [rows.info_from(row[0], row[1:]) for row in found]

    def running(self) -> Mapping[tuple[str, str], int]:
        """How many threads have a worker, by lane and tenant."""
        return {row[:2]: row[2] for row in self._outside(self._sql.running, {})}

    def within_limits(
        self, lanes: Sequence[str], work: Callable[[Sequence[Meter]], Iterable[ThreadInfo]]
    ) -> None:
        """Lock the limits of lanes, as they are now, while ``work`` claims; charge what it did."""
        graphs = [graph_of(lane) for lane in lanes]

        def claim(run: Query) -> None:
            locked = run(self._sql.lock_limits, {"graphs": graphs})
            meters = [_meter_from(row).at(row[8]) for row in locked]
            self._charge(meters, [(escape(one.lane), one.key.tenant) for one in work(meters)], run)

        self._check()
        try:
            self._pool.transact(claim)
        except Lost as lost:
            raise Unavailable(
                f"the connection to PostgreSQL was lost during a claim under limits: {lost}; "
                "claimed() says which threads the worker got"
            ) from lost

    def _take_all(self, asked: _Asked) -> list[Row]:
        """Take all that is due; nothing if it is too much, or if there are limits."""
        return self._once(self._sql.take_all, asked._asdict())

    def _take_each(self, asked: _Asked) -> list[Row]:
        """Take one thread of each tenant; nothing if these are too few, or if there are limits."""
        behind = dict(self._rotation.lanes(asked.lanes))
        given = {**_behind(behind, asked.limit), "worker": asked.worker}
        found = self._once(self._sql.take_each, given)
        self._rotation.passed(behind, [(row[9], row[0]) for row in found])
        return found

    def _take_nothing(self, asked: _Asked) -> list[Row]:
        return []

    def _limited(self, asked: _Asked, run: Query) -> list[Row]:
        """Claim within limits, which are locked: nobody else claims under them meanwhile."""
        graphs = [graph_of(lane) for lane in asked.lanes]
        locked = run(self._sql.lock_limits, {"graphs": graphs})
        meters = [_meter_from(row).at(row[8]) for row in locked]
        running = {row[:2]: row[2] for row in run(self._sql.running, {})} if meters else {}
        rooms = Rooms(meters, running)
        groups, _ = self._share(asked, run, rooms)
        found = self._take(asked, groups, run)
        self._charge(meters, [(row[9], row[0]) for row in found], run)
        return found

    def _charge(
        self, meters: Sequence[Meter], claimed: Sequence[tuple[str, str]], run: Query
    ) -> None:
        """Count what was claimed, by lane and tenant, against rates."""
        for meter in charged(meters, claimed):
            scope = {"graph": meter.limit.graph, "tenant": meter.limit.tenant}
            run(self._sql.charge_limit, {**scope, "begun": meter.begun, "used": meter.used})

    def _take(self, asked: _Asked, groups: Sequence[Group], run: Query) -> list[Row]:
        """Give so many threads of these groups to a worker."""
        if not groups:
            return []
        given = {**_columns(groups), "worker": asked.worker, "limit": asked.limit}
        return run(self._sql.take, given)

    def _share(self, asked: _Asked, run: Query, rooms: Rooms | None) -> tuple[list[Group], bool]:
        """What a claim is to take: as much of each group as is its share. Whether limits exist."""
        limit, behind = asked.limit, dict(self._rotation.lanes(asked.lanes))
        found = run(self._sql.look, _behind(behind, limit))
        scans = {lane: scan_from(found, lane) for lane in behind}
        is_shared = any(row[4] is not None for row in found)
        if is_shared:
            ended = {
                lane: ""
                for lane, after in behind.items()
                if after and not scans[lane].stop and len(scans[lane].groups) <= limit
            }
            again = run(self._sql.look, _behind(ended, limit)) if ended else []
            for lane in ended:
                scans[lane] = scans[lane].then(scan_from(again, lane))
        visited = [group for scan in scans.values() for group in scan.groups]
        if any(scan.stop for scan in scans.values()) or not visited:
            visited += [Group(*row[:4]) for row in found if not row[4]]
        taken = divide(limit, visited, rooms)
        for lane in behind if is_shared else ():
            self._rotation.note(lane, scans[lane], limit, taken, rooms)
        is_limited = any(row[5] for row in found)
        tenants = {group[:2] for scan in scans.values() if not scan.stop for group in scan.groups}
        if is_limited or (is_shared and len(tenants) < limit):
            self._quick = self._take_nothing
        else:
            self._quick = self._take_each if is_shared else self._take_all
        return taken, is_limited

    def _outside(self, query: bytes, given: Parameters) -> list[Row]:
        return self._retry(query, given, "")

    def _once(self, query: bytes, given: Parameters) -> list[Row]:
        return self._pool.run(query, given, "")

    def limits(self) -> list[Limit]:
        """Every limit, by graph and tenant."""
        return [_limit_from(row) for row in self._run(self._sql.limits)]

    def set_limit(self, limit: Limit) -> None:
        """Set a limit, or remove it if it limits nothing."""
        scope = {"graph": escape(limit.graph), "tenant": limit.tenant}
        if limit.is_empty:
            self._run(self._sql.drop_limit, **scope)
        else:
            self._run(
                self._sql.put_limit,
                **scope,
                concurrency=limit.concurrency,
                rate=limit.rate,
                period=limit.microseconds,
                paused=limit.paused,
            )

    def give_back(self, worker: str, key: ThreadKey, delay: float) -> bool:
        """Make a claimed thread due after some seconds."""
        wait = round(delay * _SECOND)
        asked = rows.key_parameters(key, worker=escape(worker), delay=wait)
        return bool(self._run(self._sql.give_back, **asked))

    def reclaim(self, timeout: float) -> int:
        """Take what silent and unknown workers have, and forget the silent ones."""
        count, last = 0, _BATCH
        while last == _BATCH:
            silent = round(timeout * _SECOND)
            last = self._run(self._sql.reclaim, timeout=silent, limit=_BATCH)[0][0]
            count += last
        return count

    def claimed(self, worker: str) -> list[ThreadKey]:
        """The threads that a worker has."""
        found = self._run(self._sql.claimed, worker=escape(worker))
        return [ThreadKey(tenant, thread) for tenant, thread in found]

    def due_in(self, lanes: Sequence[str]) -> float | None:
        """In how many seconds something is due."""
        named = [escape(lane) for lane in lanes if lane]
        ((left,),) = self._run(self._sql.due_in, lanes=named)
        return None if left is None else left / _SECOND

    def now(self) -> int:
        """The time on the clock of the server."""
        ((seconds,),) = self._run(self._sql.clock)
        return int(seconds * _SECOND)

    def depths(self) -> list[LaneDepth]:
        """How much is in each lane, by lane and tenant."""
        return [
            LaneDepth(
                lane=unescape(lane),
                tenant=tenant,
                due=due,
                later=later,
                running=running,
                oldest=oldest / _SECOND,
            )
            for lane, tenant, due, later, running, oldest in self._run(self._sql.depths)
        ]

    def overdue(self, age: float) -> list[str]:
        """The lanes that have a thread which has been due for longer than so many seconds."""
        return [
            unescape(lane) for (lane,) in self._run(self._sql.overdue, age=round(age * _SECOND))
        ]

    def enqueue(self, record: RunRecord, mark: str, payload: bytes) -> str:
        """Let an input wait until its thread is free; the id of the run that it starts."""
        self._pool.check_open()
        key, names = record.key, {"mark": escape(mark), "run_id": escape(record.run_id)}
        asked = rows.key_parameters(key, **names, payload=payload)
        ((known, added),) = self._retry(
            self._sql.enqueue, {**asked, "record": record_to(record)}, key.tenant
        )
        if not known:
            refuse_no_lane(key)
        if not added:
            for one in self.inputs(key, None):
                if one.mark == mark:
                    return one.run_id
        return record.run_id

    def inputs(self, key: ThreadKey, limit: int | None) -> list[WaitingInput]:
        """The inputs that wait, in their order."""
        self._pool.check_open()
        most = None if limit is None else max(0, min(limit, _MOST))
        asked = rows.key_parameters(key, limit=most)
        return [
            WaitingInput(run_id=unescape(run_id), mark=unescape(mark), payload=payload)
            for mark, run_id, payload in self._retry(self._sql.inputs, asked, key.tenant)
        ]

    def _run(self, query: bytes, **asked: Any) -> list[Row]:
        self._check()
        return self._retry(query, asked, "")

    def _check(self) -> None:
        self._pool.check_open()
        if self._pool.address.rls:
            raise StoreError(
                "workers serve all tenants, and with rls=on a store shows one at a time: open the "
                "store of a worker without rls=on, as a role with BYPASSRLS"
            )


def _behind(lanes: Mapping[str, str], limit: int) -> Parameters:
    after = list(lanes.values())
    return {"lanes": list(lanes), "after": after, "visits": VISITS, "limit": limit}


def _columns(groups: Sequence[Group]) -> Parameters:
    names = ("lanes", "tenants", "ranks", "counts")
    return dict(zip(names, map(list, zip(*groups, strict=True)), strict=True))


def _limit_from(row: Row) -> Limit:
    return Limit(
        graph=unescape(row[0]),
        tenant=row[1],
        concurrency=row[2],
        rate=row[3],
        period=row[4] / _SECOND,
        paused=row[5],
    )


def _meter_from(row: Row) -> Meter:
    """A meter whose graph is named as the database names it."""
    return Meter(msgspec.structs.replace(_limit_from(row), graph=row[0]), row[6], row[7])


def scan_from(found: Sequence[Row], lane: str) -> Scan:
    """The visits to a lane, in the order of tenants."""
    rows = sorted((row for row in found if row[0] == lane and row[4]), key=lambda row: row[4])
    stop = rows[-1][1] if rows and rows[-1][4] == VISITS else ""
    return Scan([Group(*row[:4]) for row in rows if row[3]], stop)


def _worker_from(row: Row) -> WorkerInfo:
    id, owner, lanes, started_at, capacity, draining, running, silent = row
    try:
        named = _LANES.decode(lanes)
    except msgspec.DecodeError:
        raise Corrupted("a value that milecastle never writes", place="workers.lanes") from None
    return WorkerInfo(
        id=unescape(id),
        owner=rows.owner_from(owner, "workers.owner"),
        lanes=tuple(unescape(lane) for lane in named),
        started_at=started_at,
        capacity=capacity,
        draining=draining,
        running=running,
        silent=silent / _SECOND,
    )
