"""Starting a run: decides what to run from what ``invoke`` and ``resume`` find in the store.

Rules:

- ``invoke`` with the same input on a thread with an unfinished run resumes from the last committed
  step: run a script again and it continues.
- ``invoke`` with the input of the run that completed the thread returns that run's result without
  running anything. Any other input, or ``again``, is applied on top of its state, as a new run.
- A key identifies one run of the thread, followed through its retries, for as long as its record
  exists, whatever came after it. It is compared again by the commit that starts or enqueues a run.
- A run whose process is known to be alive is not taken over (``RunInProgress``), unless the call
  sets ``take_over``. Any other is taken over: an entry fences it out first.
- A thread whose state or next node does not match this graph is refused, with what changed. One of
  a graph with another name is not handed over to workers, even if it matches, and its run is never
  discarded.
- An input that was enqueued behind a run starts when that has completed, on its state, or was
  cancelled, on the state before its input. Behind a run that failed it waits until that is retried.
  No other input starts before it, unless the call sets ``discard`` or ``take_over``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import msgspec.structs

from milecastle.app.environment import describe_environment
from milecastle.app.runs.answering import (
    NOTHING_GIVEN,
    Given,
    match_answers,
    refuse_unasked,
    refuse_without_answer,
)
from milecastle.app.runs.ownership import current_owner, is_served, refuse_busy
from milecastle.app.threads.closing import before_input
from milecastle.app.threads.log import Threads, interrupts_at, recorded
from milecastle.app.threads.migrating import BroughtOver, bring_over
from milecastle.app.threads.tagging import change_tags
from milecastle.codec.envelope import PayloadPlace
from milecastle.drivers.observing import Observers
from milecastle.engine.assignment import LOST, Assignment
from milecastle.engine.journal import Journal
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.position import Position, fresh_position
from milecastle.engine.records import attempts_at
from milecastle.engine.status import thread_info, waits_at
from milecastle.engine.waiting import open_interrupts
from milecastle.errors import Conflict, InvalidRequest, ResumeRefused, RunInProgress, ThreadNotFound
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import Entry, Source, to_datetime
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ANSWERED, CARRIED, TRANSITIONS, RunRecord, Segment, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.claims import ClaimStore, waiting_inputs
from milecastle.ports.clock import Clock
from milecastle.ports.store import Chain, Opened

__all__ = [
    "DEFAULT_START",
    "StartPolicy",
    "enqueue",
    "plan_at",
    "rest_at",
    "start_at",
    "start_child",
    "start_resumed",
    "start_with_input",
]


_KEY_MARK: Final = b"\xc1key:"
_ANSWER_MARK: Final = b"\xc1answer:"
"""Prefixes of compared keys: no encoded input starts with this byte."""

_ANSWERS_KEPT: Final = 100
_ANSWERED_IN: Final = 20
"""How many keys of answers a run keeps, and in how many of a thread's runs they are looked for."""


class StartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a call treats earlier runs of the thread.

    ``key`` is compared instead of the input. ``again`` starts a new run although the newest one
    completed with this input. ``take_over`` takes the thread from a run that is in progress.
    ``discard`` closes an unfinished run of another input, and starts from before that input.
    ``instead_of`` limits this to one run: another one is not closed, and the call is refused.
    ``waits`` enqueues the input behind an unfinished run of another one.
    ``if_absent`` starts nothing on a thread that exists, whatever has become of its runs.
    ``tags`` are added to the thread by the commit that starts the run.
    ``assignment`` says that workers run the thread, and whether the caller is one of them.
    """

    key: str | None = None
    again: bool = False
    take_over: bool = False
    discard: bool = False
    instead_of: str | None = None
    waits: bool = False
    if_absent: bool = False
    tags: tuple[str, ...] = ()
    assignment: Assignment | None = None

    def __post_init__(self) -> None:
        if self.key == "":
            raise InvalidRequest("key= is empty: omit it to compare the input")

    @property
    def is_claimed(self) -> bool:
        """Whether the caller is a worker that has claimed the thread."""
        return self.assignment is not None and bool(self.assignment.worker)

    @property
    def queues(self) -> bool:
        """Whether the caller hands the run over to the workers."""
        return self.assignment is not None and not self.assignment.worker

    @property
    def names_run(self) -> bool:
        """Whether the key names a run, if there is one."""
        return self.key is not None and not self.again

    @property
    def looks_first(self) -> bool:
        """Whether the thread is looked at before a run is planned."""
        return self.waits or self.if_absent or self.names_run

    @property
    def compares(self) -> bool:
        """Whether they define how to compare an input with that of an earlier run."""
        return self.key is not None or self.again or self.discard


DEFAULT_START: Final = StartPolicy()


def plan_at(
    graph: CompiledGraph, clock: Clock, position: Position, run_id: str, **how: Any
) -> RunPlan:
    """The plan of a run that begins at a position, with the settings of the graph."""
    return RunPlan(
        graph=graph, config=graph.config, clock=clock, position=position, run_id=run_id, **how
    )


def _plan_ended(threads: Threads, position: Position, run_id: str, ended: Ending) -> RunPlan:
    """Nothing is to be run: the thread completed with this input, or waits."""
    return plan_at(threads.graph, threads.clock, position, run_id, ended=ended)


def start_with_input(
    threads: Threads, key: ThreadKey, update: Mapping[str, Any], policy: StartPolicy = DEFAULT_START
) -> RunPlan:
    """Start a run with an input, resume the run that this input started, or return its result."""
    found = _look(threads, key)
    threads = threads.for_thread(key, found[0] if found else None)
    digest = _digest(threads, update, policy.key)
    if found is None:
        record = _new_record(threads, key, previous=None, digest=digest)
        return _start(threads, _afresh(threads), record, policy, update=update)
    chain, previous = found
    entry = chain.entries[-1]
    if policy.if_absent:
        raise Conflict(tenant=key.tenant, thread=key.thread, expected=1, head=entry.seq)
    named = threads.store.find_run(key, digest) if policy.names_run else None
    if named is not None and named.run_id != previous.run_id:
        return _plan_named(threads, chain, named, policy)
    _refuse_another_run(threads, entry, previous, policy)
    unless = digest if policy.names_run else None
    if not entry.next and not entry.route:
        if previous.status == "completed" and previous.input_digest == digest and not policy.again:
            end = _end_of_run(threads, chain, previous) or chain
            return _plan_completed(threads, end, previous)
        if not (policy.discard or policy.take_over):
            _refuse_before_waiting_input(threads, key, entry, policy)
        over = bring_over(threads, key, chain)
        record = _new_record(threads, key, previous=None, digest=digest)
        return _start(threads, over, record, policy, update=update, unless=unless)
    if policy.waits and (policy.again or previous.input_digest != digest):
        raise _taken_meanwhile(key, entry)
    if policy.queues and previous.input_digest == digest and is_served(threads.store, previous):
        position = bring_over(threads, key, chain).position
        return _plan_ended(threads, position, previous.run_id, rest_at(position, previous.status))
    if not policy.take_over:
        refuse_busy(threads.store, previous, entry.seq)
    if previous.input_digest != digest:
        if policy.discard:
            record = _new_record(threads, key, previous=None, digest=digest)
            return _start_instead(threads, chain, previous, update, record, policy, unless)
        raise InvalidRequest(
            f"thread '{key.thread}' has an unfinished run with another input ({previous.status}, "
            f"next: {', '.join(entry.next or entry.route)}): resume('{key.thread}') continues it, "
            "invoke(..., discard=True) closes it and starts with this input"
        )
    over = bring_over(threads, key, chain)
    info = thread_info(entry, previous, waits_at(over.position.reserved))
    if _is_waiting(info, threads.clock.now()):
        resting = rest_at(over.position, info.status, info.wake_at)
        return _plan_ended(threads, over.position, previous.run_id, resting)
    return _resumed(threads, key, over, previous, policy=policy)


def _taken_meanwhile(key: ThreadKey, head: Entry) -> Conflict:
    """The thread was free when the caller looked, who looks again and enqueues."""
    return Conflict(tenant=key.tenant, thread=key.thread, expected=1, head=head.seq)


def _refuse_before_waiting_input(
    threads: Threads, key: ThreadKey, head: Entry, policy: StartPolicy
) -> None:
    """Refuse an input that would start before one that waits."""
    for one in waiting_inputs(threads.store, key, 1):
        if policy.waits:
            raise _taken_meanwhile(key, head)
        if (queued := threads.store.run(key, one.run_id)) is not None:
            refuse_busy(threads.store, queued, head.seq)


def _refuse_another_run(
    threads: Threads, entry: Entry, previous: RunRecord, policy: StartPolicy
) -> None:
    """Refuse a call that is to replace a run, if another one has the thread, or it has ended."""
    is_it = previous.run_id == policy.instead_of and bool(entry.next or entry.route)
    if policy.instead_of is not None and not is_it:
        refuse_busy(threads.store, previous, entry.seq)
        key, seq = previous.key, entry.seq
        raise Conflict(tenant=key.tenant, thread=key.thread, expected=seq, head=seq)


def _plan_completed(threads: Threads, end: Chain, run: RunRecord) -> RunPlan:
    """Nothing is to be run: the run completed at the end of this chain."""
    position = bring_over(threads, run.key, end).position
    return _plan_ended(threads, position, run.run_id, rest_at(position, "completed"))


def _plan_named(threads: Threads, chain: Chain, named: RunRecord, policy: StartPolicy) -> RunPlan:
    """Return the result of the run that a key names, which is not the one at the head."""
    key, head = named.key, chain.entries[-1].seq
    if policy.queues:  # its caller looks again, and finds the run
        raise Conflict(tenant=key.tenant, thread=key.thread, expected=head + 1, head=head)
    refuse_busy(threads.store, named, head)
    if named.status != "completed":
        raise InvalidRequest(
            f"run {named.run_id} of thread '{key.thread}', which has this key, is {named.status}, "
            "and the thread has left it: use another key, or again=True for another run"
        )
    end = _end_of_run(threads, chain, named)
    if end is None:
        raise InvalidRequest(
            f"run {named.run_id} of thread '{key.thread}', which has this key, has completed, and "
            f"its checkpoints were pruned: state('{key.thread}') is the thread's state now"
        )
    return _plan_completed(threads, end, named)


def enqueue(
    threads: Threads,
    store: ClaimStore,
    key: ThreadKey,
    update: Mapping[str, Any],
    policy: StartPolicy,
    observers: Observers,
) -> tuple[RunRecord, bool] | None:
    """Let an input wait behind the runs of a busy thread; the run, and whether it was there before.

    A key that names a run finds it, without ``waits`` too. ``None`` if the thread is free, or its
    unfinished run has this input: then it is not to wait.
    """
    info = store.thread(key)
    if info is None:
        return None
    is_free = info.status == "completed" and info.due_at is None and not info.worker
    waits = policy.waits and not is_free
    if not waits and not policy.names_run:
        return None
    threads = threads.for_thread(key, store.read(key)) if threads.encrypts else threads
    digest = _digest(threads, update, policy.key)
    current = store.run(key, info.run_id)
    known = None if policy.again else current
    if policy.names_run:
        known = store.find_run(key, digest)
    if known is not None and known.input_digest == digest:
        if known.run_id == info.run_id and info.status != "completed":
            return None
        if policy.names_run:
            return known, True
    if not waits:
        return None
    threads.refuse_foreign(current)
    head = store.head(key) if info.status == "cancelled" else None
    if head is not None:
        before_input(store, key, head)  # where the input would start, or refused
    return _wait_behind(threads, store, key, update, policy, observers, digest)


def _wait_behind(
    threads: Threads,
    store: ClaimStore,
    key: ThreadKey,
    update: Mapping[str, Any],
    policy: StartPolicy,
    observers: Observers,
    digest: str,
) -> tuple[RunRecord, bool]:
    """Write an input that waits, with the record of its run."""
    record = msgspec.structs.replace(
        _new_record(threads, key, previous=None, digest=digest), status="queued", owner=None
    )
    body = threads.codec.encode_state(dict(update))
    payload = threads.codec.for_thread(key).seal(body, _input_place(record.run_id))
    segment = Segment(run_id=record.run_id, graph=record.graph, key=key, queues=True)
    mark = record.run_id if policy.again else digest
    if policy.tags and not any(one.mark == mark for one in store.inputs(key)):
        # before the input: a caller that tries again finds the run, and then adds none
        change_tags(store, key, TagChange(add=policy.tags))
    try:
        carried = _as_metadata(observers.begin_segment(segment))
        record = msgspec.structs.replace(record, metadata=record.metadata | carried)
        unless = digest if policy.names_run else None
        run_id = store.enqueue(record, mark, payload, unless=unless)
    finally:
        observers.end_segment(segment.run_id)
    if run_id == record.run_id:
        return record, False
    return store.run(key, run_id) or msgspec.structs.replace(record, run_id=run_id), True


def _start_waiting(
    threads: Threads, key: ThreadKey, chain: Chain, previous: RunRecord, policy: StartPolicy
) -> RunPlan | None:
    """Start a run with the first waiting input of a thread; ``None`` if there is none."""
    waiting = waiting_inputs(threads.store, key, 1)
    record = threads.store.run(key, waiting[0].run_id) if waiting else None
    if record is None:
        return None
    codec = threads.codec.for_thread(key)
    update = codec.decode_state(codec.unseal(waiting[0].payload, _input_place(record.run_id)))
    channels = threads.graph.manifest.channels
    renamed = {old: one.name for one in channels for old in one.renamed_from or ()}
    for old in update.keys() & renamed.keys() - threads.graph.schema.channels.keys():
        update[renamed[old]] = update.pop(old)
    fingerprint, owner = threads.graph.fingerprint, current_owner()
    record = msgspec.structs.replace(record, status="running", fingerprint=fingerprint, owner=owner)
    if previous.status == "cancelled":
        plan = _start_instead(threads, chain, previous, update, record, policy)
    else:
        plan = _start(threads, bring_over(threads, key, chain), record, policy, update=update)
    if plan.journal is not None:
        plan.journal.dequeues = record.run_id
    return plan


def _input_place(run_id: str) -> PayloadPlace:
    return PayloadPlace(0, task=f"input {run_id}")


def _start_instead(
    threads: Threads,
    chain: Chain,
    previous: RunRecord,
    update: Mapping[str, Any],
    record: RunRecord,
    policy: StartPolicy,
    unless: str | None = None,
) -> RunPlan:
    """Start a run with another input, on the state before the input of an unfinished run.

    The unfinished run is closed with the first entry of the new one.
    """
    threads.refuse_foreign(previous)
    key, head = previous.key, chain.entries[-1]
    base = before_input(threads.store, key, head)
    over = bring_over(threads, key, base) if base else _afresh(threads)
    over = msgspec.structs.replace(over, note=f"discards run {previous.run_id}")
    start = _start(threads, over, record, policy, update=update, head=head, unless=unless)
    if start.journal and TRANSITIONS[previous.status]:
        attempt = attempts_at(head.step, threads.restore(chain).results)
        start.journal.supersede(previous, head.next, attempt)
    return start


def _end_of_run(threads: Threads, chain: Chain, run: RunRecord) -> Chain | None:
    """The chain of the entry with which a run completed, below later entries; ``None`` if pruned.

    ``chain`` is that of the head.
    """
    if _ends(chain.entries[-1], run):
        return chain
    ends = (entry for entry in threads.store.history(run.key) if _ends(entry, run))
    end = next(ends, None)
    return threads.store.read(run.key, end.seq) if end else None


def _ends(entry: Entry, run: RunRecord) -> bool:
    is_over = not (entry.next or entry.route) and entry.source not in ("update", "fork")
    return is_over and entry.run_id == run.run_id


def _is_waiting(info: ThreadInfo, now: int) -> bool:
    asleep = info.wake_at is not None and info.wake_at > now
    return info.status == "interrupted" or (info.status == "sleeping" and asleep)


def rest_at(position: Position, status: Any, wake_at: int | None = None) -> Ending:
    """How a thread stopped at its head."""
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
        reserved=position.reserved,
    )


def _look(
    threads: Threads, key: ThreadKey, known: Opened | None = None
) -> tuple[Chain, RunRecord] | None:
    """The head of a thread and the record of its run, as they were at one moment."""
    found = known or threads.store.open(key)
    return found and (found.chain, recorded(key, found))


def start_resumed(
    threads: Threads,
    key: ThreadKey,
    given: Given = NOTHING_GIVEN,
    *,
    accept: bool = False,
    policy: StartPolicy = DEFAULT_START,
    known: Opened | None = None,
) -> RunPlan:
    """Resume from the head, however the previous run ended.

    ``accept`` resumes although the state no longer matches the graph. ``known`` is what the store
    said of the thread after the caller claimed it.
    """
    found = _look(threads, key, known)
    if found is None:
        raise ThreadNotFound(tenant=key.tenant, thread=key.thread, advice="start it with invoke()")
    chain, previous = found
    threads = threads.for_thread(key, chain)
    entry = chain.entries[-1]
    has_ended = not entry.next and not entry.route
    if policy.is_claimed and (has_ended or previous.status == "cancelled"):
        start = _start_waiting(threads, key, chain, previous, policy)
        if start is not None:
            return start
    digest = _answer_digest(threads, given)
    if digest and _was_answered(threads, previous, digest):
        position = bring_over(threads, key, chain, accept=accept).position
        info = thread_info(entry, previous, waits_at(position.reserved))
        if policy.queues or has_ended or info.status in ("interrupted", "sleeping"):
            resting = rest_at(position, info.status, info.wake_at)
            return _plan_ended(threads, position, previous.run_id, resting)
        if info.status == "cancelled":
            why = f"run {previous.run_id}, which was given the answer with this key, was cancelled"
            advice = f"resume('{key.thread}') without the key continues it"
            raise ResumeRefused(key.thread, [f"{why}: {advice}"])
        given, digest = NOTHING_GIVEN, ""  # it continues what that answer has begun
    if has_ended:
        raise ResumeRefused(
            key.thread, ["it has already ended: invoke() with a new input continues from its state"]
        )
    if not policy.take_over:
        try:
            refuse_busy(threads.store, previous, entry.seq)
        except RunInProgress:
            refuse_unasked(key.thread, threads.restore(chain), given)
            raise
    over = bring_over(threads, key, chain, accept=accept)
    if policy.assignment is not None and policy.assignment.is_retaken and not over.note:
        over = msgspec.structs.replace(over, note=LOST)
    return _resumed(threads, key, over, previous, given, policy, digest)


def _answer_digest(threads: Threads, given: Given) -> str:
    """What the key of an answer is recorded as; empty without one."""
    if given.key is None:
        return ""
    return threads.codec.digest(_ANSWER_MARK + given.key.encode("utf-8", "surrogatepass"))


def _was_answered(threads: Threads, previous: RunRecord, digest: str) -> bool:
    """Whether one of the thread's last runs was given an answer with this key."""
    name = ANSWERED + digest
    if name in previous.metadata:
        return True
    return any(name in run.metadata for run in threads.store.runs(previous.key, limit=_ANSWERED_IN))


