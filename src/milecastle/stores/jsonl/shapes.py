"""The JSON contents of a line. Strict: an unknown field or a wrong type is an error.

One line is one commit, so a batch is there whole or not at all::

    {"seq": 7, "created_at": "2026-11-15T01:26:19.123456Z", "checkpoint": {...}}

and, when a commit holds more, ``also`` (further checkpoints), ``results``, ``runs``,
``failures``, ``manifests``, ``thread`` (the thread's line in a thread list), ``consumes`` (numbers
of messages); one without a checkpoint has ``head`` in place of ``seq``. ``thread_at`` is the offset
of the nearest line before that has ``thread``, so it is found from the end. A message to the thread
is a line too, with ``messages``; ``consumed`` and ``last_message`` are for logs pruned or
copied. The first line is the header: ``milecastle`` is the format version, and it names the thread
of the file. Files from before the first release have ``format`` in its place, and are refused.

Times are text people read, exact to the microsecond; a time outside the calendar stays a number.

Payloads are readable JSON where that can be undone exactly. A payload is a sealed msgpack list of
operations. Most hold plain data and become ``"state": {"topic": "walls"}`` (a whole state) or
``"updates": [["append", "notes", ["x"]]]``. Whether the very same bytes come back is made sure when
writing: a few operations on text, whole numbers, and lists and dicts of them are known to, the rest
is tried. A payload that fails (a type JSON lacks, NaN, keys that are not strings, bytes that are
not a payload), or was compressed or encrypted, is base64 under ``"payload"``. The words and the
seal here belong to this file format: they never change, whatever becomes of the codec.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from types import GenericAlias
from typing import Any, Final, Literal
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, UnsetType

from milecastle.model.checkpoint import SNAPSHOT, Entry, Kind, Source, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import (
    Failure,
    FailureClass,
    Mode,
    Owner,
    RunRecord,
    RunStatus,
    TaskFailure,
    ThreadInfo,
)
from milecastle.ports.mailbox import Consumed, StoredMessage
from milecastle.support.copying import copied
from milecastle.support.prepared import prepared

Moment = str | int
"""``"2026-11-15T01:26:19.123456Z"``, or a number where that cannot be written."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_moment(microseconds: int) -> Moment:
    seconds, rest = divmod(microseconds, 1_000_000)
    start = _second(seconds)
    return microseconds if start is None else f"{start}.{str(1_000_000 + rest)[1:]}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str | None:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    except OverflowError:
        return None


def to_microseconds(moment: Moment) -> int:
    if isinstance(moment, int):
        return moment
    found = datetime.fromisoformat(moment)
    if found.tzinfo is None:
        raise ValueError("a time has no time zone")
    return (found - _EPOCH) // _MICROSECOND


LARGEST_READABLE: Final = 4096 + 6
"""Larger payloads are usually compressed, and would be expensive to try."""

Rendered = tuple[Raw | UnsetType, Raw | UnsetType, str | UnsetType]
"""State, updates, payload: exactly one of them is set."""

_SEAL: Final = b"\x01\x00"
_SEALED: Final = crc32(_SEAL)
_WORDS: Final = ("set", "append", "merge", "add", "maximum", "minimum", "union", "edit")
_word_of: Final = dict(enumerate(_WORDS)).__getitem__
_code_of: Final = {word: code for code, word in enumerate(_WORDS)}.__getitem__

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[Any]).decode
_to_json: Final = msgspec.json.Encoder().encode
_as_state: Final = msgspec.json.Decoder(dict[str, Any]).decode
_as_updates: Final = msgspec.json.Decoder(list[tuple[str, str, Any]]).decode

# What JSON restores exactly: no float, which may be NaN, and nothing that may be too deep.
_Leaf = bool | int | str | None
_Twig = _Leaf | list[_Leaf] | dict[str, _Leaf]
_Branch = _Leaf | list[_Twig] | dict[str, _Twig]
_Plain = _Leaf | list[_Branch] | dict[str, _Branch]
_OPERATION: Final = (Literal[0, 1, 2, 3, 4, 5, 6, 7], str, _Plain)
_unpack_plain: Final = {
    bytes((0x90 + 3 * count,)): msgspec.msgpack.Decoder[tuple[Any, ...]](
        GenericAlias(tuple, _OPERATION * count)
    ).decode
    for count in range(1, 6)
}
"""By the first byte of a body, which says that it is a list of so many parts."""


