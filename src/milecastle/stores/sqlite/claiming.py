"""Claims: which threads a worker has, inside one transaction.

Rules:

- A claim changes a thread's line in the index, and writes its checksum again.
- Nothing is written unless something was found to write: the caller reads first, because a read
  does not wait for the lock writers share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from sys import maxsize
from typing import Any

import msgspec.structs

from milecastle.model.keys import ThreadKey
from milecastle.model.limit_key import NO_KEY
from milecastle.model.run import ThreadInfo
from milecastle.ports.fairness import (
    START,
    VISITS,
    Group,
    KeyRange,
    LanePosition,
    Rotation,
    Scan,
    divide,
    keys_each,
    sizes,
)
from milecastle.ports.limits import ClaimPlace, Limit, Meter, Rooms, Scope, charged, place_of
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.sqlite.rows import (
    Damaged,
    Row,
    ThreadRow,
    checked,
    key_meter_of,
    key_meter_row,
    meter_of,
    meter_row,
    read_text,
    thread_of,
    worker_of,
    write_text,
)
from milecastle.stores.sqlite.transaction import Transaction
from milecastle.stores.sqlite.writing import put_thread

_SECOND = 1_000_000
_LAST = 2**31 - 1
"""A rank behind all others."""


def waiting(
    transaction: Transaction, lanes: Sequence[str], now: int, limit: int
) -> list[ThreadRow]:
    each = [
        _rows(transaction, "due_threads", (write_text(lane), now, limit)) for lane in set(lanes)
    ]
    return list(islice(merge(*each, key=_due_order), limit))


def shared(
    transaction: Transaction,
    lanes: Sequence[str],
    now: int,
    limit: int,
    rotation: Rotation,
    rooms: Rooms | None,
) -> list[ThreadRow]:
    front = waiting(transaction, lanes, now, limit + 1)
    if len(front) <= limit and rooms is None:
        return front
    rooms = rooms or Rooms()
    oldest = [group for group in dict.fromkeys(map(_group, front)) if rooms.is_open(group[:3])]
    visits = VISITS if oldest else maxsize  # otherwise what is due would be found by nobody
    scans: dict[str, Scan] = {}
    for lane, after in rotation.lanes(lanes):
        scan = _scan(transaction, lane, after, now, limit, rooms, visits)
        if any(after) and not any(scan.stop) and len(scan.groups) <= limit:
            scan = scan.then(_scan(transaction, lane, START, now, limit, rooms, visits))
        scans[lane] = scan
    if ranges := rotation.key_ranges(scans.values()):
        each = keys_each(limit, scans.values())
        found = [_keys(transaction, one, now, limit, rooms, each) for one in ranges]
        keys = [*chain(*found)]
        scans = {lane: rotation.with_keys(lane, scan, keys) for lane, scan in scans.items()}
    visited = [group for scan in scans.values() for group in scan.groups]
    if any(any(scan.stop) for scan in scans.values()):
        visited += [_counted(transaction, *group, now, limit) for group in oldest]
    taken = divide(limit, visited, rooms)
    rotation.note(scans, limit, sizes(taken))
    threads = [
        thread
        for lane, tenant, key, rank, count in taken
        for thread in _rows(
            transaction, "due_in_group", (write_text(lane), tenant, key, rank, now, count)
        )
    ]
    return sorted(threads, key=_due_order)


def _scan(
    transaction: Transaction,
    lane: str,
    after: LanePosition,
    now: int,
    limit: int,
    rooms: Rooms,
    visits: int,
) -> Scan:
    """The groups behind a turn with something due; for a tenant with keys only the first."""
    found: list[Group] = []
    place, shut = (*after, _LAST), rooms.shut(lane)
    row = None if START in shut else transaction.one("next_group", (write_text(lane), *place))
    while visits:
        if row is None or len(found) > limit:
            return Scan(found)
        tenant, key, rank, due_at = row
        place = tenant, key, rank
        if (tenant, "") in shut:
            place = tenant, NO_KEY, _LAST
        elif not rooms.is_open((lane, tenant, key)):
            place = tenant, key, _LAST
        elif due_at <= now:
            found.append(_counted(transaction, lane, tenant, key, rank, now, limit))
            if found[-1].has_key:
                place = tenant, NO_KEY, _LAST
        row, visits = transaction.one("next_group", (write_text(lane), *place)), visits - 1
    return Scan(found, place[:2])


def _keys(
    transaction: Transaction, keys: KeyRange, now: int, limit: int, rooms: Rooms, each: int
) -> list[Group]:
    found: list[Group] = []
    lane, tenant, place = keys.lane, keys.tenant, (keys.after, _LAST)
    visits = 0
    while len(found) < each and (visits < VISITS or not found):
        row = transaction.one("next_group", (write_text(lane), tenant, *place))
        if row is None or row[0] != tenant or row[1] > keys.until:
            break
        _, key, rank, due_at = row
        is_open = rooms.is_open((lane, tenant, key))
        if is_open and due_at <= now:
            found.append(_counted(transaction, lane, tenant, key, rank, now, limit))
        place, visits = (key, rank if is_open else _LAST), visits + 1
    return found


def _counted(
    transaction: Transaction, lane: str, tenant: str, key: str, rank: int, now: int, limit: int
) -> Group:
    asked = write_text(lane), tenant, key, rank, now, limit
    (count,) = transaction.one("count_in_group", asked) or (0,)
    return Group(lane, tenant, key, rank, count)


def _group(thread: ThreadRow) -> tuple[str, str, str, int]:
    if thread.info is None:
        raise Damaged
    return *place_of(thread.info), -thread.info.priority


def _due_order(thread: ThreadRow) -> tuple[int, ThreadKey]:
    due_at = thread.info.due_at if thread.info else None
    return due_at or 0, thread.key


def claim(
    transaction: Transaction,
    worker: str,
    lanes: Sequence[str],
    now: int,
    limit: int,
    rotation: Rotation,
) -> list[ThreadInfo]:
    rooms = _rooms(transaction, now)
    found = shared(transaction, lanes, now, limit, rotation, rooms)
    lines = [_put(transaction, thread, worker=worker) for thread in found]
    for meter in charged(rooms.meters if rooms else (), Counter(map(place_of, lines))):
        if meter.limit_key:
            transaction.run("put_key_meter", key_meter_row(meter))
        else:
            transaction.run("put_limit", meter_row(meter))
    return lines


def limits(transaction: Transaction) -> list[Meter]:
    with transaction.reading("limits"):
        return [meter_of(checked(row)) for row in transaction.all("limits", ())]


def _rooms(transaction: Transaction, now: int) -> Rooms | None:
    """The room limits leave, with a limit key value's meter when it is needed."""
    meters = [meter.at(now) for meter in limits(transaction)]
    by_key = {meter.scope: meter.limit for meter in meters if meter.limit.key and meter.limit.rate}
    if by_key:
        transaction.run("drop_key_meters", (now,))

    def value(scope: Scope) -> Meter | None:
        with transaction.reading("key_meters"):
            place = write_text(scope.graph), scope.tenant, scope.key
            row = transaction.one("key_meter", (*place, now))
            found = None if row is None else key_meter_of(checked(row), by_key)
            if found is not None and found.scope != scope:
                raise Damaged
        return found and found.at(now)

    return Rooms(meters, _running(transaction), value) if meters else None


