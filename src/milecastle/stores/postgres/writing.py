"""Batches as values for the statements writing them.

Values are binary, in the parameter order the statement's file names. A number no
column can hold is a ``StoreError``, as it would be if the server refused it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Any

import msgspec
import msgspec.structs

from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.memory import MemoryWrite
from milecastle.model.run import Owner, RunRecord, ThreadInfo
from milecastle.ports.mailbox import Debounce, NewRun
from milecastle.ports.store import Batch
from milecastle.stores.postgres import arrays
from milecastle.stores.postgres.arrays import bools, byteas, int2s, int4s, int8s, texts
from milecastle.stores.postgres.libpq import Values
from milecastle.stores.postgres.values import (
    HELD,
    NO_ID,
    SOURCES,
    escape,
    failure_to,
    id_to,
    names_to,
    origin_to,
)

_KEY = (arrays.INT2, arrays.TEXT, arrays.TEXT, arrays.INT8)
_KEYS = (arrays.INT2S, arrays.TEXTS, arrays.TEXTS, arrays.INT8S)
_ENTRY = (
    *(arrays.INT2, arrays.INT4, arrays.INT4, arrays.INT4, arrays.INT8, arrays.INT2),
    *(arrays.BYTEA, arrays.BYTEA, arrays.BYTEA),
    *(arrays.TEXT, arrays.TEXT, arrays.TEXT, arrays.TEXT, arrays.BYTEA),
)
_ENTRIES = (
    *(arrays.INT2S, arrays.INT4S, arrays.INT4S, arrays.INT4S, arrays.INT8S, arrays.INT2S),
    *(arrays.BYTEAS, arrays.BYTEAS, arrays.BYTEAS),
    *(arrays.TEXTS, arrays.TEXTS, arrays.TEXTS, arrays.TEXTS, arrays.BYTEAS),
)
_RESULTS = (arrays.BYTEAS, arrays.INT8S, arrays.TEXTS, arrays.BYTEAS)

APPEND = (*_KEY, *_ENTRY, arrays.BOOL, arrays.BYTEA)
APPEND_MANY = (*_KEYS, *_ENTRIES, arrays.BOOLS, arrays.BYTEAS)
KEEP_RESULTS = (*_KEY, *_RESULTS, arrays.BYTEA)
COMMIT = (
    *(*_KEYS, arrays.INT4S, arrays.INT4S),
    *(arrays.INT4S, arrays.INT4S, arrays.INT4S, arrays.INT4S, *_ENTRIES),
    arrays.JSONB,
    *(arrays.INT4S, arrays.TEXTS, arrays.BYTEAS),
    *(arrays.INT4S, *_RESULTS),
    arrays.BYTEAS,
    arrays.JSONB,
)
COMMIT_TAGGED = (*COMMIT, arrays.INT4S, arrays.TEXTS, arrays.INT4S, arrays.TEXTS)
_MESSAGES = (arrays.INT4S, arrays.INT8S)
COMMIT_CONSUMING = (*COMMIT_TAGGED, *_MESSAGES)
APPEND_CONSUMING = (*APPEND, arrays.INT8S)
_NEVER = 2**62
WAKE_WAITING = (arrays.TEXTS, arrays.TEXTS)
SEND = (
    *(*_KEY[:3], arrays.TEXT, arrays.TEXT, arrays.BYTEA, arrays.INT8, arrays.TEXT),
    *(arrays.INT8, arrays.INT8),
)
SEND_RUN = (*SEND, arrays.JSONB, arrays.TEXT, arrays.TEXT)
MEMORY = (
    *(arrays.TEXT, arrays.BYTEAS, arrays.TEXTS, arrays.BYTEAS, arrays.BOOLS, arrays.TEXTS),
    *(arrays.TEXTS, arrays.BYTEAS, arrays.TEXTS, arrays.INT8S, arrays.INT8S),
    *(arrays.TEXT, arrays.INT8),
)
APPEND_PUTTING = (*APPEND, *MEMORY)
MEMORY_LOCK = (arrays.TEXT, arrays.BYTEAS, arrays.TEXTS)
MEMORY_BATCH = (*MEMORY, arrays.INT2, arrays.BYTEA)
HOLD_THREAD = (arrays.TEXT, arrays.TEXT, arrays.TEXT)
"""The types of the parameters of the statements of these names."""

HOLDING_TIME = b"5s"
"""For how long a process may hold a thread's row before it commits; others wait for it."""