def start_at(threads: Threads, key: ThreadKey, position: Position, note: str) -> RunPlan:
    """Start a thread without checkpoints at a position from elsewhere."""
    record = _new_record(threads, key, previous=None, digest="")
    unsaved = Position(values=position.values)
    start = _start(threads, BroughtOver(unsaved, note), record, DEFAULT_START, opening="fork")
    return msgspec.structs.replace(start, position=position)


def _resumed(
    threads: Threads,
    key: ThreadKey,
    over: BroughtOver,
    previous: RunRecord,
    given: Given = NOTHING_GIVEN,
    policy: StartPolicy = DEFAULT_START,
    digest: str = "",
) -> RunPlan:
    """``digest`` is that of the answer's key."""
    if policy.queues:  # workers would run it with the code of this graph
        threads.refuse_foreign(previous)
    position = over.position
    answers = match_answers(key.thread, position, given.renamed(over.renames)) if given else {}
    released = over.released if not answers else ()
    if not answers and not released:
        if not policy.is_claimed:  # then the store has compared the time with its own clock
            _refuse_sleeping(threads, key, previous, position)
        refuse_without_answer(key.thread, threads.graph, position, threads.clock.now())
    is_unsafe = previous.status == "running" or (
        previous.status == "queued" and not policy.is_claimed  # a worker may have begun with it
    )
    opening: Source | None = "takeover" if over.note or is_unsafe else None
    opening = "answer" if answers else opening
    if over.changed:
        opening = "update"
    if policy.queues:
        opening = opening or "takeover"
    how: dict[str, Any] = {"opening": opening, "answers": answers, "released": released}
    if previous.status in ("queued", "interrupted", "sleeping"):
        fingerprint = threads.graph.fingerprint
        record = msgspec.structs.replace(
            previous,
            fingerprint=fingerprint,
            status="running",
            wake_at=None,
            owner=current_owner(),
            metadata=_with_answer(previous.metadata, digest),
        )
        return _start(threads, over, record, policy, **how)
    record = _new_record(threads, key, previous=previous, digest=previous.input_digest)
    metadata = _with_answer(record.metadata | _answers_of(previous.metadata), digest)
    record = msgspec.structs.replace(record, metadata=metadata)
    start = _start(threads, over, record, policy, **how)
    if previous.status == "running" and start.journal:
        attempt = attempts_at(position.step, position.results)
        start.journal.supersede(previous, position.next, attempt)
        return start
    return msgspec.structs.replace(start, fresh_attempts=True)


