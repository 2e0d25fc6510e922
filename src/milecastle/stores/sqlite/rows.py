"""Rows and their contents: entries, results, runs, failures, threads and manifests.

Rules:

- Every row has a checksum over all its values. An entry has two, one of them over the payload,
  so a history can be verified without reading any.
- A checksum covers the row's key: a misplaced row is detected.
- A damaged row is never decoded: ``Damaged`` is raised, and the reader adds the location.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast
from zlib import crc32

import msgspec

from milecastle.model.checkpoint import Entry, Source, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.limit_key import NO_KEY
from milecastle.model.run import TRANSITIONS, Failure, RunRecord, ThreadInfo
from milecastle.ports.limits import Limit, Meter, Scope
from milecastle.ports.mailbox import StoredMessage
from milecastle.ports.workers import WorkerInfo

Row = tuple[Any, ...]
RunAndGraph = tuple[str, str]
"""A run id and the fingerprint of the graph that wrote."""

SPAN = 2**32
"""The range of ids of a thread in each table that is keyed by thread."""

_SOURCES: tuple[Source, ...] = (
    "input",
    "step",
    "interrupt",
    "update",
    "fork",
    "takeover",
    "answer",
    "sleep",
)  # the positions are on disk: a new source comes last
_SOURCE_CODES = {source: code for code, source in enumerate(_SOURCES)}
_UUID = b"00000000-0000-0000-0000-000000000000"
_DIGITS = bytes.maketrans(b"123456789abcdef", b"0" * 15)
_HALF = 2**63
_META = 15
_encode = msgspec.msgpack.Encoder().encode


class Damaged(Exception): ...


class ThreadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A thread in the index, with its run and failure counts and its line.

    ``messages`` is the last message's number, ``unread`` how many are not consumed.
    ``is_new`` means it has no rows in any other table.
    """

    id: int
    key: ThreadKey
    first: int = 1
    runs: int = 0
    failures: int = 0
    messages: int = 0
    unread: int = 0
    info: ThreadInfo | None = None
    is_new: bool = False

    @property
    def origin(self) -> int:
        return self.id * SPAN

    @property
    def last(self) -> int:
        return self.id * SPAN + SPAN - 1


# -- values