_INT2 = Struct("!h").pack
_INT4 = Struct("!i").pack
_INT8 = Struct("!q").pack
_KINDS = {kind: _INT2(kind) for kind in (0, 1, 2)}
_CODES = {source: _INT2(code) for source, code in SOURCES.items()}
_JSONB = b"\1"
_FIELDS = Entry.__struct_fields__


def is_step(batch: Batch) -> bool:
    return is_entry(batch) and not batch.consumes


def is_entry(batch: Batch) -> bool:
    return (
        len(batch.entries) == 1
        and batch.head > 0
        and not (batch.runs or batch.results or batch.failure or batch.manifest or batch.thread)
    )


def is_results(batch: Batch) -> bool:
    return bool(batch.results) and not (
        batch.entries
        or batch.runs
        or batch.failure
        or batch.manifest
        or batch.thread
        or batch.consumes
    )


def is_waiting(batch: Batch) -> bool:
    row = batch.thread
    return row is not None and bool(row.waiting_topics and row.lane) and not row.worker


def append_values(batch: Batch, same: bool) -> Values:
    entry = batch.entries[0]
    parent_id = entry.parent_id
    return [
        *_key(batch.key),
        _INT8(batch.head),
        _KINDS[entry.kind],
        _INT4(entry.step),
        _INT4(entry.base_seq),
        _INT4(entry.roll_seq),
        _INT8(entry.created_at),
        _CODES[entry.source],
        id_to(entry.id),
        NO_ID if parent_id is None else id_to(parent_id),
        origin_to(entry.run_id, entry.fingerprint),
        _names(entry.nodes),
        _names(entry.next),
        _names(entry.route),
        escape(entry.note).encode() if entry.note else b"",
        entry.payload,
        b"\1" if same else b"\0",
        _head_id(batch),
    ]


def append_consuming_values(batch: Batch, same: bool) -> Values:
    return [*append_values(batch, same), int8s(_consumed(batch))]


def append_many_values(batches: Sequence[Batch], same: Sequence[bool]) -> Values:
    entries = [batch.entries[0] for batch in batches]
    parents = [_parent(entry) for entry in entries]
    origins = [origin_to(entry.run_id, entry.fingerprint) for entry in entries]
    return [
        *_keys(batches),
        *_entries(entries, parents, origins),
        bools(same),
        byteas([_head_id(batch) for batch in batches]),
    ]


def keep_results_values(batch: Batch) -> Values:
    kept = _last_of_each(batch.results)
    return [*_key(batch.key), _INT8(batch.head), *_results(kept), _head_id(batch)]


def hold_values(batch: Batch) -> Values:
    return [*_key(batch.key)[1:], HOLDING_TIME]


def commit_values(batches: Sequence[Batch]) -> Values:
    """Values for ``commit.sql``: batches with any parts, from different threads."""
    numbered = list(enumerate(batches, 1))
    manifests = [
        (number, *batch.manifest) for number, batch in numbered if batch.manifest is not None
    ]
    results = [
        (number, result) for number, batch in numbered for result in _last_of_each(batch.results)
    ]
    placed = [_placed(batch.entries) for batch in batches]
    each = [place for places in placed for place in places]
    return [
        *_keys(batches),
        int4s([len(places) for places in placed]),
        int4s([places[-1].held if places else 0 for places in placed]),
        int4s([number for number, places in enumerate(placed, 1) for _ in places]),
        int4s([place.place for place in each]),
        int4s([place.held for place in each]),
        int4s([place.told for place in each]),
        *_entries(
            [entry for batch in batches for entry in batch.entries],
            [place.parent for place in each],
            [place.origin for place in each],
        ),
        _json([run for number, batch in numbered for run in _runs(number, batch)]),
        int4s([number for number, _, _ in manifests]),
        texts([escape(fingerprint).encode() for _, fingerprint, _ in manifests]),
        byteas([body for _, _, body in manifests]),
        int4s([number for number, _ in results]),
        *_results([result for _, result in results]),
        byteas([_head_id(batch) for batch in batches]),
        _json([_line(number, batch) for number, batch in numbered if batch.thread or batch.runs]),
    ]


def tag_values(batches: Sequence[Batch]) -> Values:
    changes = [(n, batch.tags) for n, batch in enumerate(batches, 1) if batch.tags is not None]
    values: list[bytes] = []
    for tags in (
        [(number, tag) for number, change in changes for tag in change.remove],
        [(number, tag) for number, change in changes for tag in change.add],
    ):
        values += [int4s([number for number, _ in tags]), texts([tag.encode() for _, tag in tags])]
    return values


