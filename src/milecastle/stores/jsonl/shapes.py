"""What stands in a line, as JSON has it. Strict: an unknown field or a wrong type is an error.

One line is one commit, so a batch is there whole or not at all::

    {"seq": 7, "created_at": "2026-11-15T01:26:19.123456Z", "checkpoint": {...}}

and, when a commit holds more, ``also`` (further checkpoints), ``results``, ``runs``,
``failures``, ``manifests``; one without a checkpoint has ``head`` in place of ``seq``.
``runs_at`` is the offset of the nearest line before that has ``runs``, so that a thread's runs
are found from its end. The first line is the header: it says whose file this is.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from milecastle.model.checkpoint import SNAPSHOT, Entry, Kind, Source, TaskResult
from milecastle.model.failure import Failure, FailureClass
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode, RunRecord, RunStatus
from milecastle.stores.jsonl.payloads import render, restore
from milecastle.stores.jsonl.times import Moment, to_microseconds, to_moment

__all__ = [
    "FORMAT",
    "CheckpointShape",
    "CommitShape",
    "FailureShape",
    "HeaderShape",
    "RecordShape",
    "ResultShape",
    "RunShape",
    "checkpoint_of",
    "encode",
    "entry_of",
    "manifest_of",
    "manifest_shape",
    "read_commit",
    "read_format",
    "read_header",
    "result_of",
]

FORMAT: Final = 1

KindWord = Literal["delta", "rollup", "snapshot"]

_KINDS: Final[tuple[KindWord, ...]] = ("delta", "rollup", "snapshot")
_NUMBERS: Final[dict[KindWord, Kind]] = {"delta": 0, "rollup": 1, "snapshot": 2}


class _Shape(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The base: strict on reading, short on writing."""


class HeaderShape(_Shape):
    """The first line. ``log`` tells a thread from one of the same name that was deleted.

    ``first_seq`` is where the log begins now; ``generation`` goes up and ``deleted_at`` is set
    when the thread is deleted.
    """

    format: int
    tenant: str
    thread: str
    log: str
    first_seq: int = 1
    generation: int = 1
    deleted_at: Moment | None = None


class CheckpointShape(_Shape):
    """An entry but for its seq and time. One of the last three is there."""

    id: str
    parent_id: str | None
    step: int
    source: Source
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    run_id: str
    fingerprint: str
    kind: KindWord
    base_seq: int
    roll_seq: int
    route: tuple[str, ...] = ()
    note: str = ""
    state: Raw | UnsetType = UNSET
    updates: Raw | UnsetType = UNSET
    payload: str | UnsetType = UNSET


class RecordShape(_Shape):
    """An entry."""

    seq: int
    created_at: Moment
    checkpoint: CheckpointShape

    @classmethod
    def of(cls, entry: Entry) -> RecordShape:
        """The shape of an entry."""
        return cls(entry.seq, to_moment(entry.created_at), checkpoint_of(entry))


class ResultShape(_Shape):
    """The result of a task."""

    seq: int
    task: str
    updates: Raw | UnsetType = UNSET
    payload: str | UnsetType = UNSET

    @classmethod
    def of(cls, result: TaskResult) -> ResultShape:
        """The shape of a result."""
        _, updates, payload = render(result.payload, whole=False)
        return cls(result.seq, result.task, updates, payload)


class RunShape(_Shape):
    """The record of a run; the thread is that of the file."""

    run_id: str
    graph: str
    fingerprint: str
    mode: Mode
    status: RunStatus
    retry_count: int
    previous_run_id: str | None
    started_at: Moment
    ended_at: Moment | None
    input_digest: str = ""
    metadata: dict[str, str] = {}
    wake_at: Moment | None = None

    @classmethod
    def of(cls, run: RunRecord) -> RunShape:
        """The shape of a record."""
        return cls(
            run_id=run.run_id,
            graph=run.graph,
            fingerprint=run.fingerprint,
            mode=run.mode,
            status=run.status,
            retry_count=run.retry_count,
            previous_run_id=run.previous_run_id,
            started_at=to_moment(run.started_at),
            ended_at=None if run.ended_at is None else to_moment(run.ended_at),
            input_digest=run.input_digest,
            metadata=dict(run.metadata),
            wake_at=None if run.wake_at is None else to_moment(run.wake_at),
        )

    def record(self, key: ThreadKey) -> RunRecord:
        """The record, of a run on ``key``."""
        return RunRecord(
            run_id=self.run_id,
            key=key,
            graph=self.graph,
            fingerprint=self.fingerprint,
            mode=self.mode,
            status=self.status,
            retry_count=self.retry_count,
            previous_run_id=self.previous_run_id,
            started_at=to_microseconds(self.started_at),
            ended_at=None if self.ended_at is None else to_microseconds(self.ended_at),
            input_digest=self.input_digest,
            metadata=self.metadata,
            wake_at=None if self.wake_at is None else to_microseconds(self.wake_at),
        )


