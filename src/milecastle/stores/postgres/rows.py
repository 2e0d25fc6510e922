"""Entries, records and results out of rows.

Reading is strict: a value none of our writers could have stored is ``Corrupted``, with the
column and never with the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from psycopg.pq.abc import PGresult

from milecastle.errors import Corrupted
from milecastle.model.checkpoint import Entry, Kind, Source, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.limit_key import NO_KEY
from milecastle.model.run import Mode, Owner, RunRecord, RunStatus, ThreadInfo
from milecastle.stores.postgres.values import (
    NO_ID,
    SOURCES,
    escape,
    id_from,
    id_to,
    names_from,
    names_to,
    origin_from,
    origin_to,
    unescape,
)

Parameters = dict[str, Any]
Row = tuple[Any, ...]

RESULT = -1
ORIGIN = -2
RECORD = -3
"""The kinds of rows in results that are not entries."""

_KINDS = frozenset(get_args(Kind))
_SOURCES: dict[int, Source] = {code: source for source, code in SOURCES.items()}
_MODES = frozenset(get_args(Mode))
_STATUSES = frozenset(get_args(RunStatus))
_METADATA = msgspec.json.Decoder(dict[str, str])
_OWNER = msgspec.json.Decoder(Owner)
_Topics = tuple[tuple[str, int], ...]


def key_parameters(key: ThreadKey, **more: Any) -> Parameters:
    return {"shard": key.shard, "tenant": key.tenant, "thread": key.thread, **more}


def rewritten_parameters(entries: Sequence[Entry]) -> Parameters:
    return {
        "seqs": [entry.seq for entry in entries],
        "kinds": [entry.kind for entry in entries],
        "base_seqs": [entry.base_seq for entry in entries],
        "roll_seqs": [entry.roll_seq for entry in entries],
        "payloads": [entry.payload for entry in entries],
        "notes": [escape(entry.note) for entry in entries],
    }


def oldest_parameters(oldest: Entry | None) -> Parameters:
    """The oldest entry as it was read, to be compared."""
    return {
        "oldest": oldest.seq if oldest else None,
        "oldest_id": id_to(oldest.id) if oldest else None,
        "oldest_payload": oldest.payload if oldest else None,
    }


def entry_parameters(entries: Sequence[Entry]) -> Parameters:
    """Whole rows, each with its parent and its origin."""
    return {
        **rewritten_parameters(entries),
        "steps": [entry.step for entry in entries],
        "times": [entry.created_at for entry in entries],
        "sources": [SOURCES[entry.source] for entry in entries],
        "ids": [id_to(entry.id) for entry in entries],
        "parents": [
            NO_ID if entry.parent_id is None else id_to(entry.parent_id) for entry in entries
        ],
        "origins": [origin_to(entry.run_id, entry.fingerprint) for entry in entries],
        "nodes": [names_to(entry.nodes) for entry in entries],
        "nexts": [names_to(entry.next) for entry in entries],
        "routes": [names_to(entry.route) for entry in entries],
    }


def entries_from(found: Sequence[Row]) -> list[Entry]:
    origins = {row[8]: origin_from(row[9]) for row in found if row[0] == ORIGIN}
    return [_entry_from(row, origins) for row in found if row[0] >= 0]


def _entry_from(row: Row, origins: Mapping[int, tuple[str, str]]) -> Entry:
    if row[5] not in _SOURCES or row[0] not in _KINDS or row[3] is None:
        raise _damaged("entries")
    run_id, fingerprint = origin_from(row[9]) if row[9] else origins[row[8]]
    return Entry(
        row[1],
        id_from(row[2]),
        None if row[3] == NO_ID else id_from(row[3]),
        row[4],
        _SOURCES[row[5]],
        names_from(row[6]),
        names_from(row[7]),
        run_id,
        fingerprint,
        row[10],
        row[0],
        row[11],
        row[12],
        row[13],
        names_from(row[14]),
        unescape(row[15]),
    )


def result_from(row: Row) -> TaskResult:
    return TaskResult(seq=row[4], task=unescape(row[6]), payload=row[13])


def record_from(key: ThreadKey, found: Sequence[Row]) -> RunRecord | None:
    texts = [row[15] for row in found if row[0] == RECORD]
    return run_from(key, tuple(msgspec.json.decode(texts[0]))) if texts else None


def run_from(key: ThreadKey, row: Row) -> RunRecord:
    if None in (*row[:6], row[7], *row[9:11]):
        raise _damaged("runs")
    try:
        metadata = _METADATA.decode(row[10])
    except msgspec.DecodeError:
        raise _damaged("runs.metadata") from None
    return RunRecord(
        run_id=unescape(row[0]),
        key=key,
        graph=unescape(row[1]),
        fingerprint=unescape(row[2]),
        mode=_known(row[3], _MODES, "runs.mode"),
        status=_known(row[4], _STATUSES, "runs.status"),
        retry_count=row[5],
        previous_run_id=None if row[6] is None else unescape(row[6]),
        started_at=row[7],
        ended_at=row[8],
        input_digest=unescape(row[9]),
        metadata={unescape(name): unescape(value) for name, value in metadata.items()},
        wake_at=row[11],
        owner=None if row[12] is None else owner_from(row[12], "runs.owner"),
    )


def owner_from(text: str, place: str) -> Owner:
    try:
        owner = _OWNER.decode(text)
    except msgspec.DecodeError:
        raise _damaged(place) from None
    return Owner(
        host=unescape(owner.host),
        boot_id=unescape(owner.boot_id),
        pid=owner.pid,
        started=unescape(owner.started),
    )


def info_from(tenant: str, row: Row) -> ThreadInfo:
    return ThreadInfo(
        key=ThreadKey(tenant, row[0]),
        status=_known(row[1], _STATUSES, "threads.status"),
        run_id=unescape(row[2]),
        graph=unescape(row[3]),
        started_at=row[4],
        ended_at=row[5],
        wake_at=row[6],
        questions=row[7],
        lane=unescape(row[8]),
        due_at=row[9],
        worker=unescape(row[10]),
        priority=-row[11],
        waiting_topics=() if row[12] is None else _topics_from(row[12]),
        limit_key="" if row[13] == NO_KEY else row[13],
    )


def _topics_from(stored: Any) -> _Topics:
    try:
        found = msgspec.convert(stored, _Topics)
    except msgspec.ValidationError:
        raise _damaged("threads.waiting_topics") from None
    return tuple((unescape(topic), seen) for topic, seen in found)


def sent_from(result: PGresult) -> tuple[int, bool, RunStatus, bool]:
    number, reused, status, is_due = (result.get_value(0, column) or b"" for column in range(4))
    known = _known(status.decode(), _STATUSES, "threads.status")
    return int.from_bytes(number), reused == b"\1", known, is_due == b"\1"


def _known(value: Any, known: frozenset[Any], place: str) -> Any:
    if value not in known:
        raise _damaged(place)
    return value


def _damaged(place: str) -> Corrupted:
    return Corrupted("a value that milecastle never writes", place=place)