def message_values(batches: Sequence[Batch]) -> Values:
    each = sorted(
        (place, number) for place, batch in enumerate(batches, 1) for number in _consumed(batch)
    )
    return [int4s([place for place, _ in each]), int8s([number for _, number in each])]


def memory_values(
    tenant: str, writes: Sequence[MemoryWrite], thread: bytes = b"", seq: int = 0
) -> Values:
    return [
        tenant.encode(),
        byteas([write.path for write in writes]),
        texts([write.key.encode() for write in writes]),
        byteas([write.value or b"" for write in writes]),
        bools([write.value is None for write in writes]),
        texts([write.subject.encode() for write in writes]),
        texts([" ".join(write.words).encode() for write in writes]),
        byteas([write.vectors for write in writes]),
        texts([write.model.encode() for write in writes]),
        int8s([-1 if write.ttl is None else write.ttl for write in writes]),
        int8s([-1 if write.if_version is None else write.if_version for write in writes]),
        thread,
        _INT8(seq),
    ]


def only_puts(writes: Sequence[MemoryWrite]) -> bool:
    return all(write.value is not None and write.if_version is None for write in writes)


def needs_lock(writes: Sequence[MemoryWrite]) -> bool:
    return len(writes) > 1 and any(write.value is None for write in writes)


def memory_lock_values(tenant: str, writes: Sequence[MemoryWrite]) -> Values:
    return [*memory_values(tenant, writes)[:3]]


def memory_batch_values(batch: Batch) -> Values:
    shard, _, thread = _key(batch.key)
    entry = batch.entries[-1]
    values = memory_values(batch.key.tenant, batch.memory, thread, entry.seq)
    return [*values, shard, id_to(entry.id)]


def _consumed(batch: Batch) -> list[int]:
    return [message_number(number) for number in sorted(set(batch.consumes))]


def message_number(number: int) -> int:
    """A message's number; 0, which no message has, for one that no column can hold."""
    return number if 0 < number < 2**63 else 0


def wake_values(batches: Sequence[Batch]) -> Values:
    _, tenants, threads = zip(*[_key(batch.key) for batch in batches], strict=True)
    return [texts(tenants), texts(threads)]


def send_values(
    key: ThreadKey,
    topic: str,
    mark: str,
    payload: bytes,
    most: int,
    graph: str = "",
    debounce: Debounce | None = None,
) -> Values:
    texts = [escape(text).encode() for text in (topic, mark, graph)]
    quiet, at_most = (-1, None) if debounce is None else (debounce.quiet, debounce.at_most)
    times = _INT8(quiet), _INT8(_NEVER if at_most is None else at_most)
    return [*_key(key), *texts[:2], payload, _INT8(most), texts[2], *times]


def run_values(run: NewRun) -> Values:
    texts = [escape(text or "").encode() for text in (run.unless, run.besides)]
    return [_json(_run_to(run.record)), *texts]


def _keys(batches: Sequence[Batch]) -> Values:
    shards, tenants, threads = zip(*[_key(batch.key) for batch in batches], strict=True)
    return [
        arrays.fixed(arrays.INT2, shards),
        texts(tenants),
        texts(threads),
        int8s([batch.head for batch in batches]),
    ]


def _head_id(batch: Batch) -> bytes:
    return b"" if batch.head_id is None else id_to(batch.head_id)


def _parent(entry: Entry) -> bytes:
    return NO_ID if entry.parent_id is None else id_to(entry.parent_id)


class _Place(msgspec.Struct, frozen=True, gc=False):
    """An entry among those of its batch: its relation to those before it.

    ``held``: how many up to this one leave the thread in its step. ``told``: which one tells its
    origin. ``parent`` and ``origin`` are empty if they are those of the entry before.
    """

    place: int
    held: int
    told: int
    parent: bytes
    origin: bytes


def _placed(entries: Sequence[Entry]) -> list[_Place]:
    places: list[_Place] = []
    id_before = origin_before = b""
    held = told = 0
    for place, entry in enumerate(entries, 1):
        parent, origin = _parent(entry), origin_to(entry.run_id, entry.fingerprint)
        held = held + 1 if SOURCES[entry.source] >= HELD else 0
        told = told if origin == origin_before else entry.seq
        places.append(
            _Place(
                place,
                held,
                told,
                b"" if parent == id_before else parent,
                b"" if origin == origin_before else origin,
            )
        )
        id_before, origin_before = id_to(entry.id), origin
    return places


