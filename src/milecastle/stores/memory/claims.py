"""Claims in memory.

Only lines with a lane and a time or a worker are looked at. The caller holds the lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec.structs

from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.ports.claims import lost_at, require_worker
from milecastle.ports.fairness import Group, Rotation, Scan, divide, sizes
from milecastle.ports.limits import Limit, Meter, Rooms, Scope, charged, place_of
from milecastle.ports.workers import LaneDepth, WorkerInfo

_SECOND = 1_000_000

_Due = tuple[int, ThreadKey]


class Claims:
    """The workers, and the lines that concern them.

    ``now`` is the clock; ``write`` puts a line a claim changed into the index.
    """

    def __init__(self, now: Callable[[], int], write: Callable[[ThreadInfo], None]) -> None:
        self.now = now
        self._write = write
        self._lines: dict[ThreadKey, ThreadInfo] = {}
        self._workers: dict[str, tuple[int, WorkerInfo]] = {}
        self.rotation = Rotation()
        self._meters: dict[Scope, Meter] = {}

    def note(self, key: ThreadKey, line: ThreadInfo | None) -> None:
        if line is not None and (line.worker or (line.lane and line.due_at is not None)):
            self._lines[key] = line
        elif key in self._lines:
            del self._lines[key]

    def wake(self, line: ThreadInfo) -> None:
        self.note(line.key, line)
        self._write(line)

    def beat(self, worker: WorkerInfo) -> None:
        require_worker(worker.id)
        self._workers[worker.id] = self.now(), worker

    def workers(self) -> list[WorkerInfo]:
        now = self.now()
        return [
            msgspec.structs.replace(
                worker, running=len(self.claimed(id)), silent=(now - beaten) / _SECOND
            )
            for id, (beaten, worker) in sorted(self._workers.items())
        ]

    def claim(self, worker: str, lanes: Sequence[str], limit: int) -> list[ThreadInfo]:
        require_worker(worker)
        now, limit = self.now(), max(0, limit)
        meters = self._live_meters(now)
        claimed = (place_of(line) for line in self._lines.values() if line.worker)
        rooms = Rooms(meters, Counter(claimed) if meters else None)
        found = sorted((due_at, key) for key, due_at in self._waiting(lanes) if due_at <= now)
        if meters or len(found) > limit:
            found = self._shared(lanes, limit, found, rooms)
        lines = [self._put(key, worker=worker) for _, key in found]
        for meter in charged(meters, Counter(map(place_of, lines))):
            self._meters[meter.scope] = meter
        return lines

    def limits(self) -> list[Limit]:
        return [meter.limit for _, meter in sorted(self._meters.items()) if not meter.limit_key]

    def set_limit(self, limit: Limit) -> None:
        scope = Meter(limit).scope
        known = {found: meter for found, meter in self._meters.items() if found.of_any == scope}
        for found in known:
            del self._meters[found]
        if not limit.is_empty:
            for found, meter in {scope: Meter(limit), **known}.items():
                self._meters[found] = msgspec.structs.replace(meter, limit=limit)

    def _live_meters(self, now: int) -> list[Meter]:
        over = [found for found, one in self._meters.items() if one.limit_key and one.until <= now]
        for found in over:
            del self._meters[found]
        return [meter.at(now) for meter in self._meters.values()]

    def _shared(
        self, lanes: Sequence[str], limit: int, due: Sequence[_Due], rooms: Rooms
    ) -> list[_Due]:
        queues: dict[tuple[str, str, str, int], list[_Due]] = {}
        for each in due:
            line = self._lines[each[1]]
            if rooms.is_open(place_of(line)):
                queues.setdefault((*place_of(line), -line.priority), []).append(each)
        groups = [Group(*queue, len(own)) for queue, own in sorted(queues.items())]
        scans = {
            lane: self.rotation.with_keys(
                lane,
                Scan(
                    [group for group in groups if group.lane == lane and group[1:3] > after]
                    + [group for group in groups if group.lane == lane and group[1:3] <= after]
                ),
                (),
            )
            for lane, after in self.rotation.lanes(lanes)
        }
        taken = divide(limit, [group for scan in scans.values() for group in scan.groups], rooms)
        self.rotation.note(scans, limit, sizes(taken))
        return sorted(due for group in taken for due in queues[group[:4]][: group.size])

    def give_back(self, key: ThreadKey, due_at: int) -> None:
        self._put(key, worker="", due_at=due_at)

    def retire(self, worker: str) -> int:
        self._workers.pop(worker, None)
        return self._take_from({worker}, self.now())

    def reclaim(self, timeout: float | None) -> int:
        now = self.now()
        for id, (beaten, worker) in list(self._workers.items()):
            limit = worker.silent_after if timeout is None else timeout
            if beaten < now - round(limit * _SECOND):
                del self._workers[id]
        named = {line.worker for line in self._lines.values() if line.worker}
        return self._take_from(named - self._workers.keys(), lost_at(self.now()))

    def claimed(self, worker: str) -> list[ThreadKey]:
        return sorted(key for key, line in self._lines.items() if worker and line.worker == worker)

    def due_in(self, lanes: Sequence[str]) -> float | None:
        first = min((due_at for _, due_at in self._waiting(lanes)), default=None)
        return None if first is None else (first - self.now()) / _SECOND

    def overdue(self, age: float) -> list[str]:
        least = self.now() - round(age * _SECOND)
        lanes = {line.lane for line in self._lines.values()}
        waiting = {lane: [due_at for _, due_at in self._waiting([lane])] for lane in lanes}
        return sorted(lane for lane, times in waiting.items() if min(times, default=least) < least)

    def depths(self) -> list[LaneDepth]:
        now = self.now()
        places: dict[tuple[str, str], list[ThreadInfo]] = {}
        for key, line in self._lines.items():
            if line.lane:
                places.setdefault((line.lane, key.tenant), []).append(line)
        return [_depth(*place, lines, now) for place, lines in sorted(places.items())]

    def _waiting(self, lanes: Sequence[str]) -> Iterator[tuple[ThreadKey, int]]:
        for key, line in self._lines.items():
            if line.lane in lanes and line.lane and not line.worker and line.due_at is not None:
                yield key, line.due_at

    def _take_from(self, workers: set[str], due_at: int) -> int:
        keys = [key for key, line in self._lines.items() if line.worker in workers - {""}]
        for key in keys:
            self.give_back(key, due_at)
        return len(keys)

    def _put(self, key: ThreadKey, **changes: Any) -> ThreadInfo:
        line = msgspec.structs.replace(self._lines[key], **changes)
        self._write(line)
        self.note(key, line)
        return line


def _depth(lane: str, tenant: str, lines: Sequence[ThreadInfo], now: int) -> LaneDepth:
    running = sum(bool(line.worker) for line in lines)
    ages = [now - line.due_at for line in lines if not line.worker and line.due_at is not None]
    due = [age for age in ages if age >= 0]
    return LaneDepth(
        lane=lane,
        tenant=tenant,
        due=len(due),
        later=len(ages) - len(due),
        running=running,
        oldest=max(due, default=0) / _SECOND,
    )
