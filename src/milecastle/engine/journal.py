"""The journal: turns a run's progress into batches for the store.

Rules:

- An entry stores the step's updates. Reading stays cheap because the journal cuts the chain:
  a *rollup* repeats the combined effect of many deltas in one row, and a *snapshot* is written
  when reading the chain would cost more than twice the state itself.
- Whether it does is measured, not guessed: whenever the chain has doubled since the last look,
  the state is encoded and compared. So the looks cost no more than the writing did.
- The first entry of a run carries its record; a transition carries the new one. With either goes
  the thread's new index row; an ordinary step carries neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import is_
from typing import Any, Protocol

import msgspec.structs

from milecastle.codec.deltas import LogCodec, Operations, as_operations
from milecastle.codec.envelope import PayloadPlace
from milecastle.engine.assignment import Assignment
from milecastle.engine.failure_records import describe_superseded, with_cause
from milecastle.engine.position import Position
from milecastle.engine.reserved_channels import BEGAN, CONFIG, TIMES
from milecastle.engine.rollup_rule import ChainEnd
from milecastle.engine.status import NOTHING, Waits, thread_info, waits_at
from milecastle.model.checkpoint import DELTA, HOLDING, Entry, Kind, Source, TaskResult
from milecastle.model.children import PARENT, has_ended, owed
from milecastle.model.notices import Notice, event_of, with_notices
from milecastle.model.reducers import SET
from milecastle.model.run import CARRIED, TRANSITIONS, Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.clock import Clock
from milecastle.ports.store import Batch

Encoded = tuple[Operations, bytes]
"""Operations, and the body that they were encoded as."""

_BRANCHES: frozenset[Source] = frozenset({"update", "fork"})
"""Sources of entries that are not written by a run, but change the status of a thread."""


class Standing(Protocol):
    @property
    def values(self) -> dict[str, Any]: ...

    @property
    def step(self) -> int: ...

    @property
    def nodes(self) -> tuple[str, ...]: ...

    @property
    def next(self) -> tuple[str, ...]: ...

    @property
    def route(self) -> tuple[str, ...]: ...

    @property
    def reserved(self) -> dict[str, Any]: ...


class Journal:
    """Writes for one run on one thread. It expects the head where it left it.

    ``head`` and ``head_id`` are the newest entry, as far as this run knows.
    ``known`` says this run has written an entry, which fences out all others. ``input`` is
    the number of its waiting input, which its first entry consumes.
    ``encoded`` is the run's input, to be used if its first entry contains just that.
    ``tags`` are those its thread gets with the first; ``unless`` is the digest its batch
    has as ``Batch.unless``. ``inboxes`` are topics whose messages start another run,
    ``notifies`` the events of its hooks. ``config`` is the run's, which snapshots repeat; so are
    ``times``, those of the newest step that has them.
    """

    def __init__(
        self,
        *,
        record: RunRecord,
        codec: LogCodec,
        clock: Clock,
        position: Position,
        head: int,
        head_id: str | None = None,
        rollup_after: int | None = None,
        manifest: bytes | None = None,
        announced: bool = True,
        assignment: Assignment | None = None,
    ) -> None:
        """``head`` is the thread's newest seq when ``position`` was read.

        ``head_id`` is its id, needed if ``position`` is an older checkpoint.
        ``announced=False`` writes no record: the entry belongs to an ended run.
        ``assignment`` is for threads workers run.
        """
        self.record = record
        self.key = record.key
        self.codec = codec
        self._clock = clock
        self._rollup_after = rollup_after
        self._manifest = None if manifest is None else (record.fingerprint, manifest)
        self._unwritten: tuple[RunRecord, ...] = (record,) if announced else ()
        self._failure: Failure | None = None
        self.head = head
        self.known = False
        self.settled = position.settled
        self.settled_id = position.settled_id
        entry = position.entry
        self._newest = entry
        self._waits = NOTHING
        self._parent_id = entry.id if entry else None
        self._continues = entry is not None and entry.seq == head
        self.head_id = self._parent_id if self._continues else head_id
        self._chain = ChainEnd.of(
            entry.base_seq if entry else 0,
            entry.roll_seq if entry else 0,
            position.tail,
            position.chain_bytes,
            position.snapshot_bytes,
        )
        self._pending: Operations = list(position.supplied)
        self.config = position.config
        self.times: bytes | None = None
        self.encoded: Encoded | None = None
        self.assignment = assignment
        self._retry_at: int | None = None
        self.input: int | None = None
        self.tags: TagChange | None = None
        self.unless: str | None = None
        self.inboxes: Collection[str] = ()
        self.notifies: Collection[str] = ()

    def note(self, operations: Operations) -> None:
        self._pending = self._pending + operations if self._pending else operations

    def configure(self, config: Any) -> None:
        self.config = config
        self.note([SET, CONFIG, config])

    def time(self, times: bytes | None) -> None:
        if times is not None:
            self.times = times
            self.note([SET, TIMES, times])

    def carry(self, stored: Mapping[str, str]) -> None:
        if not stored or self.record not in self._unwritten:
            return
        metadata = self.record.metadata | {CARRIED + name: stored[name] for name in stored}
        old, self.record = self.record, msgspec.structs.replace(self.record, metadata=metadata)
        self._unwritten = tuple(self.record if run is old else run for run in self._unwritten)

    def restart(self) -> None:
        self._continues = False

    def supersede(self, previous: RunRecord, nodes: tuple[str, ...], attempt: int) -> None:
        """Close the superseded run's record with the next entry.

        It was in this attempt at these nodes, according to the log.
        """
        now = self._clock.now()
        node = nodes[0] if len(nodes) == 1 else None
        ended = msgspec.structs.replace(previous, status="superseded", ended_at=now)
        self._unwritten = (ended, *self._unwritten)
        self._failure = describe_superseded(previous.run_id, node=node, time=now, attempt=attempt)
        if previous.run_id == self.record.run_id:  # an entry is added to what is over now
            self.record = msgspec.structs.replace(self.record, status="superseded", ended_at=now)

    def turn(self, status: RunStatus, wake_at: int | None = None) -> None:
        old = self.record.status
        if status != old and status not in TRANSITIONS[old]:
            raise RuntimeError(f"a run cannot go from {old} to {status}")
        ended_at = None if TRANSITIONS[status] else self._clock.now()
        self.record = msgspec.structs.replace(
            self.record, status=status, ended_at=ended_at, wake_at=wake_at
        )
        if status == "queued":
            self.record = msgspec.structs.replace(self.record, owner=None)
        unwritten = {run.run_id: run for run in self._unwritten} if self._unwritten else {}
        unwritten.pop(self.record.run_id, None)
        self._unwritten = (*unwritten.values(), self.record)

    def fail(self, error: BaseException, failure: Failure | None) -> None:
        """End the run with this error, with the next entry; a worker may retry it."""
        self.record = with_cause(self.record, failure)
        self.turn("failed")
        if self.assignment is not None:
            self._retry_at = self.assignment.retry_at(error, self.record, self._clock.now())

    def before_commit(self) -> dict[str, Any]:
        return {**vars(self), "_chain": self._chain.copy()}

    def rewind(self, before: Mapping[str, Any]) -> None:
        vars(self).update(before)

    def append(
        self,
        at: Standing,
        source: Source,
        note: str = "",
        status: RunStatus | None = None,
        wake_at: int | None = None,
    ) -> Batch:
        """The batch appending one entry with everything noted since the last one.

        The run's status turns to ``status`` with it; if the state cannot be stored, it stays.
        """
        holds = source in HOLDING
        values = {**at.values, **at.reserved} if at.reserved else at.values
        kind, body = self._body(values, at.nodes, not holds)
        if status is not None:
            self.turn(status, wake_at)
        head = self.head
        self.head = seq = head + 1
        self.known = True
        rolled = self._chain.roll_seq
        if kind != DELTA:
            self._chain.cut(seq, kind, body)
        entry = self._entry(at, source, note, kind, body, rolled)
        if not holds and not (at.reserved and BEGAN in at.reserved):
            self.settled, self.settled_id = seq, entry.id
        waits = waits_at(at.reserved) if at.reserved else NOTHING
        if self._unwritten or waits is not self._waits or source in _BRANCHES:
            batch = self._transition(head, entry, waits)
        else:
            batch = Batch(key=self.key, head=head, head_id=self.head_id, entries=(entry,))
        self._newest = entry
        self._parent_id = self.head_id = entry.id
        return batch

    def _transition(self, head: int, entry: Entry, waits: Waits) -> Batch:
        batch = Batch(
            key=self.key,
            head=head,
            head_id=self.head_id,
            entries=(entry,),
            runs=self._unwritten,
            failure=self._failure,
            manifest=self._manifest,
            thread=self._line(entry, waits),
            consumes=() if self.input is None else (self.input,),
            tags=self.tags,
            unless=self.unless,
        )
        self._waits = waits
        self._unwritten = ()
        self._failure = self._manifest = self.input = self.tags = self.unless = None
        return batch

    def _line(self, entry: Entry, waits: Waits) -> ThreadInfo:
        info = thread_info(entry, self.record, waits, self.inboxes)
        info = self.assignment.line(info, self._retry_at) if self.assignment else info
        if not self._unwritten:
            return info
        is_owed = PARENT in self.record.metadata and has_ended(info)
        if self.notifies and (event := event_of(info)) and event in self.notifies:
            notice = Notice(event, self.record.run_id, entry.seq)
            info = with_notices(info, self.record, [notice])
        return owed(info, self.record) if is_owed else info

    def mark(self, at: Standing) -> Batch:
        self._pending = []
        return self.append(at, "takeover")

    def _entry(
        self, at: Standing, source: Source, note: str, kind: Kind, body: bytes, rolled: int
    ) -> Entry:
        """The entry at the head. By position: sixteen keywords would cost as much as encoding.

        ``rolled`` is the newest rollup or snapshot before it.
        """
        record, clock, seq, chain = self.record, self._clock, self.head, self._chain
        return Entry(
            seq,
            clock.new_id(),
            self._parent_id,
            at.step,
            source,
            at.nodes,
            at.next,
            record.run_id,
            record.fingerprint,
            clock.now(),
            kind,
            chain.base_seq,
            chain.roll_seq,
            self.codec.seal(body, PayloadPlace(seq, kind, chain.base_seq, rolled, self._parent_id)),
            at.route,
            note,
        )

    @property
    def encrypts(self) -> bool:
        return self.codec.encrypts

    def result(self, row: str, update: Mapping[str, Any], node: str) -> TaskResult:
        """A task's result, stored under this name until its step is committed."""
        body = self.codec.encode_state(update, node=node)
        payload = self.codec.seal(body, PayloadPlace(self.head, task=row))
        return TaskResult(seq=self.head, task=row, payload=payload)

    def kept(self, row: str, value: Any, node: str) -> TaskResult:
        return self.result(row, {"value": value}, node)

    def results(self, results: tuple[TaskResult, ...]) -> Batch:
        return msgspec.structs.replace(self.close(), results=results)

    def rows(self, results: tuple[TaskResult, ...]) -> Batch:
        return Batch(key=self.key, head=self.head, head_id=self.head_id, results=results)

    def close(self, failure: Failure | None = None) -> Batch:
        thread = None
        if self._unwritten and self.known and self._newest is not None:
            thread = self._line(self._newest, self._waits)
        batch = Batch(
            key=self.key,
            head=self.head,
            head_id=self.head_id,
            runs=self._unwritten,
            failure=failure,
            manifest=self._manifest,
            thread=thread,
        )
        self._unwritten = ()
        self._manifest = None
        return batch

    def _body(
        self, values: Mapping[str, Any], nodes: tuple[str, ...], may_cut: bool
    ) -> tuple[Kind, bytes]:
        """The next entry's contents, in the form cheapest to read.

        Entries leaving the thread in its step never cut the chain: a reader must see the entry
        that started the step.
        """
        node = nodes[0] if len(nodes) == 1 else None
        operations, self._pending = self._pending, []
        continues, self._continues = self._continues, True

        def whole() -> bytes:
            state = values if self.config is None else {CONFIG: self.config, **values}
            state = state if self.times is None else {**state, TIMES: self.times}
            return self._encode(as_operations(state), node)

        return self._chain.choose(
            self._encode(operations, node) if continues else None,
            whole,
            self.codec.roll_up,
            rollup_after=self._rollup_after,
            may_cut=may_cut,
        )

    def _encode(self, operations: Operations, node: str | None) -> bytes:
        encoded, self.encoded = self.encoded, None
        if encoded is not None:
            given, body = encoded
            is_same = given[::3] == operations[::3] and given[1::3] == operations[1::3]
            if is_same and all(map(is_, given[2::3], operations[2::3])):
                return body
        return self.codec.encode(operations, node=node)
