"""Starting a run: what ``invoke`` and ``resume`` find in the store decides what is run.

Rules:

- ``invoke`` on a thread whose run was cut short, with the same input, goes on from the last
  committed step: run a script again and it goes on.
- ``invoke`` on a thread that ended applies the input on top of its state, as a new run.
- A run that may still live is taken over: an entry of its own fences it out first.
- A thread whose state or next node does not fit this graph is refused, with what changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import msgspec
import msgspec.structs

from milecastle.app.environment import describe_environment
from milecastle.app.threads import Threads
from milecastle.engine.journal import Journal
from milecastle.engine.position import Position, fresh_position
from milecastle.errors import InvalidRequest, ResumeRefused
from milecastle.graph.comparison import compare
from milecastle.model.checkpoint import Entry, Source
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import Manifest
from milecastle.model.run import RunRecord
from milecastle.ports.store import Chain

__all__ = ["Start", "start_resumed", "start_with_input"]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How a run begins. ``waiting`` is the checkpoint of a thread that waits for a person."""

    position: Position
    run_id: str
    journal: Journal | None = None
    update: Mapping[str, Any] | None = None
    opening: Source | None = None
    note: str = ""
    waiting: Entry | None = None


def start_with_input(threads: Threads, key: ThreadKey, update: Mapping[str, Any]) -> Start:
    """Begin a run with an input, or go on with the one that this input had begun."""
    digest = _digest(threads, update)
    found = _look(threads, key)
    if found is None:
        record = _new_record(threads, key, previous=None, digest=digest)
        return _start(threads, fresh_position(threads.graph.schema), record, update=update)
    chain, previous = found
    entry = chain.entries[-1]
    if not entry.next and not entry.route:
        note = _check_fit(threads, key, entry)
        record = _new_record(threads, key, previous=None, digest=digest)
        return _start(threads, threads.restore(chain), record, update=update, note=note)
    if previous.input_digest != digest:
        raise InvalidRequest(
            f"thread '{key.thread}' has an unfinished run with another input ({previous.status}, "
            f"next: {', '.join(entry.next or entry.route)}): resume('{key.thread}') goes on with "
            "it, fork() leaves it aside, another thread starts anew"
        )
    if threads.status(key, entry) == "interrupted":
        _check_fit(threads, key, entry)
        return Start(position=threads.restore(chain), run_id=previous.run_id, waiting=entry)
    return _resumed(threads, key, chain, previous)


def _look(threads: Threads, key: ThreadKey) -> tuple[Chain, RunRecord] | None:
    """The head of a thread and the record of its run, as they were at one moment."""
    while (chain := threads.store.read(key)) is not None:
        entry = chain.entries[-1]
        record = threads.store.run(key, entry.run_id)
        if record is not None and not (record.status == "completed" and entry.next):
            return chain, record
        # Either the run ended between the two reads, or somebody went back to before its end.
        newest = next(threads.store.history(key, limit=1), None)
        if newest is not None and newest.seq == entry.seq:
            return chain, threads.record(key, entry)
    return None


def start_resumed(threads: Threads, key: ThreadKey) -> Start:
    """Go on from the head, whatever ended the run that left it there."""
    found = _look(threads, key)
    if found is None:
        raise ResumeRefused(key.thread, ["nothing is saved for it: start it with invoke()"])
    chain, previous = found
    entry = chain.entries[-1]
    if not entry.next and not entry.route:
        raise ResumeRefused(
            key.thread, ["it already ended: invoke() with a new input goes on from its state"]
        )
    return _resumed(threads, key, chain, previous)


def _resumed(threads: Threads, key: ThreadKey, chain: Chain, previous: RunRecord) -> Start:
    note = _check_fit(threads, key, chain.entries[-1])  # before decoding what may not fit
    position = threads.restore(chain)
    opening: Source | None = "takeover" if note or previous.status == "running" else None
    if previous.status in ("interrupted", "sleeping"):
        fingerprint = threads.graph.fingerprint
        record = msgspec.structs.replace(previous, fingerprint=fingerprint, status="running")
        return _start(threads, position, record, opening=opening, note=note)
    record = _new_record(threads, key, previous=previous, digest=previous.input_digest)
    start = _start(threads, position, record, opening=opening, note=note)
    if previous.status == "running" and start.journal:
        start.journal.supersede(previous)
    return start


def _start(
    threads: Threads,
    position: Position,
    record: RunRecord,
    *,
    update: Mapping[str, Any] | None = None,
    opening: Source | None = None,
    note: str = "",
) -> Start:
    journal = Journal(
        record=record,
        codec=threads.codec,
        clock=threads.clock,
        position=position,
        head=position.seq,
        rollup_after=threads.store.rollup_after,
        manifest=threads.graph.manifest.to_bytes(),
    )
    return Start(
        position=position,
        run_id=record.run_id,
        journal=journal,
        update=update,
        opening=opening,
        note=note,
    )


def _new_record(
    threads: Threads, key: ThreadKey, *, previous: RunRecord | None, digest: str
) -> RunRecord:
    return RunRecord(
        run_id=threads.clock.new_id(),
        key=key,
        graph=threads.graph.name,
        fingerprint=threads.graph.fingerprint,
        mode="incremental",
        status="running",
        retry_count=previous.retry_count + 1 if previous else 0,
        previous_run_id=previous.run_id if previous else None,
        started_at=threads.clock.now(),
        input_digest=digest,
        metadata=describe_environment(),
    )


def _check_fit(threads: Threads, key: ThreadKey, entry: Entry) -> str:
    """Refuse a thread that does not fit this graph; otherwise a note of what changed, or ''."""
    graph = threads.graph
    if entry.fingerprint == graph.fingerprint:
        return ""
    stored = threads.store.manifest(key, entry.fingerprint)
    if stored is None:
        raise ResumeRefused(key.thread, ["the graph changed and the old one is not on record"])
    difference = compare(Manifest.from_bytes(stored), graph.manifest)
    reasons = difference.reasons_against((*entry.next, *entry.route))
    if reasons:
        raise ResumeRefused(key.thread, reasons)
    return f"the graph changed: {difference.summary()}"


def _digest(threads: Threads, update: Mapping[str, Any]) -> str:
    """Tells two inputs apart; also refuses an input that cannot be stored."""
    channels = threads.graph.schema.channels
    body = threads.codec.encode_state({name: update[name] for name in channels if name in update})
    return f"{len(body)}-{zlib.crc32(body):08x}"