def set_limit(transaction: Transaction, limit: Limit) -> None:
    scope = Meter(limit).scope
    known = next((one for one in limits(transaction) if one.scope == scope), Meter(limit))
    if limit.is_empty:
        transaction.run("drop_limit", (write_text(limit.graph), limit.tenant, limit.key))
    else:
        transaction.run("put_limit", meter_row(msgspec.structs.replace(known, limit=limit)))
    if limit.key:
        values = f"{limit.key}=", f"{limit.key}>"
        extended = limit.microseconds, write_text(limit.graph), limit.tenant, *values
        transaction.run("extend_key_meters", extended)


def _running(transaction: Transaction) -> dict[ClaimPlace, int]:
    rows = transaction.all("count_running", ())
    return {(read_text(lane), tenant, key): count for lane, tenant, key, count in rows}


def claimed(transaction: Transaction, worker: str) -> list[ThreadRow]:
    return _rows(transaction, "claimed_threads", (write_text(worker),))


def give_back(transaction: Transaction, worker: str, key: ThreadKey, due_at: int) -> bool:
    thread = transaction.thread(key)
    if thread is None or thread.info is None or not worker or thread.info.worker != worker:
        return False
    _put(transaction, thread, worker="", due_at=due_at)
    return True


def take_from(transaction: Transaction, worker: str, due_at: int) -> int:
    found = claimed(transaction, worker)
    for thread in found:
        _put(transaction, thread, worker="", due_at=due_at)
    return len(found)


def gone(transaction: Transaction, least: tuple[int, int | None]) -> list[str]:
    """Workers with a thread that were silent for too long: by now and a limit, or their own.

    Each worker is looked up once, however many threads it has.
    """
    return [
        read_text(name)
        for name in _claimants(transaction)
        if transaction.one("is_known", (name, *least)) is None
    ]


def _claimants(transaction: Transaction) -> Iterator[Any]:
    row = transaction.one("next_claimant", ("",))
    while row is not None:
        yield row[0]
        row = transaction.one("next_claimant", row)


def overdue(transaction: Transaction, least: int) -> list[str]:
    found: list[str] = []
    row = transaction.one("next_lane", ("",))
    while row is not None:
        first = transaction.one("first_due", row)
        if first is not None and first[0] < least:
            found.append(read_text(row[0]))
        row = transaction.one("next_lane", row)
    return found


def workers(transaction: Transaction, now: int) -> list[WorkerInfo]:
    found: list[WorkerInfo] = []
    with transaction.reading("workers"):
        for row in transaction.all("workers", ()):
            values = checked(row[:-1])
            (running,) = transaction.one("count_claimed", values[:1]) or (0,)
            found.append(worker_of(values, now, running, row[-1]))
    return found


def due_in(transaction: Transaction, lanes: Sequence[str], now: int) -> float | None:
    rows = [transaction.one("first_due", (write_text(lane),)) for lane in lanes if lane]
    first = min((row[0] for row in rows if row is not None), default=None)
    return None if first is None else (first - now) / _SECOND


def depths(transaction: Transaction, now: int) -> list[LaneDepth]:
    return [
        LaneDepth(
            lane=read_text(lane),
            tenant=tenant,
            due=due,
            later=later,
            running=running,
            oldest=0.0 if first is None else (now - first) / _SECOND,
        )
        for lane, tenant, due, later, running, first in transaction.all("depths", (now, now, now))
    ]


def _rows(transaction: Transaction, name: str, values: Row) -> list[ThreadRow]:
    with transaction.reading("threads"):
        return [thread_of(checked(row)) for row in transaction.all(name, values)]


def _put(transaction: Transaction, thread: ThreadRow, **changes: Any) -> ThreadInfo:
    if thread.info is None:
        raise Damaged
    line = msgspec.structs.replace(thread.info, **changes)
    put_thread(transaction, msgspec.structs.replace(thread, info=line))
    return line