def _refuse_sleeping(
    threads: Threads, key: ThreadKey, record: RunRecord, position: Position
) -> None:
    if (
        record.status == "sleeping"
        and record.wake_at is not None
        and record.wake_at in waits_at(position.reserved).times  # or somebody went back before it
        and record.wake_at > threads.clock.now()
    ):
        until = to_datetime(record.wake_at).isoformat(timespec="seconds")
        raise ResumeRefused(key.thread, [f"it is sleeping until {until}"])


def start_child(
    threads: Threads,
    key: ThreadKey,
    update: Mapping[str, Any],
    answers: Mapping[str, Any],
    *,
    accept: bool = False,
) -> RunPlan:
    """Start or continue the run of a subgraph; its parent decides when."""
    found = _look(threads, key)
    threads = threads.for_thread(key, found[0] if found else None)
    if found is None:
        record = _new_record(threads, key, previous=None, digest="")
        return _start(threads, _afresh(threads), record, DEFAULT_START, update=update)
    chain, previous = found
    entry = chain.entries[-1]
    over = bring_over(threads, key, chain, accept=accept)  # or refused: it no longer matches
    position = over.position
    if not entry.next and not entry.route:
        resting = rest_at(position, "completed")
        return _plan_ended(threads, position, previous.run_id, resting)
    asked = {found.id for found in open_interrupts(position.reserved, position.place) if found.asks}
    known = Given(answers=answers).renamed(over.renames).answers or {}
    given = Given(answers={id: answer for id, answer in known.items() if id in asked})
    try:
        return _resumed(threads, key, over, previous, given)
    except ResumeRefused:
        status = previous.status
        if status not in ("interrupted", "sleeping"):
            if not asked:
                raise
            status = "interrupted"  # it was interrupted, and the remaining work waits for answers
        resting = rest_at(position, status, previous.wake_at)
        return _plan_ended(threads, position, previous.run_id, resting)


