"""Starting a run: what ``invoke`` and ``resume`` find in the store decides what is run.

Rules:

- ``invoke`` on a thread whose run was cut short, with the same input, goes on from the last
  committed step: run a script again and it goes on.
- ``invoke`` on a thread that ended applies the input on top of its state, as a new run.
- A run that may still live is taken over: an entry of its own fences it out first.
- A thread whose state or next node does not fit this graph is refused, with what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import msgspec.structs

from milecastle.app.answering import NOTHING_GIVEN, Given, match_answers, refuse_without_answer
from milecastle.app.environment import describe_environment
from milecastle.app.migrating import BroughtOver, bring_over
from milecastle.app.threads import Threads
from milecastle.engine.desk import open_interrupts
from milecastle.engine.hidden import SLEEPS
from milecastle.engine.journal import Journal
from milecastle.engine.plan import Ending
from milecastle.engine.position import Position, fresh_position
from milecastle.errors import Conflict, InvalidRequest, ResumeRefused
from milecastle.model.checkpoint import Entry, Source, to_datetime
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.store import Chain

__all__ = [
    "Start",
    "interrupts_at",
    "rest_at",
    "start_at",
    "start_child",
    "start_resumed",
    "start_with_input",
]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How a run begins.

    ``waiting`` is how a thread came to rest that waits for a person, or for a time, and goes on
    waiting. ``answers`` are new ones, by the labels of their questions.
    """

    position: Position
    run_id: str
    journal: Journal | None = None
    update: Mapping[str, Any] | None = None
    opening: Source | None = None
    note: str = ""
    waiting: Ending | None = None
    answers: Mapping[str, Any] = {}
    fresh_attempts: bool = False
    recall: Callable[[], Mapping[str, Mapping[str, Any]]] | None = None


def start_with_input(threads: Threads, key: ThreadKey, update: Mapping[str, Any]) -> Start:
    """Begin a run with an input, or go on with the one that this input had begun."""
    found = _look(threads, key)
    threads = threads.for_thread(key, found[0] if found else None)
    digest = _digest(threads, update)
    if found is None:
        record = _new_record(threads, key, previous=None, digest=digest)
        return _start(threads, _afresh(threads), record, update=update)
    chain, previous = found
    entry = chain.entries[-1]
    if not entry.next and not entry.route:
        over = bring_over(threads, key, chain)
        record = _new_record(threads, key, previous=None, digest=digest)
        return _start(threads, over, record, update=update)
    if previous.input_digest != digest:
        raise InvalidRequest(
            f"thread '{key.thread}' has an unfinished run with another input ({previous.status}, "
            f"next: {', '.join(entry.next or entry.route)}): resume('{key.thread}') goes on with "
            "it, fork() leaves it aside, another thread starts anew"
        )
    if _is_waiting(threads, key, entry, previous):
        position = bring_over(threads, key, chain).position
        waiting = rest_at(position, threads.status(key, entry), previous.wake_at)
        return Start(position=position, run_id=previous.run_id, waiting=waiting)
    return _resumed(threads, key, chain, previous)


def _is_waiting(threads: Threads, key: ThreadKey, entry: Entry, record: RunRecord) -> bool:
    status = threads.status(key, entry)
    asleep = record.wake_at is not None and record.wake_at > threads.clock.now()
    return status == "interrupted" or (status == "sleeping" and asleep)


def rest_at(position: Position, status: Any, wake_at: int | None = None) -> Ending:
    """How a thread came to rest at its head."""
    entry = position.entry
    return Ending(
        status=status,
        values=position.values,
        nodes=position.nodes,
        next=position.next,
        step=position.step,
        time=entry.created_at if entry else 0,
        interrupts=interrupts_at(position, status),
        wake_at=wake_at,
        hidden=position.hidden,
    )


def interrupts_at(position: Position, status: str) -> tuple[Interrupt, ...]:
    """What a thread waits for: its open questions, or else the nodes that it stopped at.

    Questions are open whatever became of the run: somebody may have gone back to them.
    """
    found = open_interrupts(position.hidden, position.place)
    if found or status != "interrupted":
        return found
    return tuple(Interrupt(id=f"{position.place}:{name}", node=name) for name in position.next)


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


def start_resumed(
    threads: Threads, key: ThreadKey, given: Given = NOTHING_GIVEN, *, accept: bool = False
) -> Start:
    """Go on from the head, whatever ended the run that left it there.

    ``accept`` goes on although the state does not fit the graph any more.
    """
    found = _look(threads, key)
    if found is None:
        raise ResumeRefused(key.thread, ["nothing is saved for it: start it with invoke()"])
    chain, previous = found
    threads = threads.for_thread(key, chain)
    entry = chain.entries[-1]
    if not entry.next and not entry.route:
        raise ResumeRefused(
            key.thread, ["it already ended: invoke() with a new input goes on from its state"]
        )
    return _resumed(threads, key, chain, previous, given, accept)


