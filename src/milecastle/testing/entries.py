"""Entries, batches, records and failures to fill a store with.

``Writer`` writes a thread as the engine does, with deltas, rollups and snapshots that point at each
other, and remembers the expected answers. Its states are bytes to which each entry adds a piece, so
the payloads of a right chain, joined, are the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec.structs

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Kind, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.ports.store import Batch, Store

FINGERPRINT = "3f" * 16

HARD_IDS = (
    "a",
    "A",
    "a ",
    " a",
    "a.",
    ".a",
    "ab",
    "a/b",
    "a\\b",
    "a_b",
    "a:b",
    "a%b",
    "a%2Fb",
    "a*b",
    "a?b",
    "a\nb",
    "a\tb",
    "a\x01b",
    "a'b",
    "a''b",
    'a"b',
    "a;--",
    "..",
    "../a",
    "/",
    "\\",
    "%",
    "_",
    "'",
    '"',
    "\n",
    " ",
    "CON",
    "con",
    "nul.jsonl",
    "null",
    "None",
    "0",
    "00",
    "caf\u00e9",
    "cafe\u0301",
    "STRASSE",
    "stra\u00dfe",
    "\u0130",
    "i",
    "a\u200bb",
    "a\u2028b",
    "\ufeffa",
    "\uffff",
    "\U0001f3f0",
    "x" * 255,
    "x" * 256,
    "x" * 511,
    "x" * 511 + "y",
    "\U0001f3f0" * 128,
)
"""Ids that differ, and that disks, databases and escapes like to take for one another."""


def make_id(number: int) -> str:
    """An id like those of checkpoints and runs; a greater number is a greater id."""
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def a_key(thread: str = "thread", tenant: str = "tenant") -> ThreadKey:
    return ThreadKey(tenant, thread)


def a_run(key: ThreadKey, number: int = 1, **changes: Any) -> RunRecord:
    record = RunRecord(
        run_id=make_id(number),
        key=key,
        graph="graph",
        fingerprint=FINGERPRINT,
        mode="incremental",
        status="running",
        retry_count=0,
        previous_run_id=None,
        started_at=number,
    )
    return msgspec.structs.replace(record, **changes)


def a_failure(run_id: str, **changes: Any) -> Failure:
    failure = Failure(
        run_id=run_id,
        failure_class="execution",
        resumable=True,
        error_type="ValueError",
        message="it did not fit",
        traceback=("graph.py:3 in research",),
        causes=(),
        attempt=1,
        time=7,
    )
    return msgspec.structs.replace(failure, **changes)


def a_result(seq: int, task: str = "task", payload: bytes = b"result") -> TaskResult:
    return TaskResult(seq=seq, task=task, payload=payload)


def an_entry(seq: int, **changes: Any) -> Entry:
    entry = Entry(
        seq=seq,
        id=make_id(seq),
        parent_id=make_id(seq - 1) if seq > 1 else None,
        step=seq,
        source="step",
        nodes=("research",),
        next=("publish",),
        run_id=make_id(1),
        fingerprint=FINGERPRINT,
        created_at=1_700_000_000_000_000 + seq,
        kind=SNAPSHOT,
        base_seq=seq,
        roll_seq=seq,
        payload=b"%d;" % seq,
    )
    return msgspec.structs.replace(entry, **changes)


def chain_of(entries: Mapping[int, Entry], seq: int) -> tuple[Entry, ...]:
    """The expected chain for ``seq``, found by walking back through a log."""
    entry = entries[seq]
    found: list[Entry] = []
    for number in range(seq, 0, -1):
        each = entries[number]
        if number > entry.roll_seq or each.kind != DELTA:
            found.append(each)
        if each.kind == SNAPSHOT:
            break
    return tuple(reversed(found))


def state_of(entries: Sequence[Entry]) -> bytes:
    return b"".join(entry.payload for entry in entries)


class Writer:
    """Writes one thread with the pointers it knows, and remembers its entries.

    ``entries`` must be the log's, ``states`` has the state at every seq, also at those that were
    pruned. ``number`` distinguishes the entries of several writers.
    """

    def __init__(self, key: ThreadKey | None = None, number: int = 1) -> None:
        self.key = key or a_key()
        self.run = a_run(self.key, number)
        self.head = 0
        self.entries: dict[int, Entry] = {}
        self.states: dict[int, bytes] = {0: b""}
        self._base_seq = 0
        self._roll_seq = 0
        self._tail = b""

    def plan(self, kind: Kind = DELTA, *, at: int | None = None, **changes: Any) -> Entry:
        """The next entry; branching off ``at`` it is a snapshot, as is the first."""
        seq = self.head + 1
        parent = self.head if at is None else at
        if parent == 0 or parent != self.head:
            kind = SNAPSHOT
        piece = b"%d.%d;" % (self.run.started_at, seq)
        entry = Entry(
            seq=seq,
            id=make_id(self.run.started_at * 1_000_000 + seq),
            parent_id=self.entries[parent].id if parent else None,
            step=seq,
            source="step",
            nodes=("research",),
            next=("publish",),
            run_id=self.run.run_id,
            fingerprint=FINGERPRINT,
            created_at=1_700_000_000_000_000 + seq,
            kind=kind,
            base_seq=seq if kind == SNAPSHOT else self._base_seq,
            roll_seq=self._roll_seq if kind == DELTA else seq,
            payload=self._payload(kind, parent, piece),
        )
        return msgspec.structs.replace(entry, **changes)

    def batch(self, *entries: Entry, **parts: Any) -> Batch:
        """A batch with these entries, on top of the head this writer knows.

        With run records it sets the thread's index row: the last record's.
        """
        if parts.get("runs"):
            parts.setdefault("thread", ThreadInfo.of(parts["runs"][-1]))
        head = self.entries.get(self.head)
        head_id = head.id if head else None
        return Batch(key=self.key, head=self.head, head_id=head_id, entries=entries, **parts)

    def append(self, store: Store, kind: Kind = DELTA, **parts: Any) -> Entry:
        """Commit the next entry. ``parts`` belong to a batch, or are entry fields."""
        given = {name: parts.pop(name) for name in _PARTS if name in parts}
        entry = self.plan(kind, **parts)
        store.commit(self.batch(entry, **given))
        self.keep(entry)
        return entry

    def begin(self, store: Store, entries: int = 1) -> Writer:
        """Commit a run with its first entries: a snapshot and then deltas."""
        self.append(store, source="input", runs=(self.run,))
        return self.write(store, (DELTA,) * (entries - 1))

    def write(self, store: Store, kinds: Sequence[Kind]) -> Writer:
        for kind in kinds:
            self.append(store, kind)
        return self

    def keep(self, entry: Entry) -> None:
        piece = b"%d.%d;" % (self.run.started_at, entry.seq)
        before = self.states[self.head]
        self.head = entry.seq
        self.entries[entry.seq] = entry
        self.states[entry.seq] = entry.payload if entry.kind == SNAPSHOT else before + piece
        self._tail = self._tail + piece if entry.kind == DELTA else b""
        self._base_seq, self._roll_seq = entry.base_seq, entry.roll_seq

    def prune(self, store: Store, cut: int) -> int:
        """Prune the thread at ``cut``; this writer continues with its pointers."""
        rewritten = self.rewrite(cut)
        dropped = store.prune(self.key, head=self.head, cut=cut, rewritten=rewritten)
        self.entries.update((entry.seq, entry) for entry in rewritten)
        self.entries = {seq: entry for seq, entry in self.entries.items() if seq >= cut}
        return dropped

    def rewrite(self, cut: int) -> list[Entry]:
        """Snapshots for pruning at ``cut``: there, and where a rollup reaches below."""
        found = [self._as_snapshot(cut)] if self.entries[cut].kind != SNAPSHOT else []
        later = (seq for seq in range(cut + 1, self.head + 1) if self.entries[seq].kind != DELTA)
        rolled = next(later, None)
        if rolled is not None and self.entries[rolled].kind == ROLLUP:
            reaches_below = self.entries[rolled - 1].roll_seq < cut
            found += [self._as_snapshot(rolled)] if reaches_below else []
        return found

    def _as_snapshot(self, seq: int) -> Entry:
        return msgspec.structs.replace(
            self.entries[seq], kind=SNAPSHOT, base_seq=seq, roll_seq=seq, payload=self.states[seq]
        )

    def _payload(self, kind: Kind, parent: int, piece: bytes) -> bytes:
        if kind == SNAPSHOT:
            return self.states[parent] + piece
        return self._tail + piece if kind == ROLLUP else piece


_PARTS = (
    *("results", "runs", "failure", "manifest", "thread", "tags", "unless"),
    *("consumes", "memory"),
)
