"""A thread's course, from a page of its history: times, branches, visits.

Everything here is computed from the entries it is given, oldest first, without any state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Final, Literal

import msgspec

from milecastle.model.checkpoint import Entry
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.server.pages.excerpts import short

IntervalKind = Literal["running", "waiting", "sleeping", "stopped", "ended"]

_NAMES: Final = 4
_VISITING: Final = frozenset({"step"})
_HANDED: Final = frozenset({"input", "answer"})
_AFTER: Final[Mapping[str, IntervalKind]] = {
    "interrupt": "waiting",
    "sleep": "sleeping",
    "fork": "waiting",
    "update": "waiting",
}
_NOW: Final[Mapping[str, IntervalKind]] = {
    "queued": "waiting",
    "interrupted": "waiting",
    "sleeping": "sleeping",
    "running": "running",
    "completed": "ended",
}
"""What a thread does after a checkpoint: until the next one, and at its head."""


class Interval(msgspec.Struct, frozen=True):
    """Activity between two times, in microseconds, after the checkpoint ``seq``."""

    seq: int
    kind: IntervalKind
    start: int
    stop: int


def intervals(
    entries: Sequence[Entry], runs: Mapping[str, RunRecord], info: ThreadInfo | None, now: int
) -> list[Interval]:
    """Activity after each checkpoint; ``info`` is the index row if the last one is the head."""
    found: list[Interval] = []
    for entry, following in zip_longest(entries, entries[1:]):
        start, stop = entry.created_at, following.created_at if following else now
        kind = _kind(entry, following, info)
        run = runs.get(entry.run_id)
        last = following is None or following.run_id != entry.run_id
        ended = run.ended_at if run is not None and last and kind != "ended" else None
        if following is None and info is None:
            continue
        if ended is not None and ended <= stop:
            found += [Interval(entry.seq, kind, start, ended)] if ended > start else []
            if following is None:
                continue
            kind, start = "stopped", max(start, ended)
        found.append(Interval(entry.seq, kind, start, max(start, stop)))
    return found


def _kind(entry: Entry, following: Entry | None, info: ThreadInfo | None) -> IntervalKind:
    if following is None and info is not None:
        return _NOW.get(info.status, "running")
    if not (entry.next or entry.route):
        return "ended"
    if following is not None and following.source == "takeover" and entry.source in _HANDED:
        return "waiting"  # for a worker
    return _AFTER.get(entry.source, "running")


class HistoryBranch(msgspec.Struct, frozen=True):
    first: int
    last: int
    source: str
    parent: int | None
    depth: int


def branches(entries: Iterable[Entry]) -> list[HistoryBranch]:
    """Branches in a history. Each begins where the parent is not the preceding checkpoint."""
    found: list[HistoryBranch] = []
    seqs: dict[str, int] = {}
    places: dict[int, int] = {}
    before: Entry | None = None
    for entry in entries:
        if before is not None and entry.parent_id == before.id:
            found[-1] = msgspec.structs.replace(found[-1], last=entry.seq)
        else:
            parent = seqs.get(entry.parent_id or "")
            depth = 0 if parent is None else found[places[parent]].depth + 1
            found.append(HistoryBranch(entry.seq, entry.seq, entry.source, parent, depth))
        seqs[entry.id], places[entry.seq], before = entry.seq, len(found) - 1, entry
    return found


class Visits(msgspec.Struct, frozen=True):
    """Visits per node on the way to a checkpoint; ``path`` has the seqs of the way.

    ``is_whole`` is false if the path begins before the entries given.
    """

    counts: Mapping[str, int]
    path: frozenset[int]
    is_whole: bool


def visits(entries: Iterable[Entry], seq: int) -> Visits:
    by_id = {entry.id: entry for entry in entries}
    place = next((entry for entry in by_id.values() if entry.seq == seq), None)
    counts: Counter[str] = Counter()
    path: set[int] = set()
    missing = False
    while place is not None:
        path.add(place.seq)
        counts.update(place.nodes if place.source in _VISITING else ())
        missing = place.parent_id is not None and place.parent_id not in by_id
        place = by_id.get(place.parent_id or "")
    return Visits(dict(counts), frozenset(path), not missing)


def folded(names: Iterable[str]) -> str:
    """Node names for a cell: repeated ones once with a count, and only a few."""
    counts = Counter(names)
    shown = [
        f"{short(name)} x{count}" if count > 1 else short(name)
        for name, count in list(counts.items())[:_NAMES]
    ]
    more = len(counts) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])
