from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from milecastle.app.threads.archived import whole_history
from milecastle.app.threads.log import Threads
from milecastle.engine.reserved_channels import ANSWERED_BY, ANSWERS, BEGAN, TIMED_OUT
from milecastle.model.actor import Actor, AnswerRecord
from milecastle.model.checkpoint import HOLDING, Entry, to_datetime
from milecastle.model.keys import ThreadKey
from milecastle.model.reducers import SET


def answers_of(threads: Threads, key: ThreadKey) -> Iterator[AnswerRecord]:
    return answers_in(threads, key, reversed(list(whole_history(threads.store, key))))


def answers_in(
    threads: Threads, key: ThreadKey, entries: Iterable[Entry]
) -> Iterator[AnswerRecord]:
    """Answers and timeouts in some entries. Only entries that store some are decoded.

    An entry repeats the step's earlier answers: those it has not changed are left out.
    """
    settled, seen = 0, dict[str, Any]()
    for entry in entries:
        if entry.source in ("answer", "update"):  # an update: a graph change was accepted with it
            found = _reserved(threads, key, entry)
            began: list[Any] = found.get(BEGAN) or [settled]
            yield from _records(entry, f"{began[0]}.{entry.step + 1}", found, seen)
        if entry.source not in HOLDING:
            settled, seen = entry.seq, seen if entry.source == "update" else {}


def _reserved(threads: Threads, key: ThreadKey, entry: Entry) -> dict[str, Any]:
    chain = threads.store.read(key, entry.seq)
    if chain is None:
        return {}
    codec = threads.for_thread(key, chain).codec
    parts = codec.decode(codec.unseal_last(chain.entries))
    operations = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {name: value for code, name, value in operations if code == SET}


def _records(
    entry: Entry, place: str, found: dict[str, Any], seen: dict[str, Any]
) -> Iterator[AnswerRecord]:
    known: dict[str, list[Any]] = found.get(ANSWERED_BY) or {}
    for name in (ANSWERS, TIMED_OUT):
        values: dict[str, Any] = found.get(name) or {}
        for label, value in values.items():
            is_new = label in known and entry.source == "answer"
            if not is_new and label in seen and seen[label] == value:
                continue
            seen[label] = value
            who: list[Any] = known.get(label) or [None] * 4
            id, how, reason, digest, *more = who
            yield AnswerRecord(
                question=f"{place}:{label}",
                seq=entry.seq,
                time=to_datetime(entry.created_at),
                run_id=entry.run_id,
                answer=value if name == ANSWERS else None,
                by=None if id is None else Actor(id, how, reason, None, *more),
                digest=digest,
                timed_out=name == TIMED_OUT,
            )
