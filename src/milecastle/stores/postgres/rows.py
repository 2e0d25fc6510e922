"""Entries, records, failures and results as parameters and as rows.

Reading is strict: a value that no writer of ours could have stored is ``Corrupted``, with the
column and never with the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, get_args

import msgspec

from milecastle.errors import Corrupted
from milecastle.model.checkpoint import Entry, Kind, Source, TaskResult
from milecastle.model.failure import Failure, FailureClass
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode, RunRecord, RunStatus, ThreadInfo
from milecastle.stores.postgres.text import escape, names_from, names_to, unescape

__all__ = [
    "RESULT",
    "Numbered",
    "Parameters",
    "Row",
    "batch_parameters",
    "entry_from",
    "entry_parameters",
    "failure_from",
    "info_from",
    "key_parameters",
    "result_from",
    "result_parameters",
    "rewritten_parameters",
    "run_from",
]

Parameters = dict[str, Any]
Numbered = tuple[Any, ...]
Row = tuple[Any, ...]

RESULT = -1
"""The kind that ``read.sql`` gives to results."""

_KINDS = frozenset(get_args(Kind))
_SOURCES = frozenset(get_args(Source))
_MODES = frozenset(get_args(Mode))
_STATUSES = frozenset(get_args(RunStatus))
_CLASSES = frozenset(get_args(FailureClass))
_METADATA = msgspec.json.Decoder(dict[str, str])


def key_parameters(key: ThreadKey, **more: Any) -> Parameters:
    """What finds a thread, and what else a statement asks for."""
    return {"shard": key.shard, "tenant": key.tenant, "thread": key.thread, **more}


def entry_parameters(key: ThreadKey, head: int, entry: Entry) -> Numbered:
    """One entry on top of the head: the parameters of ``append.sql``, in its order."""
    parent_id = entry.parent_id
    return (
        key.shard,
        key.tenant,
        key.thread,
        head,
        entry.kind,
        entry.step,
        entry.base_seq,
        entry.roll_seq,
        entry.created_at,
        escape(entry.id),
        None if parent_id is None else escape(parent_id),
        escape(entry.run_id),
        escape(entry.fingerprint),
        entry.source,
        names_to(entry.nodes),
        names_to(entry.next),
        names_to(entry.route),
        escape(entry.note),
        entry.payload,
    )


def batch_parameters(
    entries: Sequence[Entry],
    runs: Iterable[RunRecord],
    failure: Failure | None,
    manifest: tuple[str, bytes] | None,
) -> Parameters:
    """Everything of a batch but its key, its head and its results."""
    records = {run.run_id: _run_to(run) for run in runs}
    fingerprint, body = manifest or (None, None)
    return {
        "count": len(entries),
        "kinds": [entry.kind for entry in entries],
        "steps": [entry.step for entry in entries],
        "base_seqs": [entry.base_seq for entry in entries],
        "roll_seqs": [entry.roll_seq for entry in entries],
        "created_ats": [entry.created_at for entry in entries],
        "ids": [escape(entry.id) for entry in entries],
        "parent_ids": [_optional(entry.parent_id) for entry in entries],
        "run_ids": [escape(entry.run_id) for entry in entries],
        "fingerprints": [escape(entry.fingerprint) for entry in entries],
        "sources": [entry.source for entry in entries],
        "nodess": [names_to(entry.nodes) for entry in entries],
        "nexts": [names_to(entry.next) for entry in entries],
        "routes": [names_to(entry.route) for entry in entries],
        "notes": [escape(entry.note) for entry in entries],
        "payloads": [entry.payload for entry in entries],
        "runs": _json(list(records.values())),
        "failures": _json([] if failure is None else [_failure_to(failure)]),
        "manifest_fingerprint": _optional(fingerprint),
        "manifest": body,
    }


def result_parameters(results: Sequence[TaskResult]) -> Parameters:
    """The results of a batch; of two with one name the later one."""
    kept = {result.task: result for result in results}
    return {
        "result_digests": [_digest(task) for task in kept],
        "result_seqs": [result.seq for result in kept.values()],
        "result_tasks": [escape(task) for task in kept],
        "result_payloads": [result.payload for result in kept.values()],
    }


def rewritten_parameters(entries: Sequence[Entry]) -> Parameters:
    """The snapshots that a pruning writes."""
    return {
        "seqs": [entry.seq for entry in entries],
        "kinds": [entry.kind for entry in entries],
        "base_seqs": [entry.base_seq for entry in entries],
        "roll_seqs": [entry.roll_seq for entry in entries],
        "payloads": [entry.payload for entry in entries],
    }


def entry_from(row: Row) -> Entry:
    """An entry as it was committed."""
    return Entry(
        row[1],
        unescape(row[2]),
        None if row[3] is None else unescape(row[3]),
        row[4],
        _known(row[5], _SOURCES, "entries.source"),
        names_from(row[6]),
        names_from(row[7]),
        unescape(row[8]),
        unescape(row[9]),
        row[10],
        _known(row[0], _KINDS, "entries.kind"),
        row[11],
        row[12],
        row[13],
        names_from(row[14]),
        unescape(row[15]),
    )


def result_from(row: Row) -> TaskResult:
    """A result out of a row of a chain."""
    return TaskResult(seq=row[4], task=unescape(row[2]), payload=row[13])


def run_from(key: ThreadKey, row: Row) -> RunRecord:
    """A record as it was committed, with a dict of its own."""
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
    )


def failure_from(row: Row) -> Failure:
    """A failure as it was committed."""
    return Failure(
        run_id=unescape(row[0]),
        failure_class=_known(row[1], _CLASSES, "failures.failure_class"),
        resumable=row[2],
        error_type=unescape(row[3]),
        message=unescape(row[4]),
        traceback=names_from(row[5]),
        causes=names_from(row[6]),
        attempt=row[7],
        time=row[8],
        node=None if row[9] is None else unescape(row[9]),
    )


def info_from(tenant: str, row: Row) -> ThreadInfo:
    """A line in the list of threads."""
    return ThreadInfo(
        key=ThreadKey(tenant, row[0]),
        status=_known(row[1], _STATUSES, "threads.status"),
        run_id=unescape(row[2]),
        graph=unescape(row[3]),
        started_at=row[4],
        ended_at=row[5],
    )


def _run_to(run: RunRecord) -> Parameters:
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
        "metadata": _json(metadata),
    }


def _failure_to(failure: Failure) -> Parameters:
    return {
        "run_id": escape(failure.run_id),
        "failure_class": failure.failure_class,
        "resumable": failure.resumable,
        "error_type": escape(failure.error_type),
        "message": escape(failure.message),
        "traceback": names_to(failure.traceback),
        "causes": names_to(failure.causes),
        "attempt": failure.attempt,
        "time": failure.time,
        "node": _optional(failure.node),
    }


def _optional(text: str | None) -> str | None:
    return None if text is None else escape(text)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _digest(task: str) -> bytes:
    return blake2b(task.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _known(value: Any, known: frozenset[Any], place: str) -> Any:
    if value not in known:
        raise _damaged(place)
    return value


def _damaged(place: str) -> Corrupted:
    return Corrupted("a value that was never written", place=place)
