"""Data for a thread's page: one checkpoint, its parent, and a page of the history.

The amount read does not grow with the thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from milecastle.app.encryption.keyring import Keyring
from milecastle.app.threads.reading import running_now
from milecastle.codec.envelope import names_archive
from milecastle.errors import CodecError
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.model.step_times import StepTimes
from milecastle.ports.store import Store
from milecastle.server.pages.timeline import Interval, Visits, intervals, visits
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.service import Service
from milecastle.views.decoding import Decoded, changed_channels
from milecastle.views.step_times import read_times
from milecastle.views.timeline import TimelineData

AROUND: Final = 20
"""Checkpoints listed before and after the one that is shown."""
COUNTED: Final = 200
"""Checkpoints read before it. A thread with no more is read whole."""
_LOOKS: Final = 10


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A page's data. ``decoded`` is ``None`` if ``unreadable`` says why.

    ``next`` are the nodes to run after ``entry``, or those a worker runs now. ``entries`` are the
    history's page, oldest first; ``failure`` happened at this checkpoint. ``times`` are the drawn
    steps'. ``edited`` has the channels changed by hand, as far as they are known.
    """

    key: ThreadKey
    info: ThreadInfo
    head: Entry
    entry: Entry
    next: tuple[str, ...]
    first: int
    now: int
    decoded: Decoded | None
    unreadable: str
    entries: tuple[Entry, ...]
    runs: dict[str, RunRecord]
    failure: Failure | None
    times: Mapping[int, StepTimes]
    edited: Mapping[int, tuple[str, ...]]

    @property
    def is_head(self) -> bool:
        return self.entry.seq == self.head.seq

    @property
    def is_small(self) -> bool:
        return self.head.seq <= COUNTED

    @property
    def shown(self) -> tuple[Entry, ...]:
        return tuple(one for one in self.entries if abs(one.seq - self.entry.seq) <= AROUND)

    @property
    def drawn(self) -> tuple[Entry, ...]:
        return self.entries if self.is_small else self.shown

    def intervals(self, entries: tuple[Entry, ...]) -> list[Interval]:
        is_newest = entries[-1].seq == self.head.seq
        return intervals(entries, self.runs, self.info if is_newest else None, self.now)

    def course(self, path: Collection[int], working: Sequence[str] = ()) -> TimelineData:
        failures = {self.entry.run_id: self.failure} if self.failure is not None else {}
        return TimelineData(
            entries=self.drawn,
            runs=self.runs,
            times=self.times,
            now=self.now,
            info=self.info if self.drawn[-1].seq == self.head.seq else None,
            working=working,
            failures=failures,
            path=path,
        )

    def way(self) -> Visits:
        return visits(self.entries, self.entry.seq)

    def branch(self) -> frozenset[int]:
        """The checkpoints on the way to the chosen one, and to the newest that was read."""
        return self.way().path | visits(self.entries, self.entries[-1].seq).path


def read_thread(service: Service, key: ThreadKey, at: str | None) -> Reading:
    store = service.store
    head, info, chain = store.head(key), service.line(key), service.chain(key, at)
    for _ in range(_LOOKS):
        if at is not None or (head is not None and head.id == chain.entries[-1].id):
            break
        # it went on between the reads
        head, info, chain = store.head(key), service.line(key), service.chain(key, at)
    entry = chain.entries[-1]
    if head is None:
        raise Refused(NOT_FOUND, 404, "there is no such thread")
    decoded, unreadable = None, ""
    try:
        decoded = service.decoded(key, chain)
    except CodecError as error:
        unreadable = error.message
    newest = max(entry.seq + AROUND, min(head.seq, COUNTED))
    page = store.history(key, before=newest + 1, limit=COUNTED + AROUND)
    entries = tuple(reversed(list(page)))
    near = (
        entries
        if head.seq <= COUNTED
        else [one for one in entries if abs(one.seq - entry.seq) <= AROUND]
    )
    app = service.apps.get(info.graph)
    keyring = None if app is None else app.encryption
    found = (store.run(key, run_id) for run_id in {one.run_id for one in near[-_RUNS:]})
    return Reading(
        key=key,
        info=info,
        head=head,
        entry=entry,
        next=running_now(store, key, entry, info.status)[1],
        first=_first(service, key),
        now=time.time_ns() // 1000,
        decoded=decoded,
        unreadable=unreadable,
        entries=entries,
        runs={run.run_id: run for run in found if run is not None},
        failure=store.failure(key, entry.run_id) if is_last(entry, entries) else None,
        times=read_times(store, key, lambda: keyring, near[0].seq, near[-1].seq),
        edited=_edited(store, key, keyring, near),
    )


_RUNS: Final = 60
_EDITS: Final = 20


def _edited(
    store: Store, key: ThreadKey, keyring: Keyring | None, entries: Sequence[Entry]
) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for entry in [one for one in entries if one.source == "update"][-_EDITS:]:
        chain = store.read(key, entry.seq)
        if chain is not None:
            with suppress(CodecError):  # encrypted with a key that is not here
                found[entry.seq] = changed_channels(key, chain, lambda: keyring)
    return found


def _first(service: Service, key: ThreadKey) -> int:
    found = list(service.store.history(key, before=2, limit=1))
    oldest = found or service.store.entries(key, limit=1)
    is_archived = bool(oldest) and names_archive(oldest[0].payload)  # and cannot be read here
    return oldest[0].seq if oldest and not is_archived else 1


def is_last(entry: Entry, entries: tuple[Entry, ...]) -> bool:
    """True if its run wrote no checkpoint after it."""
    after = next((one for one in entries if one.seq > entry.seq), None)
    return after is None or after.run_id != entry.run_id