class FailureShape(_Shape):
    """The failure of a run."""

    run_id: str
    failure_class: FailureClass
    resumable: bool
    node: str | None
    error_type: str
    message: str
    traceback: tuple[str, ...]
    causes: tuple[str, ...]
    attempt: int
    time: Moment

    @classmethod
    def of(cls, failure: Failure) -> FailureShape:
        """The shape of a failure."""
        return cls(
            run_id=failure.run_id,
            failure_class=failure.failure_class,
            resumable=failure.resumable,
            node=failure.node,
            error_type=failure.error_type,
            message=failure.message,
            traceback=failure.traceback,
            causes=failure.causes,
            attempt=failure.attempt,
            time=to_moment(failure.time),
        )

    def failure(self) -> Failure:
        """The failure."""
        return Failure(
            run_id=self.run_id,
            failure_class=self.failure_class,
            resumable=self.resumable,
            node=self.node,
            error_type=self.error_type,
            message=self.message,
            traceback=self.traceback,
            causes=self.causes,
            attempt=self.attempt,
            time=to_microseconds(self.time),
        )


class CommitShape(_Shape):
    """One commit."""

    head: int | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    created_at: Moment | UnsetType = UNSET
    checkpoint: CheckpointShape | UnsetType = UNSET
    also: tuple[RecordShape, ...] = ()
    results: tuple[ResultShape, ...] = ()
    runs: tuple[RunShape, ...] = ()
    failures: tuple[FailureShape, ...] = ()
    manifests: dict[str, Raw] = {}
    runs_at: int = 0

    def records(self) -> tuple[RecordShape, ...]:
        """Its entries, in order."""
        if self.checkpoint is UNSET:
            return self.also
        if self.seq is UNSET or self.created_at is UNSET:
            raise ValueError("a checkpoint has no `seq` or no `created_at`")
        return (RecordShape(self.seq, self.created_at, self.checkpoint), *self.also)


class _Format(msgspec.Struct):
    format: int


encode: Final = msgspec.json.Encoder().encode
read_commit: Final = msgspec.json.Decoder(CommitShape).decode
read_header: Final = msgspec.json.Decoder(HeaderShape).decode
read_format: Final = msgspec.json.Decoder(_Format).decode
_read_text: Final = msgspec.json.Decoder(str).decode
_check_json: Final = msgspec.json.Decoder().decode


def checkpoint_of(entry: Entry) -> CheckpointShape:
    """The shape of an entry, but for its seq and time."""
    state, updates, payload = render(entry.payload, whole=entry.kind == SNAPSHOT)
    return CheckpointShape(  # by position: this is the hot path
        entry.id,
        entry.parent_id,
        entry.step,
        entry.source,
        entry.nodes,
        entry.next,
        entry.run_id,
        entry.fingerprint,
        _KINDS[entry.kind],
        entry.base_seq,
        entry.roll_seq,
        entry.route,
        entry.note,
        state,
        updates,
        payload,
    )


def entry_of(record: RecordShape, *, with_payload: bool = True) -> Entry:
    """The entry that a record was made of."""
    shape = record.checkpoint
    payload = restore(shape.state, shape.updates, shape.payload) if with_payload else b""
    return Entry(
        record.seq,
        shape.id,
        shape.parent_id,
        shape.step,
        shape.source,
        shape.nodes,
        shape.next,
        shape.run_id,
        shape.fingerprint,
        to_microseconds(record.created_at),
        _NUMBERS[shape.kind],
        shape.base_seq,
        shape.roll_seq,
        payload,
        shape.route,
        shape.note,
    )


def result_of(shape: ResultShape) -> TaskResult:
    """The result that a shape was made of."""
    payload = restore(UNSET, shape.updates, shape.payload)
    return TaskResult(seq=shape.seq, task=shape.task, payload=payload)


def manifest_shape(manifest: bytes) -> Raw:
    """The manifest as it stands in a line: itself if it is a JSON object, else base64."""
    try:
        if manifest[:1] == b"{" and manifest[-1:] == b"}" and b"\n" not in manifest:
            _check_json(manifest)
            return Raw(manifest)
    except (ValueError, RecursionError):
        pass  # not JSON
    return Raw(encode(b2a_base64(manifest, newline=False).decode()))


def manifest_of(raw: Raw) -> bytes:
    """The manifest that stands in a line."""
    data = bytes(raw)
    return data if data[:1] == b"{" else a2b_base64(_read_text(data), strict_mode=True)