def _afresh(threads: Threads) -> BroughtOver:
    return BroughtOver(fresh_position(threads.graph.schema))


def _start(
    threads: Threads,
    over: BroughtOver,
    record: RunRecord,
    policy: StartPolicy,
    *,
    update: Mapping[str, Any] | None = None,
    opening: Source | None = None,
    answers: Mapping[str, Any] = {},
    released: tuple[str, ...] = (),
    head: Entry | None = None,
    unless: str | None = None,
) -> RunPlan:
    """``head`` is the thread's newest entry, if that is not the one at the position.

    ``unless`` is the digest of the key that no run of the thread has yet.
    """
    position = over.position
    newest = head or position.entry
    journal = Journal(
        record=record,
        codec=threads.codec.for_thread(record.key, new=newest is None),
        clock=threads.clock,
        position=position,
        head=newest.seq if newest else 0,
        head_id=newest.id if newest else None,
        rollup_after=threads.store.rollup_after,
        manifest=threads.graph.manifest.to_bytes(),
        assignment=policy.assignment,
    )
    journal.unless = unless
    if over.changed:
        journal.restart()
    if (over.changed and not over.renames) or head:
        threads.close_children(record.key)
    return plan_at(
        threads.graph,
        threads.clock,
        position,
        record.run_id,
        journal=journal,
        update=update,
        opening=opening,
        note=over.note,
        answers=answers,
        released=released,
        recall=lambda: _rows(threads, journal),
        queues=policy.queues,
        rewrites=bool(over.renames),
    )