def render(payload: bytes, *, whole: bool) -> Rendered:
    """``payload`` in readable form if that is reversible, else base64.

    ``whole`` means a whole state, not an update.
    """
    if payload[:2] == _SEAL and len(payload) <= LARGEST_READABLE:
        if not whole:
            updates = _plain_updates(payload)
            if updates is not None:
                return UNSET, updates, UNSET
        try:
            rendered = _render(_unpack(payload[6:]), whole)
            if restore(*rendered) == payload:
                return rendered
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            pass  # not our payload, or one that JSON cannot express
    return UNSET, UNSET, b2a_base64(payload, newline=False).decode()


def _plain_updates(payload: bytes) -> Raw | None:
    """A few operations on plain values in readable form; ``None`` for anything else.

    These are known to be reversible: JSON preserves these values, and packing them again gave the
    same bytes, so nothing was repeated or in another form.
    """
    body = payload[6:]
    try:
        operations = _unpack_plain[body[:1]](body)
        if _seal(_pack(operations)) == payload:
            parts = iter(operations)
            updates = zip(map(_word_of, parts), parts, parts)  # noqa: B905 (they were counted)
            return Raw(_to_json(list(updates)))
    except (LookupError, ValueError, RecursionError):
        pass  # more operations, other values, or not our payload
    return None


def _render(operations: list[Any], whole: bool) -> Rendered:
    codes, names, values = operations[::3], operations[1::3], operations[2::3]
    if whole and not any(codes):
        state = dict(zip(names, values, strict=True))
        if len(state) == len(codes):
            return Raw(_to_json(state)), UNSET, UNSET
    updates = list(zip(map(_word_of, codes), names, values, strict=True))
    return UNSET, Raw(_to_json(updates)), UNSET


def restore(state: Raw | UnsetType, updates: Raw | UnsetType, payload: str | UnsetType) -> bytes:
    operations: list[Any]
    if updates is not UNSET:
        operations = list(chain.from_iterable(_as_updates(updates)))
        operations[::3] = map(_code_of, operations[::3])
    elif state is not UNSET:
        operations = []
        for name, value in _as_state(state).items():
            operations += (0, name, value)
    elif payload is not UNSET:
        return a2b_base64(payload, strict_mode=True)
    else:
        raise ValueError("`state`, `updates` and `payload` are all missing")
    return _seal(_pack(operations))


def _seal(body: bytes) -> bytes:
    return _SEAL + crc32(body, _SEALED).to_bytes(4) + body


FORMAT: Final = 1

KindWord = Literal["delta", "rollup", "snapshot"]

_KINDS: Final[tuple[KindWord, ...]] = ("delta", "rollup", "snapshot")
_NUMBERS: Final[dict[KindWord, Kind]] = {"delta": 0, "rollup": 1, "snapshot": 2}