def start_at(threads: Threads, key: ThreadKey, position: Position, note: str) -> Start:
    """Begin a thread that has no checkpoints at a position that comes from elsewhere."""
    record = _new_record(threads, key, previous=None, digest="")
    unsaved = Position(values=position.values)
    start = _start(threads, BroughtOver(unsaved, note), record, opening="fork")
    return msgspec.structs.replace(start, position=position)


def _resumed(
    threads: Threads,
    key: ThreadKey,
    chain: Chain,
    previous: RunRecord,
    given: Given = NOTHING_GIVEN,
    accept: bool = False,
) -> Start:
    over = bring_over(threads, key, chain, accept=accept)
    position = over.position
    answers = match_answers(key.thread, position, given) if given else {}
    if not answers:
        _refuse_sleeping(threads, key, previous, position)
        refuse_without_answer(key.thread, threads.graph, position, threads.clock.now())
    opening: Source | None = "takeover" if over.note or previous.status == "running" else None
    opening = "answer" if answers else opening
    if over.changed:
        opening = "update"
    if previous.status in ("interrupted", "sleeping"):
        fingerprint = threads.graph.fingerprint
        record = msgspec.structs.replace(
            previous, fingerprint=fingerprint, status="running", wake_at=None
        )
        return _start(threads, over, record, opening=opening, answers=answers)
    record = _new_record(threads, key, previous=previous, digest=previous.input_digest)
    start = _start(threads, over, record, opening=opening, answers=answers)
    if previous.status == "running" and start.journal:
        start.journal.supersede(previous)
        return start
    return msgspec.structs.replace(start, fresh_attempts=True)


def _refuse_sleeping(
    threads: Threads, key: ThreadKey, record: RunRecord, position: Position
) -> None:
    if (
        record.status == "sleeping"
        and position.hidden.get(SLEEPS)  # not so if somebody went back to before the sleep
        and record.wake_at is not None
        and record.wake_at > threads.clock.now()
    ):
        until = to_datetime(record.wake_at).isoformat(timespec="seconds")
        raise ResumeRefused(key.thread, [f"it sleeps until {until}"])


def start_child(
    threads: Threads, key: ThreadKey, update: Mapping[str, Any], answers: Mapping[str, Any]
) -> Start:
    """Begin the run of a subgraph, or go on with it; its parent decides when."""
    found = _look(threads, key)
    threads = threads.for_thread(key, found[0] if found else None)
    if found is None:
        record = _new_record(threads, key, previous=None, digest="")
        return _start(threads, _afresh(threads), record, update=update)
    chain, previous = found
    entry = chain.entries[-1]
    position = threads.restore(chain)
    if not entry.next and not entry.route:
        ended = rest_at(position, "completed")
        return Start(position=position, run_id=previous.run_id, waiting=ended)
    position = bring_over(threads, key, chain).position  # or refused: it does not fit any more
    asked = {found.id for found in open_interrupts(position.hidden, position.place) if found.asks}
    given = Given(answers={id: answer for id, answer in answers.items() if id in asked})
    try:
        return _resumed(threads, key, chain, previous, given)
    except ResumeRefused:
        status = previous.status
        if status not in ("interrupted", "sleeping"):
            if not asked:
                raise
            status = "interrupted"  # it was cut short, and what is left to do waits for answers
        waiting = rest_at(position, status, previous.wake_at)
        return Start(position=position, run_id=previous.run_id, waiting=waiting)


def _afresh(threads: Threads) -> BroughtOver:
    return BroughtOver(fresh_position(threads.graph.schema))


def _start(
    threads: Threads,
    over: BroughtOver,
    record: RunRecord,
    *,
    update: Mapping[str, Any] | None = None,
    opening: Source | None = None,
    answers: Mapping[str, Any] = {},
) -> Start:
    position = over.position
    journal = Journal(
        record=record,
        codec=threads.codec.for_thread(record.key, new=position.entry is None),
        clock=threads.clock,
        position=position,
        head=position.seq,
        rollup_after=threads.store.rollup_after,
        manifest=threads.graph.manifest.to_bytes(),
    )
    if over.changed:
        journal.restart()
    return Start(
        position=position,
        run_id=record.run_id,
        journal=journal,
        update=update,
        opening=opening,
        note=over.note,
        answers=answers,
        recall=lambda: _rows(threads, journal),
    )


def _rows(threads: Threads, journal: Journal) -> Mapping[str, Mapping[str, Any]]:
    """What tasks of the step have left; ``Conflict`` if somebody else has the thread by now."""
    key, expected = journal.key, journal.head
    chain = threads.store.read(key)
    head = chain.entries[-1].seq if chain is not None else 0
    if chain is None or head != expected:
        raise Conflict(tenant=key.tenant, thread=key.thread, expected=expected + 1, head=head)
    return threads.restore(chain).results


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


def _digest(threads: Threads, update: Mapping[str, Any]) -> str:
    """Tells two inputs apart; also refuses an input that cannot be stored."""
    channels = threads.graph.schema.channels
    body = threads.codec.encode_state({name: update[name] for name in channels if name in update})
    return threads.codec.digest(body)