def _rows(threads: Threads, journal: Journal) -> Mapping[str, Mapping[str, Any]]:
    """The results of finished tasks of the step.

    ``Conflict`` if another run owns the thread by now.
    """
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
        metadata=describe_environment() | _as_metadata(previous.carried if previous else {}),
        owner=current_owner(),
    )


def _answers_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """What says which answers a run was given, the newest last."""
    return {name: text for name, text in metadata.items() if name.startswith(ANSWERED)}


def _with_answer(metadata: Mapping[str, str], digest: str) -> dict[str, str]:
    """The metadata with the key of an answer, if it has one; only the newest are kept."""
    if not digest:
        return dict(metadata)
    oldest = list(_answers_of(metadata))[: -_ANSWERS_KEPT + 1]
    kept = {name: text for name, text in metadata.items() if name not in oldest}
    return {**kept, ANSWERED + digest: ""}


def _as_metadata(carried: Mapping[str, str]) -> dict[str, str]:
    """What observers store with a run, as its record has it."""
    return {CARRIED + name: text for name, text in carried.items()}


def _digest(threads: Threads, update: Mapping[str, Any], key: str | None) -> str:
    """A digest that distinguishes inputs or keys; refuses an input that cannot be stored."""
    channels = threads.graph.schema.channels
    body = threads.codec.encode_state({name: update[name] for name in channels if name in update})
    if key is not None:
        body = _KEY_MARK + key.encode("utf-8", "surrogatepass")
    return threads.codec.digest(body)