class _Shape(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    pass


@prepared
class HeaderShape(_Shape, rename={"format": "milecastle"}):
    """The first line. ``log`` distinguishes a thread from a deleted one with the same name.

    ``first_seq`` is the log's first seq now; ``generation`` is incremented and ``deleted_at``
    is set when the thread is deleted.
    """

    format: int
    tenant: str
    thread: str
    log: str
    first_seq: int = 1
    generation: int = 1
    deleted_at: Moment | None = None


class CheckpointShape(_Shape):
    """An entry without seq and time. One field of the last three is set."""

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


class EntryShape(_Shape):
    seq: int
    created_at: Moment
    checkpoint: CheckpointShape

    @classmethod
    def of(cls, entry: Entry) -> EntryShape:
        return cls(entry.seq, to_moment(entry.created_at), checkpoint_of(entry))


class ResultShape(_Shape):
    seq: int
    task: str
    updates: Raw | UnsetType = UNSET
    payload: str | UnsetType = UNSET

    @classmethod
    def of(cls, result: TaskResult) -> ResultShape:
        _, updates, payload = render(result.payload, whole=False)
        return cls(result.seq, result.task, updates, payload)


class OwnerShape(_Shape):
    host: str
    boot_id: str
    pid: int
    started: str


class RunShape(_Shape):
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
    owner: OwnerShape | None = None

    @classmethod
    def of(cls, run: RunRecord) -> RunShape:
        return copied(
            cls,
            run,
            started_at=to_moment(run.started_at),
            ended_at=_moment(run.ended_at),
            metadata=dict(run.metadata),
            wake_at=_moment(run.wake_at),
            owner=None if run.owner is None else copied(OwnerShape, run.owner),
        )

    def record(self, key: ThreadKey) -> RunRecord:
        return copied(
            RunRecord,
            self,
            key=key,
            started_at=to_microseconds(self.started_at),
            ended_at=_microseconds(self.ended_at),
            wake_at=_microseconds(self.wake_at),
            owner=None if self.owner is None else copied(Owner, self.owner),
        )


class ThreadShape(_Shape):
    status: RunStatus
    run_id: str
    graph: str
    started_at: Moment
    ended_at: Moment | None
    wake_at: Moment | None = None
    questions: int = 0
    lane: str = ""
    due_at: Moment | None = None
    worker: str = ""
    priority: int = 0
    tags: tuple[str, ...] = ()
    waiting_topics: tuple[tuple[str, int], ...] = ()
    limit_key: str = ""

    @classmethod
    def of(cls, info: ThreadInfo, tags: tuple[str, ...] = ()) -> ThreadShape:
        return copied(
            cls,
            info,
            tags=tags,
            started_at=to_moment(info.started_at),
            ended_at=_moment(info.ended_at),
            wake_at=_moment(info.wake_at),
            due_at=_moment(info.due_at),
        )

    def info(self, key: ThreadKey) -> ThreadInfo:
        return copied(
            ThreadInfo,
            self,
            key=key,
            started_at=to_microseconds(self.started_at),
            ended_at=_microseconds(self.ended_at),
            wake_at=_microseconds(self.wake_at),
            due_at=_microseconds(self.due_at),
        )


class FailureShape(_Shape):
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
    tasks: tuple[TaskFailure, ...] = ()

    @classmethod
    def of(cls, failure: Failure) -> FailureShape:
        return copied(cls, failure, time=to_moment(failure.time))

    def failure(self) -> Failure:
        return copied(Failure, self, time=to_microseconds(self.time))


class MessageShape(_Shape):
    number: int
    topic: str
    mark: str
    sent_at: Moment
    state: Raw | UnsetType = UNSET
    updates: Raw | UnsetType = UNSET
    payload: str | UnsetType = UNSET

    @classmethod
    def of(cls, message: StoredMessage) -> MessageShape:
        name = message.number, message.topic, message.mark, to_moment(message.sent_at)
        return cls(*name, *render(message.payload, whole=True))

    def message(self, *, with_payload: bool = True) -> StoredMessage:
        return StoredMessage(
            number=self.number,
            topic=self.topic,
            mark=self.mark,
            sent_at=to_microseconds(self.sent_at),
            payload=restore(self.state, self.updates, self.payload) if with_payload else b"",
        )


@prepared
class CommitShape(_Shape):
    head: int | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    created_at: Moment | UnsetType = UNSET
    checkpoint: CheckpointShape | UnsetType = UNSET
    also: tuple[EntryShape, ...] = ()
    results: tuple[ResultShape, ...] = ()
    runs: tuple[RunShape, ...] = ()
    failures: tuple[FailureShape, ...] = ()
    manifests: dict[str, Raw] = {}
    thread: ThreadShape | None = None
    thread_at: int = 0
    consumes: tuple[int, ...] = ()
    messages: tuple[MessageShape, ...] = ()
    consumed: tuple[Consumed, ...] = ()
    last_message: int = 0

    def records(self) -> tuple[EntryShape, ...]:
        if self.checkpoint is UNSET:
            return self.also
        if self.seq is UNSET or self.created_at is UNSET:
            raise ValueError("a checkpoint has no `seq` or no `created_at`")
        return (EntryShape(self.seq, self.created_at, self.checkpoint), *self.also)


def _moment(microseconds: int | None) -> Moment | None:
    return None if microseconds is None else to_moment(microseconds)


def _microseconds(moment: Moment | None) -> int | None:
    return None if moment is None else to_microseconds(moment)


@prepared
class _LogFormat(msgspec.Struct, rename={"format": "milecastle", "unreleased": "format"}):
    format: int = 0
    unreleased: int = 0


encode: Final = msgspec.json.Encoder().encode
read_commit: Final = msgspec.json.Decoder(CommitShape).decode
read_header: Final = msgspec.json.Decoder(HeaderShape).decode
read_format: Final = msgspec.json.Decoder(_LogFormat).decode
_read_text: Final = msgspec.json.Decoder(str).decode
_check_json: Final = msgspec.json.Decoder().decode


def checkpoint_of(entry: Entry) -> CheckpointShape:
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


def entry_of(record: EntryShape, *, with_payload: bool = True) -> Entry:
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
    payload = restore(UNSET, shape.updates, shape.payload)
    return TaskResult(seq=shape.seq, task=shape.task, payload=payload)


def manifest_shape(manifest: bytes) -> Raw:
    try:
        if manifest[:1] == b"{" and manifest[-1:] == b"}" and b"\n" not in manifest:
            _check_json(manifest)
            return Raw(manifest)
    except (ValueError, RecursionError):
        pass  # not JSON
    return Raw(encode(b2a_base64(manifest, newline=False).decode()))


def manifest_of(raw: Raw) -> bytes:
    data = bytes(raw)
    return data if data[:1] == b"{" else a2b_base64(_read_text(data), strict_mode=True)
