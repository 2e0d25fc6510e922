"""Claims: which threads a worker has. Every time in here is the server's.

Rules:

- Only ``give_back`` waits for another transaction, and only for that of one thread. All others
  leave out locked rows, so they wait for nobody and take part in no deadlock. If limits cover its
  lanes, a claim waits for other such claims, before it locks a thread.
- Each statement changes a bounded number of rows, and is its own transaction; only a claim under
  limits has several. The server ends it if its process is suspended in between.
- If nothing is limited, one statement takes all that is due, if it fits into a claim, or one thread
  each of as many tenants as the claim asks for. Otherwise a claim scans first, and divides the
  result. The last scan decides which of these is tried first.
- No claim waits for the disk. If a server crash takes one back, two workers may run the
  thread until one has written: the other is refused by the log.
- A claim whose answer was lost is not repeated: its threads are the worker's, as ``claimed`` tells.
- Row-level security shows one tenant at a time. A worker serves them all, so it needs a role
  that is exempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import msgspec.structs

from milecastle.errors import Corrupted, StoreError, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import require_worker
from milecastle.ports.fairness import (
    START,
    VISITS,
    Group,
    LanePosition,
    Rotation,
    Scan,
    divide,
    keys_each,
    sizes,
)
from milecastle.ports.limits import ClaimPlace, Limit, Meter, Rooms, charged, graph_of
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.postgres import rows
from milecastle.stores.postgres.pool import Pool, Query
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost
from milecastle.stores.postgres.values import escape, unescape
from milecastle.stores.postgres.writing import owner_to

_BATCH = 1000
_MOST = 2**31 - 1
_SECOND = 1_000_000
_ROUNDS = 8
HELD = 5
_HELD_HERE = 2
"""For how many seconds a claim under limits may pause, over several databases and in one."""
_LANES = msgspec.json.Decoder(tuple[str, ...])

Shut = Collection[ClaimPlace]
"""Lanes with tenants and limit keys from which limits let nobody claim now; empty: all."""


MetersOf = Callable[[Iterable[Group] | None], Sequence[Meter]]
"""Reads the meters by key of what a claim has found; with ``None``, those that are full."""

WithinLimits = Callable[[Sequence[Meter], MetersOf, Callable[[], object]], None]


class Repeat(Protocol):
    def __call__(
        self, query: bytes, parameters: Parameters, tenant: str, first: bytes | None = None, /
    ) -> list[Row]: ...


class _Asked(NamedTuple):
    worker: str
    lanes: Sequence[str]
    limit: int

    @property
    def graphs(self) -> list[str]:
        return [graph_of(lane) for lane in self.lanes]


class Look(NamedTuple):
    """Due work: in each lane, and the longest waiting if a scan stopped before its end.

    ``is_all``: nothing else is due, and it fits into the claim.
    """

    scans: Mapping[str, Scan]
    oldest: Sequence[Group]
    is_all: bool
    is_limited: bool

    def groups(self) -> list[Group]:
        found = [group for scan in self.scans.values() for group in scan.groups]
        if not found or any(any(scan.stop) for scan in self.scans.values()):
            found += self.oldest
        return found


class Claims:
    """One schema's claims. ``retry`` runs idempotent statements."""

    def __init__(self, pool: Pool, statements: Statements, retry: Repeat) -> None:
        self._pool = pool
        self._sql = statements
        self._retry = retry
        self._rotation = Rotation()
        self._quick: Callable[[_Asked], list[Row]] = self._take_all
        self._is_limited = False

    def beat(self, worker: WorkerInfo) -> None:
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
            silent=round(worker.silent_after * _SECOND),
        )

    def retire(self, worker: str) -> int:
        """Give all a worker's threads back, and forget it.

        Threads a commit holds on to until the end are left to ``reclaim``.
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
        return [_worker_from(row) for row in self._run(self._sql.workers)]

    def claim(self, worker: str, lanes: Sequence[str], limit: int) -> list[ThreadInfo]:
        require_worker(worker)
        self._check()
        if limit <= 0:
            return []
        asked = _Asked(escape(worker), [escape(lane) for lane in lanes if lane], min(limit, _MOST))
        try:
            found = [] if self._is_limited else self._quick(asked) or self._unlimited(asked)
            if self._is_limited:
                found = self._pool.transact(lambda run: self._limited(asked, run))
        except Lost as lost:
            raise _unanswered(worker, lost) from lost
        return [rows.info_from(row[0], row[1:]) for row in found]

    def look(
        self, behind: Mapping[str, LanePosition], limit: int, rotation: Rotation, shut: Shut = ()
    ) -> Look:
        """Due work in lanes, each starting behind a turn; names are the database's."""
        self._check()
        return self._look(behind, limit, shut, self._outside, rotation)

    def first_due(self, groups: Sequence[Group]) -> list[list[int]]:
        times: list[list[int]] = [list[int]() for _ in groups]
        for number, due_at in self._outside(self._sql.first_due, _columns(groups)):
            times[int(number) - 1].append(due_at)
        return times

    def take(
        self, worker: str, groups: Sequence[Group], until: int | None = None
    ) -> list[ThreadInfo]:
        limit = sum(group.size for group in groups)
        try:
            found = self._take(_Asked(worker, (), limit), groups, self._once, until)
        except Lost as lost:
            raise _unanswered(worker, lost) from lost
        return [rows.info_from(row[0], row[1:]) for row in found]

    def running(self) -> tuple[int, Mapping[ClaimPlace, int]]:
        found = self._outside(self._sql.running, {})
        return found[0][4], {row[:3]: row[3] for row in found[1:]}

    def within_limits(self, lanes: Sequence[str], work: WithinLimits) -> None:
        """Call ``work`` with lanes' limits while no other claim under limits is under way.

        That ends if ``work`` takes ``HELD`` seconds: its last argument raises if it has ended.
        """

        def claim(run: Query) -> None:
            graphs = [graph_of(lane) for lane in lanes]
            meters, values = self._meters(graphs, HELD, run)
            work([*meters, *values(None)], values, lambda: bool(run(b"SELECT 1", {})))

        self._check()
        try:
            self._pool.transact(claim)
        except Lost as lost:
            raise Unavailable(
                f"the connection to PostgreSQL was lost during a claim under limits: {lost}; "
                "claimed() says which threads the worker got"
            ) from lost

    def charge(self, meters: Sequence[Meter], served: Mapping[ClaimPlace, int]) -> None:
        self._charge(meters, served, self._once)

    def _take_all(self, asked: _Asked) -> list[Row]:
        return self._once(self._sql.take_all, {**asked._asdict(), "graphs": asked.graphs})

    def _take_each(self, asked: _Asked) -> list[Row]:
        behind = dict(self._rotation.lanes(asked.lanes))
        given = {**_behind(behind, asked.limit), "worker": asked.worker}
        found = self._once(self._sql.take_each, given)
        self._rotation.passed(behind, [place[:2] for place in _served(found)])
        return found

    def _take_nothing(self, asked: _Asked) -> list[Row]:
        return []

    def _unlimited(self, asked: _Asked) -> list[Row]:
        behind = dict(self._rotation.lanes(asked.lanes))
        look = self._look(behind, asked.limit, (), self._outside, self._rotation)
        self._is_limited = look.is_limited
        if look.is_limited:
            return []
        scans = look.scans.values()
        groups = [group for scan in scans if not any(scan.stop) for group in scan.groups]
        each = len({group[:2] for group in groups}) >= asked.limit
        if look.is_all:
            self._quick = self._take_all
        elif each and not any(group.has_key for group in groups):
            self._quick = self._take_each
        else:
            self._quick = self._take_nothing
        return self._take_share(asked, look, divide(asked.limit, look.groups()), self._once)

    def _limited(self, asked: _Asked, run: Query) -> list[Row]:
        meters, values = self._meters(asked.graphs, _HELD_HERE, run)
        self._is_limited = bool(meters)
        counted = any(meter.limit.concurrency is not None for meter in meters)
        running = {row[:3]: row[3] for row in run(self._sql.running, {})[1:]} if counted else {}
        rooms = Rooms(meters, running)
        behind, shut = open_lanes(dict(self._rotation.lanes(asked.lanes)), rooms)
        look = self._look(behind, asked.limit, shut, run, self._rotation)
        groups = look.groups()
        rooms.learn(values(groups))
        found = self._take_share(asked, look, divide(asked.limit, groups, rooms), run)
        self._charge(rooms.meters, _served(found), run)
        return found

    def _take_share(
        self, asked: _Asked, look: Look, share: Sequence[Group], run: Query
    ) -> list[Row]:
        found = self._take(asked, share, run)
        if not look.is_all or look.is_limited:
            self._rotation.note(look.scans, asked.limit, _served(found) or sizes(share))
        return found

    def _meters(self, graphs: Sequence[str], held: int, run: Query) -> tuple[list[Meter], MetersOf]:
        """The limits covering some graphs. Until the end, other claims reading them wait.

        With a reader for meters by key, which other databases do not see. The server
        ends the transaction if nothing comes for ``held`` seconds.
        """
        run(self._sql.lock_limits, {"held": f"{held}s", "wait": f"{2 * held + 1}s"})
        found = run(self._sql.covering_limits, {"graphs": graphs})
        meters = [_meter_from(row).at(row[10]) for row in found]

        def values(groups: Iterable[Group] | None) -> list[Meter]:
            if not any(one.limit.key and one.limit.rate for one in meters):
                return []
            now = found[0][10]
            asked: dict[str, Any] = {"graphs": graphs, "now": now}
            if groups is None:
                rows = run(self._sql.full_meters, asked)
            else:
                asked["limit_keys"] = list({one.limit_key for one in groups if one.has_key})
                rows = run(self._sql.key_meters, asked)
            return [_meter_from(row).at(now) for row in rows]

        return meters, values

    def _charge(
        self, meters: Sequence[Meter], served: Mapping[ClaimPlace, int], run: Query
    ) -> None:
        used = {meter.scope: meter.used for meter in meters}
        changed = charged(meters, served)
        for is_by_key in (False, True):
            some = [meter for meter in changed if bool(meter.limit_key) is is_by_key]
            if some:
                given: dict[str, Any] = {
                    "graphs": [meter.limit.graph for meter in some],
                    "tenants": [meter.limit.tenant for meter in some],
                    "begun": [meter.begun for meter in some],
                    "counts": [meter.used - used.get(meter.scope, 0) for meter in some],
                }
                if is_by_key:
                    given["limit_keys"] = [meter.limit_key for meter in some]
                    given["until"] = [meter.until for meter in some]
                    given["full"] = [meter.used >= (meter.limit.rate or 0) for meter in some]
                    run(self._sql.drop_key_meters, {})
                run(self._sql.charge_keys if is_by_key else self._sql.charge_limits, given)

    def _take(
        self, asked: _Asked, groups: Sequence[Group], run: Query, until: int | None = None
    ) -> list[Row]:
        if not groups:
            return []
        given = {**_columns(groups), "worker": asked.worker, "limit": asked.limit, "until": until}
        return run(self._sql.take, given)

    def _look(
        self,
        behind: Mapping[str, LanePosition],
        limit: int,
        shut: Shut,
        run: Query,
        rotation: Rotation,
    ) -> Look:
        """Due work in lanes, each from behind a turn on and then from its first.

        If a scan stopped before its end and nothing was found at all, it continues.
        """
        if not behind:
            return Look({}, (), is_all=True, is_limited=bool(shut))
        found = run(self._sql.look, _behind(behind, limit, shut))
        scans = {lane: _scan_from(found, lane, after, shut) for lane, after in behind.items()}
        is_all = all(row[5] is None for row in found) and bool(found or not shut)
        begun = {lane for lane, after in behind.items() if is_all or after == START}
        while True:
            more: dict[str, LanePosition] = {}
            is_empty = not any(scan.groups for scan in scans.values())
            for lane, scan in scans.items():
                if any(scan.stop):
                    is_round = lane in begun and scan.stop >= behind[lane] > START
                    more |= {lane: scan.stop} if is_empty and not is_round else {}
                elif lane not in begun and len(scan.groups) <= limit:
                    more[lane] = START
                    begun.add(lane)
            if not more:
                break
            again = run(self._sql.look, _behind(more, limit, shut))
            for lane, after in more.items():
                scans[lane] = scans[lane].then(_scan_from(again, lane, after, shut))
        if ranges := rotation.key_ranges(scans.values()):
            keys: list[Group] = []
            if not is_all:
                names = "lanes", "tenants", "after", "until"
                columns = map(list, zip(*ranges, strict=True))
                asked: dict[str, Any] = dict(zip(names, columns, strict=True))
                asked |= {"each": keys_each(limit, scans.values()), "limit": limit}
                asked["graphs"] = [graph_of(lane) for lane in asked["lanes"]]
                asked |= {**_shut(shut), "visits": VISITS}
                keys = [Group(*row) for row in run(self._sql.look_keys, asked)]
            scans = {lane: rotation.with_keys(lane, scan, keys) for lane, scan in scans.items()}
        oldest = [Group(*row[:5]) for row in found if row[5] == 0]
        return Look(scans, oldest, is_all, bool(shut) or any(row[6] for row in found))

    def _outside(self, query: bytes, given: Parameters) -> list[Row]:
        return self._retry(query, given, "")

    def _once(self, query: bytes, given: Parameters) -> list[Row]:
        return self._pool.run(query, given, "")

    def limits(self) -> list[Limit]:
        return [_limit_from(row) for row in self._run(self._sql.limits)]

    def set_limit(self, limit: Limit) -> None:
        scope = {"graph": escape(limit.graph), "tenant": limit.tenant, "key": limit.key}
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
        wait = round(delay * _SECOND)
        asked = rows.key_parameters(key, worker=escape(worker), delay=wait)
        return bool(self._run(self._sql.give_back, **asked))

    def reclaim(self, timeout: float | None) -> int:
        count, last = 0, _BATCH
        while last == _BATCH:
            silent = None if timeout is None else round(timeout * _SECOND)
            last = self._run(self._sql.reclaim, timeout=silent, limit=_BATCH)[0][0]
            count += last
        return count

    def claimed(self, worker: str) -> list[ThreadKey]:
        found = self._run(self._sql.claimed, worker=escape(worker))
        return [ThreadKey(tenant, thread) for tenant, thread in found]

    def due_in(self, lanes: Sequence[str]) -> float | None:
        named = [escape(lane) for lane in lanes if lane]
        ((left,),) = self._run(self._sql.due_in, lanes=named)
        return None if left is None else left / _SECOND

    def now(self) -> int:
        ((seconds,),) = self._run(self._sql.clock)
        return int(seconds * _SECOND)

    def depths(self) -> list[LaneDepth]:
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
        return [
            unescape(lane) for (lane,) in self._run(self._sql.overdue, age=round(age * _SECOND))
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


def _unanswered(worker: str, lost: Lost) -> Unavailable:
    return Unavailable(
        f"the connection to PostgreSQL was lost during a claim by worker '{worker}': "
        f"{lost}; claimed() says which threads it got"
    )


def open_lanes(
    behind: Mapping[str, LanePosition], rooms: Rooms
) -> tuple[Mapping[str, LanePosition], Shut]:
    shut = {lane: rooms.shut(lane) for lane in behind}
    left = {lane: after for lane, after in behind.items() if START not in shut[lane]}
    return left, {(lane, *held) for lane in left for held in shut[lane]}


def _served(found: Sequence[Row]) -> Counter[ClaimPlace]:
    return Counter((row[9], row[0], row[14]) for row in found)


def _behind(lanes: Mapping[str, LanePosition], limit: int, shut: Shut = ()) -> Parameters:
    return {
        "lanes": list(lanes),
        "after_tenants": [tenant for tenant, _ in lanes.values()],
        "after_keys": [limit_key for _, limit_key in lanes.values()],
        "graphs": [graph_of(lane) for lane in lanes],
        **_shut(shut),
        "visits": VISITS,
        "limit": limit,
    }


def _shut(shut: Shut) -> Parameters:
    names = "shut_lanes", "shut_tenants", "shut_keys"
    return {name: [each[column] for each in shut] for column, name in enumerate(names)}


def _columns(groups: Sequence[Group]) -> Parameters:
    names = ("lanes", "tenants", "limit_keys", "ranks", "counts")
    return dict(zip(names, map(list, zip(*groups, strict=True)), strict=True))


def _limit_from(row: Row) -> Limit:
    return Limit(
        graph=unescape(row[0]),
        tenant=row[1],
        key=row[2],
        concurrency=row[3],
        rate=row[4],
        period=row[5] / _SECOND,
        paused=row[6],
    )


def _meter_from(row: Row) -> Meter:
    limit = msgspec.structs.replace(_limit_from(row), graph=row[0])
    return Meter(limit, *row[7:10])


def _scan_from(found: Sequence[Row], lane: str, after: LanePosition, shut: Shut) -> Scan:
    own = [row for row in found if row[0] == lane and row[5] != 0]
    own.sort(key=lambda row: (row[1:3] <= after, *row[1:4]))
    stops = [row[1:3] for row in own if row[5] == VISITS]
    groups = [Group(*row[:5]) for row in own if row[4] and _is_open(row, shut)]
    return Scan(groups, stops[0] if stops else START)


def _is_open(row: Row, shut: Shut) -> bool:
    lane, tenant, limit_key = row[:3]
    held = (lane, tenant, ""), (lane, tenant, limit_key), (lane, "", limit_key)
    return not any(each in shut for each in held)


def _worker_from(row: Row) -> WorkerInfo:
    id, owner, lanes, started_at, capacity, draining, running, silent, silent_after = row
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
        silent_after=silent_after / _SECOND,
    )