def write_text(text: str) -> str | bytes:
    """Text for the database: invalid Unicode becomes an odd number of bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return b"\xff" + text.encode("utf-32-le", "surrogatepass")
    return text


def read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise Damaged
    return value[1:].decode("utf-32-le", "surrogatepass")


def pack_id(id: str) -> str | bytes:
    if len(id) == 36 and id.isascii() and id.encode().translate(_DIGITS) == _UUID:
        return bytes.fromhex(id.replace("-", ""))
    return write_text(id)


def unpack_id(value: Any) -> str:
    if isinstance(value, bytes) and len(value) == 16:
        text = value.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return read_text(value)


@lru_cache(maxsize=1024)
def _write_names(names: tuple[str, ...]) -> str | bytes | None:
    return _write_json(names) if names else None


@lru_cache(maxsize=1024)
def _read_names(value: str | bytes | None) -> tuple[str, ...]:
    return () if value is None else tuple(_read_json(value))


def _write_json(value: Any) -> str | bytes:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return write_text(json.dumps(value, ensure_ascii=False))


def _read_json(value: str | bytes) -> Any:
    return msgspec.json.decode(value) if isinstance(value, str) else json.loads(read_text(value))


def checksum(*values: Any) -> int:
    return crc32(_encode(values))


def summed(values: Row) -> Row:
    try:
        return *values, crc32(_encode(values))
    except UnicodeEncodeError:
        values = tuple(write_text(one) if isinstance(one, str) else one for one in values)
        return *values, crc32(_encode(values))


def checked(row: Row) -> Row:
    values = row[:-1]
    if row[-1] != crc32(_encode(values)):
        raise Damaged
    return values


# -- entries


def entry_row(
    entry: Entry, thread: int, origin: int, parent: str | bytes | None, prior: int | None = None
) -> Row:
    id = thread * SPAN + entry.seq
    checkpoint = pack_id(entry.id)
    step = entry.step
    source = _SOURCE_CODES[entry.source]
    nodes = _write_names(entry.nodes)
    following = _write_names(entry.next)
    created_at = entry.created_at
    kind, base_seq, roll_seq = entry.kind, entry.base_seq, entry.roll_seq
    route = _write_names(entry.route) if entry.route else None
    note = write_text(entry.note) if entry.note else ""
    payload = entry.payload
    meta = (
        id, checkpoint, parent, step, source, nodes, following, origin, created_at,
        kind, base_seq, roll_seq, prior, route, note,
    )  # fmt: skip
    return (
        id, checkpoint, step, source, nodes, following, origin, created_at,
        kind, base_seq, roll_seq, prior, route, note, payload,
        (crc32(_encode(meta)) << 32 | crc32(payload)) - _HALF,
    )  # fmt: skip


def pack_parent(entry: Entry) -> str | bytes | None:
    """An entry's parent: empty if none, NULL at a log's start."""
    if entry.parent_id is None:
        return b"" if entry.seq > 1 else None
    return pack_id(entry.parent_id)


def is_sound(row: Row) -> bool:
    sums = row[_META]
    if not isinstance(sums, int):
        return False
    meta, payload = divmod(sums + _HALF, SPAN)
    if crc32(_encode(row[:_META])) != meta:
        return False
    return len(row) == _META + 1 or (isinstance(row[-1], bytes) and crc32(row[-1]) == payload)


def entry_of(row: Row, origin: RunAndGraph) -> Entry:
    parent = row[2]
    return Entry(
        row[0] % SPAN,
        unpack_id(row[1]),
        None if parent is None or parent == b"" else unpack_id(parent),
        row[3],
        _SOURCES[int(row[4])],
        _read_names(row[5]),
        _read_names(row[6]),
        origin[0],
        origin[1],
        row[8],
        row[9],
        row[10],
        row[11],
        row[16] if len(row) > _META + 1 else b"",
        _read_names(row[13]),
        read_text(row[14]),
    )


# -- everything else


def result_row(id: int, head: int, result: TaskResult) -> Row:
    return summed((id, head, result.seq, result.task, result.payload))


def result_of(values: Row) -> TaskResult:
    return TaskResult(seq=values[2], task=read_text(values[3]), payload=values[4])


def run_row(thread: int, run: RunRecord) -> Row:
    return summed(
        (
            thread,
            run.run_id,
            run.started_at,
            run.graph,
            run.fingerprint,
            run.mode,
            run.status,
            run.retry_count,
            run.previous_run_id,
            run.ended_at,
            run.input_digest,
            _write_json(run.metadata),
            run.wake_at,
            None if run.owner is None else _write_json(msgspec.to_builtins(run.owner)),
        )
    )


def run_of(values: Row, thread: ThreadRow) -> RunRecord:
    id, run_id, started_at, graph, fingerprint, mode, status, retries, previous, *rest = values
    ended_at, digest, metadata, wake_at, owner = rest
    if id != thread.id:
        raise Damaged
    texts = run_id, graph, fingerprint, digest, "" if previous is None else previous
    if {*map(type, texts)} != {str}:
        run_id, graph, fingerprint, digest, before = map(read_text, texts)
        previous = None if previous is None else before
    found = {
        "run_id": run_id,
        "started_at": started_at,
        "key": thread.key,
        "graph": graph,
        "fingerprint": fingerprint,
        "mode": mode,
        "status": status,
        "retry_count": retries,
        "previous_run_id": previous,
        "ended_at": ended_at,
        "input_digest": digest,
        "metadata": _read_json(metadata),
        "wake_at": wake_at,
        "owner": None if owner is None else _read_json(owner),
    }
    return msgspec.convert(found, RunRecord)


def failure_row(thread: int, failure: Failure) -> Row:
    return summed(
        (
            thread,
            failure.run_id,
            failure.failure_class,
            int(failure.resumable),
            failure.error_type,
            failure.message,
            _write_json(failure.traceback),
            _write_json(_causes_and_tasks(failure)),
            failure.attempt,
            failure.time,
            failure.node,
        )
    )


def _causes_and_tasks(failure: Failure) -> Any:
    if not failure.tasks:
        return failure.causes
    return {"causes": failure.causes, "tasks": msgspec.to_builtins(failure.tasks)}


def failure_of(values: Row) -> Failure:
    causes = _read_json(values[7])
    more: dict[str, Any] = {"causes": causes}
    if isinstance(causes, dict):
        more = cast("dict[str, Any]", causes)
    found = {
        "run_id": read_text(values[1]),
        "failure_class": values[2],
        "resumable": bool(values[3]),
        "error_type": read_text(values[4]),
        "message": read_text(values[5]),
        "traceback": _read_json(values[6]),
        **more,
        "attempt": values[8],
        "time": values[9],
        "node": None if values[10] is None else read_text(values[10]),
    }
    return msgspec.convert(found, Failure)


def manifest_of(values: Row, key: Row) -> bytes:
    if values[:2] != key:
        raise Damaged
    return bytes(values[2])


def thread_values(thread: ThreadRow) -> Row:
    key, info = thread.key, thread.info
    known = thread.id, key.tenant, key.thread, thread.first, thread.runs, thread.failures
    if info is None:
        return (*known, *(None,) * 13, thread.messages, thread.unread)
    return (
        *known,
        info.status,
        info.started_at,
        info.run_id,
        info.graph,
        info.ended_at,
        info.wake_at,
        info.questions,
        info.lane,
        info.due_at,
        info.worker,
        -info.priority,
        _write_json(info.waiting_topics) if info.waiting_topics else None,
        info.limit_key or NO_KEY,
        thread.messages,
        thread.unread,
    )


def thread_of(values: Row, key: ThreadKey | None = None) -> ThreadRow:
    """A checked row's thread; with a key, the row must be that thread's."""
    id, tenant, thread, first, runs, failures, *line, messages, unread = values
    if key is None:
        key = ThreadKey(tenant, thread)
    elif (tenant, thread) != (key.tenant, key.thread):
        raise Damaged
    info = None if line[0] is None else _info_of(key, *line)
    return ThreadRow(
        id=id,
        key=key,
        first=first,
        runs=runs,
        failures=failures,
        messages=messages,
        unread=unread,
        info=info,
    )


def _info_of(
    key: ThreadKey,
    status: Any,
    started_at: int,
    run_id: Any,
    graph: Any,
    ended_at: int | None,
    wake_at: int | None,
    questions: int,
    lane: Any,
    due_at: int | None,
    worker: Any,
    rank: int,
    waiting_topics: Any,
    limit_key: str,
) -> ThreadInfo:
    if status not in TRANSITIONS:
        raise Damaged
    texts = run_id, graph, lane, worker
    if {*map(type, texts)} != {str}:
        run_id, graph, lane, worker = map(read_text, texts)
    return ThreadInfo(
        key=key,
        status=status,
        run_id=run_id,
        graph=graph,
        started_at=started_at,
        ended_at=ended_at,
        wake_at=wake_at,
        questions=questions,
        lane=lane,
        due_at=due_at,
        worker=worker,
        priority=-rank,
        waiting_topics=() if waiting_topics is None else _read_topics(waiting_topics),
        limit_key="" if limit_key == NO_KEY else limit_key,
    )


def _read_topics(value: str | bytes) -> tuple[tuple[str, int], ...]:
    return msgspec.convert(_read_json(value), tuple[tuple[str, int], ...])


def message_row(id: int, message: StoredMessage) -> Row:
    return summed((id, message.topic, message.mark, message.sent_at, None, message.payload))


def message_of(values: Row) -> StoredMessage:
    id, topic, mark, sent_at, consumed, payload = values
    if consumed is not None or not isinstance(payload, bytes):
        raise Damaged
    return StoredMessage(
        number=id % SPAN,
        topic=read_text(topic),
        mark=read_text(mark),
        payload=payload,
        sent_at=sent_at,
    )


def consumed_row(values: Row, seq: int) -> Row:
    id, topic, mark, sent_at, _, _ = values
    return summed((id, topic, mark, sent_at, seq, None))


def meter_row(meter: Meter) -> Row:
    limit = meter.limit
    return summed(
        (
            limit.graph,
            limit.tenant,
            limit.key,
            limit.concurrency,
            limit.rate,
            limit.microseconds,
            int(limit.paused),
            meter.begun,
            meter.used,
        )
    )


def meter_of(values: Row) -> Meter:
    limit = Limit(
        graph=read_text(values[0]),
        tenant=values[1],
        key=values[2],
        concurrency=values[3],
        rate=values[4],
        period=values[5] / 1_000_000,
        paused=bool(values[6]),
    )
    return Meter(limit, *values[7:])


def key_meter_row(meter: Meter) -> Row:
    limit = meter.limit
    used = limit.graph, limit.tenant, meter.limit_key, meter.begun, meter.used
    return *summed(used), meter.until


def key_meter_of(values: Row, limits: Mapping[Scope, Limit]) -> Meter | None:
    graph, tenant, limit_key, begun, used = values
    limit = limits.get(Scope(read_text(graph), tenant, limit_key).of_any)
    return None if limit is None else Meter(limit, begun, used, limit_key)


def worker_row(worker: WorkerInfo, now: int) -> Row:
    return summed(
        (
            worker.id,
            now,
            worker.started_at,
            worker.capacity,
            int(worker.draining),
            _write_json(msgspec.to_builtins(worker.owner)),
            _write_json(worker.lanes),
        )
    )


def worker_of(values: Row, now: int, running: int, silent: int) -> WorkerInfo:
    found = {
        "id": read_text(values[0]),
        "owner": _read_json(values[5]),
        "lanes": _read_json(values[6]),
        "started_at": values[2],
        "capacity": values[3],
        "draining": bool(values[4]),
        "running": running,
        "silent": (now - values[1]) / 1_000_000,
        "silent_after": silent / 1_000_000,
    }
    return msgspec.convert(found, WorkerInfo)