def _entries(
    entries: Sequence[Entry], parents: Sequence[bytes], origins: Sequence[bytes]
) -> Values:
    columns = list(zip(*map(msgspec.structs.astuple, entries), strict=True)) or [()] * len(_FIELDS)
    of = dict(zip(_FIELDS, columns, strict=True))
    return [
        int2s(of["kind"]),
        int4s(of["step"]),
        int4s(of["base_seq"]),
        int4s(of["roll_seq"]),
        int8s(of["created_at"]),
        int2s(list(map(SOURCES.__getitem__, of["source"]))),
        byteas(list(map(id_to, of["id"]))),
        byteas(parents),
        byteas(origins),
        texts(list(map(_names, of["nodes"]))),
        texts(list(map(_names, of["next"]))),
        texts(list(map(_names, of["route"]))),
        texts([escape(note).encode() if note else b"" for note in of["note"]]),
        byteas(of["payload"]),
    ]


def _last_of_each(results: Sequence[TaskResult]) -> Sequence[TaskResult]:
    return list({result.task: result for result in results}.values())


def _results(results: Sequence[TaskResult]) -> Values:
    return [
        byteas([_digest(result.task) for result in results]),
        int8s([result.seq for result in results]),
        texts([escape(result.task).encode() for result in results]),
        byteas([result.payload for result in results]),
    ]


@lru_cache(maxsize=8192)
def _key(key: ThreadKey) -> tuple[bytes, bytes, bytes]:
    return _INT2(key.shard), key.tenant.encode(), key.thread.encode()


@lru_cache(maxsize=4096)
def _names(names: tuple[str, ...]) -> bytes:
    return names_to(names).encode()


def _runs(number: int, batch: Batch) -> Iterable[dict[str, Any]]:
    records = {run.run_id: _run_to(run) for run in batch.runs}
    for place, record in enumerate(records.values(), 1):
        record["place"] = place
    if batch.failure is not None:
        run_id = batch.failure.run_id
        record = records.setdefault(run_id, {"run_id": escape(run_id)})
        record["failure"] = failure_to(batch.failure)
    for record in records.values():
        record["batch"] = number
    return records.values()


def _run_to(run: RunRecord) -> dict[str, Any]:
    metadata = {escape(name): escape(value) for name, value in run.metadata.items()}
    return {
        "run_id": escape(run.run_id),
        "graph": escape(run.graph),
        "fingerprint": escape(run.fingerprint),
        "mode": run.mode,
        "status": run.status,
        "retry_count": run.retry_count,
        "previous_run_id": _optional(run.previous_run_id),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "input_digest": escape(run.input_digest),
        "metadata": msgspec.json.encode(metadata).decode(),
        "wake_at": run.wake_at,
        "owner": None if run.owner is None else owner_to(run.owner),
    }


def owner_to(owner: Owner) -> str:
    escaped = {
        name: escape(value) if isinstance(value, str) else value
        for name, value in msgspec.structs.asdict(owner).items()
    }
    return msgspec.json.encode(escaped).decode()


def _line(number: int, batch: Batch) -> dict[str, Any]:
    info = batch.thread or ThreadInfo.of(batch.runs[-1])
    return {
        "batch": number,
        "told": batch.thread is not None,
        "runs": len(batch.runs),
        "run_id": escape(info.run_id),
        "status": info.status,
        "graph": escape(info.graph),
        "started_at": info.started_at,
        "ended_at": info.ended_at,
        "wake_at": info.wake_at,
        "questions": info.questions,
        "lane": escape(info.lane),
        "due_at": info.due_at,
        "worker": escape(info.worker),
        "rank": -info.priority,
        "waiting_topics": [(escape(topic), seen) for topic, seen in info.waiting_topics] or None,
        "unless": _optional(batch.unless),
        "limit_key": info.limit_key or None,
    }


def _optional(text: str | None) -> str | None:
    return None if text is None else escape(text)


def _json(value: object) -> bytes:
    return _JSONB + msgspec.json.encode(value)


def _digest(task: str) -> bytes:
    return blake2b(task.encode("utf-8", "surrogatepass"), digest_size=16).digest()
