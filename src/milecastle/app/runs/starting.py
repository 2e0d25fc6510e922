"""Starting a run: the plan for ``invoke`` and ``resume``, given the thread in the store.

Rules:

- ``invoke`` with the same input on a thread with an unfinished run resumes from the last committed
  step: run a script again and it continues.
- ``invoke`` with the input that completed the thread returns that run's result without running
  anything. Any other input, or ``again``, is applied on top of its state, as a new run.
- A key identifies one run of the thread, followed through its retries, for as long as its record
  exists, whatever came after it. It is compared again by the commit that starts or enqueues a run.
- A run whose process is known to be alive is not taken over (``RunInProgress``), unless the call
  sets ``take_over``. Any other is taken over: an entry fences it out first.
- A thread whose state or next node does not match this graph is refused, with the changes. One of
  a graph with another name is not handed over to workers, even if it matches, and its run is never
  discarded.
- An input enqueued behind a run starts when that has completed, on its state, or was
  cancelled, on the state before its input. Behind a failed run it waits for the retry.
  No other input starts before it, unless the call sets ``discard`` or ``take_over``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec
import msgspec.structs

from milecastle.app.environment import describe_environment
from milecastle.app.runs.answering import (
    NOTHING_GIVEN,
    Given,
    match_answers,
    refuse_timed_out,
    refuse_unasked,
    refuse_without_answer,
)
from milecastle.app.runs.calls import Call
from milecastle.app.runs.cancelling import cancel_run, settle
from milecastle.app.runs.ownership import current_owner, is_served, refuse_busy
from milecastle.app.runs.spawning import is_orphaned
from milecastle.app.threads.answers import answers_of
from milecastle.app.threads.children import child_key
from milecastle.app.threads.closing import before_input
from milecastle.app.threads.log import Threads, interrupts_at, recorded
from milecastle.app.threads.messages import (
    arrived_waits,
    look,
    require_mailbox,
    send_message,
    still_unread,
)
from milecastle.app.threads.migrating import BroughtOver, bring_over
from milecastle.app.threads.tagging import change_tags
from milecastle.codec.deltas import Operations
from milecastle.codec.envelope import PayloadPlace
from milecastle.drivers.observing import Observers
from milecastle.engine.assignment import LOST
from milecastle.engine.effects import Begin
from milecastle.engine.journal import Encoded, Journal
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.position import Position, fresh_position
from milecastle.engine.records import attempts_at
from milecastle.engine.renaming import task_renamed
from milecastle.engine.reserved_channels import CONFIG
from milecastle.engine.status import NOTHING, thread_info, waits_at
from milecastle.engine.waiting import has_work, open_interrupts, passed_deadlines
from milecastle.errors import Conflict, InvalidRequest, ResumeRefused, RunInProgress, ThreadNotFound
from milecastle.graph.comparison import Renames
from milecastle.model.checkpoint import Entry, Source, to_datetime
from milecastle.model.children import PARENT, has_ended, inherited
from milecastle.model.keys import SUBGRAPH, ThreadKey, refuse_subgraph
from milecastle.model.limit_key import LIMIT_KEY
from milecastle.model.manifest import START
from milecastle.model.reducers import LAST, SET
from milecastle.model.run import ANSWERED, CARRIED, TRANSITIONS, RunRecord, Segment, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.claims import ClaimStore, waiting_inputs
from milecastle.ports.clock import Clock
from milecastle.ports.mailbox import INPUTS, NewRun, Sent
from milecastle.ports.store import Batch, Chain, Store

_KEY_MARK: Final = b"\xc1key:"
_ANSWER_MARK: Final = b"\xc1answer:"
"""Prefixes of compared keys: no encoded input starts with this byte."""

_ANSWERS_KEPT: Final = 100
"""How many keys of a thread's answers are kept, in the record of its newest run."""


MakePlan = Callable[..., RunPlan]
"""Makes the plan of a run, with what the app and the call say of it."""


class Start(msgspec.Struct):
    """Decides what a call runs on a thread, and makes the plan for it.

    ``encoded`` is the input, if the entry starting the run may contain the same bytes.
    """

    threads: Threads
    key: ThreadKey
    call: Call
    make: MakePlan
    encoded: Encoded | None = None

    def with_input(self, update: Mapping[str, Any]) -> RunPlan:
        call, key = self.call, self.key
        found = self.threads.store.open(key)
        threads = self.threads
        if threads.encrypts:
            self.threads = threads = threads.for_thread(key, found.chain if found else None)
        config = self._stored_config
        digest, self.encoded = _digest(threads, update, call.key, config)
        if found is None:
            record = _new_record(threads, key, digest)
            if call.parent is not None:
                metadata = record.metadata | call.parent.metadata()
                record = msgspec.structs.replace(record, metadata=metadata)
            return self._plan(self._afresh(), record, update=update, config=config)
        chain, previous = found.chain, recorded(key, found)
        self._settle(previous)
        entry = chain.entries[-1]
        if call.if_exists == "keep":
            raise Conflict(tenant=key.tenant, thread=key.thread, expected=1, head=entry.seq)
        named = threads.store.find_run(key, digest) if call.names_run else None
        if named is not None and named.run_id != previous.run_id:
            return self._plan_named(chain, named)
        self._refuse_another_run(entry, previous)
        unless = digest if call.names_run else None
        if not entry.next and not entry.route:
            is_same = previous.status == "completed" and previous.input_digest == digest
            if is_same and not call.again:
                end = _end_of_run(threads, chain, previous) or chain
                return self._plan_completed(end, previous)
            if not (call.discards or call.takes_over):
                self._refuse_before_waiting_input(entry)
            over = bring_over(threads, key, chain)
            record = _following(previous, _new_record(threads, key, digest))
            return self._plan(over, record, update=update, unless=unless, config=config)
        is_over = previous.status in ("failed", "cancelled")
        if not call.retries and not call.again and is_over and previous.input_digest == digest:
            position = bring_over(threads, key, chain).position
            return self._ended(position, previous.run_id, rest_at(position, previous.status))
        if call.if_exists == "queue" and (call.again or previous.input_digest != digest):
            raise _taken_meanwhile(key, entry)
        if call.queues and previous.input_digest == digest:
            row = threads.store.thread(key)
            if is_served(previous, row):
                position = bring_over(threads, key, chain).position
                return self._ended(position, previous.run_id, rest_at(position, previous.status))
            if previous.status == "running" and row is not None and row.status != "running":
                raise _taken_meanwhile(key, entry)  # it stopped after its record was read
        if not call.takes_over:
            refuse_busy(threads.store, previous, entry.seq)
        if previous.input_digest != digest:
            if call.discards:
                record = _following(previous, _new_record(threads, key, digest))
                row = threads.store.thread(key) if PARENT in previous.metadata else None
                if row is not None and not has_ended(row):  # a child: its parent still waits
                    metadata = record.metadata | inherited(previous)
                    record = msgspec.structs.replace(record, metadata=metadata)
                return self._instead(chain, previous, update, record, unless, config)
            raise InvalidRequest(
                f"thread '{key.thread}' has an unfinished run with another input "
                f"({previous.status}, next: {', '.join(entry.next or entry.route)}): "
                f"resume('{key.thread}') continues it, invoke(..., discard=True) closes it and "
                "starts with this input"
            )
        over = bring_over(threads, key, chain)
        info = thread_info(entry, previous, waits_at(over.position.reserved))
        arrived, timed_out = self._ended_waits(over.position)
        if _is_waiting(info, threads.clock.now()) and not (arrived or timed_out):
            resting = rest_at(over.position, info.status, info.wake_at)
            return self._ended(over.position, previous.run_id, resting)
        if over.position.config is not None:
            config = None  # the run's own, which a resume may have replaced
        return self._resumed(over, previous, config=config)

    def resumed(self) -> RunPlan:
        call, key, given = self.call, self.key, self.call.given
        found = call.known or self.threads.store.open(key)
        if found is None:
            raise ThreadNotFound(
                tenant=key.tenant, thread=key.thread, advice="start it with invoke()"
            )
        chain, previous = found.chain, recorded(key, found)
        self._settle(previous)
        self.threads = threads = self.threads.for_thread(key, chain)
        if call.is_claimed and previous.status == "queued" and is_orphaned(threads.store, previous):
            cancel_run(threads.store, threads.unbound.codec, threads.clock, key, previous.run_id)
            position = threads.restore(chain)
            return self._ended(position, previous.run_id, rest_at(position, "cancelled"))
        entry = chain.entries[-1]
        has_ended = not entry.next and not entry.route
        if call.is_claimed and (has_ended or previous.status == "cancelled"):
            plan = self._waiting_input(chain, previous)
            if plan is not None:
                return plan
            if has_ended and threads.graph.schema.inboxes:
                return self._with_messages(chain, previous)
        digest, config = _answer_digest(threads, given), self._stored_config
        if digest and ANSWERED + digest in previous.metadata:
            position = bring_over(threads, key, chain, accept=call.accept_changes).position
            info = thread_info(entry, previous, waits_at(position.reserved))
            if call.queues or has_ended or info.status in ("interrupted", "sleeping"):
                resting = rest_at(position, info.status, info.wake_at)
                return self._ended(position, previous.run_id, resting)
            if info.status == "cancelled":
                why = f"run {previous.run_id}, which was given the answer with this key, was"
                advice = f"resume('{key.thread}') without the key continues it"
                raise ResumeRefused(key.thread, [f"{why} cancelled: {advice}"])
            given, digest, config = NOTHING_GIVEN, "", None  # it continues what that answer began
        if has_ended:
            if given:
                refuse_timed_out(key.thread, given, answers_of(threads, key))
            raise ResumeRefused(
                key.thread,
                ["it has already ended: invoke() with a new input continues from its state"],
            )
        if not call.takes_over:
            try:
                refuse_busy(threads.store, previous, entry.seq)
            except RunInProgress:
                refuse_unasked(key.thread, threads.restore(chain), given)
                raise
        over = bring_over(threads, key, chain, accept=call.accept_changes)
        if call.assignment is not None and call.assignment.is_retaken and not over.note:
            over = msgspec.structs.replace(over, note=LOST)
        return self._resumed(over, previous, given, digest, config)

    def _settle(self, previous: RunRecord) -> None:
        hooks = self.threads.graph.hooks
        if hooks or PARENT in previous.metadata or previous.status == "cancelled":
            settle_thread(self.threads.unbound, self.key)

    def child(self, update: Mapping[str, Any]) -> RunPlan:
        key = self.key
        found = self.threads.store.open(key)
        self.threads = threads = self.threads.for_thread(key, found.chain if found else None)
        if found is None:
            return self._plan(self._afresh(), _new_record(threads, key, ""), update=update)
        chain, previous = found.chain, recorded(key, found)
        entry = chain.entries[-1]
        accept = self.call.accept_changes
        over = bring_over(threads, key, chain, accept=accept)  # or refused: it no longer matches
        position = over.position
        if not entry.next and not entry.route:
            return self._ended(position, previous.run_id, rest_at(position, "completed"))
        interrupts = open_interrupts(position.reserved, position.place)
        asked = {found.id for found in interrupts if found.asks}
        known = self.call.given.renamed(over.renames)
        given = Given(
            answers={id: found for id, found in (known.answers or {}).items() if id in asked},
            timed_out=known.timed_out,
        )
        try:
            return self._resumed(over, previous, given)
        except ResumeRefused:
            status = previous.status
            if status not in ("interrupted", "sleeping"):
                if not asked:
                    raise
                status = "interrupted"  # it was, and the remaining work waits for answers
            return self._ended(
                position, previous.run_id, rest_at(position, status, previous.wake_at)
            )

    def at(self, position: Position, note: str) -> RunPlan:
        name = self.key.thread
        if self.threads.store.head(self.key) is not None:
            raise InvalidRequest(
                f"thread '{name}' already has checkpoints: resume('{name}') continues it; to start "
                "from the file, use another thread"
            )
        unsaved = BroughtOver(Position(values=position.values), note)
        record = _new_record(self.threads, self.key, "")
        config = self._stored_config
        return self._plan(unsaved, record, opening="fork", at=position, config=config)

    @property
    def _stored_config(self) -> Any:
        return self.call.config if self.threads.graph.config_type is not None else None

    def _ended(self, position: Position, run_id: str, ended: Ending) -> RunPlan:
        return self.make(position=position, run_id=run_id, ended=ended)

    def _afresh(self) -> BroughtOver:
        return BroughtOver(Position(values=self.threads.graph.schema.initial()))

    def _refuse_before_waiting_input(self, head: Entry) -> None:
        store = self.threads.store
        for one in waiting_inputs(store, self.key, 1):
            if self.call.if_exists == "queue":
                raise _taken_meanwhile(self.key, head)
            if (queued := store.run(self.key, one.mark)) is not None:
                refuse_busy(store, queued, head.seq)

    def _refuse_another_run(self, entry: Entry, previous: RunRecord) -> None:
        wanted, key, seq = self.call.instead_of, self.key, entry.seq
        is_it = previous.run_id == wanted and bool(entry.next or entry.route)
        if wanted is not None and not is_it:
            refuse_busy(self.threads.store, previous, seq)
            raise Conflict(tenant=key.tenant, thread=key.thread, expected=seq, head=seq)

    def _plan_completed(self, end: Chain, run: RunRecord) -> RunPlan:
        position = bring_over(self.threads, run.key, end).position
        return self._ended(position, run.run_id, rest_at(position, "completed"))

    def _plan_named(self, chain: Chain, named: RunRecord) -> RunPlan:
        key, head = self.key, chain.entries[-1].seq
        if self.call.queues:  # its caller looks again, and finds the run
            raise Conflict(tenant=key.tenant, thread=key.thread, expected=head + 1, head=head)
        refuse_busy(self.threads.store, named, head)
        what = f"run {named.run_id} of thread '{key.thread}', which has this key,"
        if named.status != "completed":
            raise InvalidRequest(
                f"{what} is {named.status}, and the thread has left it: use another key, or "
                "again=True for another run"
            )
        end = _end_of_run(self.threads, chain, named)
        if end is None:
            raise InvalidRequest(
                f"{what} has completed, and its checkpoints were pruned: state('{key.thread}') is "
                "the thread's state now"
            )
        return self._plan_completed(end, named)

    def _waiting_input(self, chain: Chain, previous: RunRecord) -> RunPlan | None:
        threads, key = self.threads, self.key
        waiting = waiting_inputs(threads.store, key, 1)
        record = threads.store.run(key, waiting[0].mark) if waiting else None
        if record is None:
            return None
        codec = threads.codec.for_thread(key)
        update = codec.decode_state(codec.unseal(waiting[0].payload, _input_place(record.run_id)))
        config = update.pop(CONFIG, None)
        channels = threads.graph.manifest.channels
        renamed = {old: one.name for one in channels for old in one.renamed_from or ()}
        for old in update.keys() & renamed.keys() - threads.graph.schema.channels.keys():
            update[renamed[old]] = update.pop(old)
        record = msgspec.structs.replace(
            _following(previous, record),
            status="running",
            fingerprint=threads.graph.fingerprint,
            owner=current_owner(),
        )
        if previous.status == "cancelled":
            plan = self._instead(chain, previous, update, record, config=config)
        else:
            over = bring_over(threads, key, chain)
            plan = self._plan(over, record, update=update, config=config)
        if plan.journal is not None:
            plan.journal.input = waiting[0].number
        return plan

    def _instead(
        self,
        chain: Chain,
        previous: RunRecord,
        update: Mapping[str, Any],
        record: RunRecord,
        unless: str | None = None,
        config: Any = None,
    ) -> RunPlan:
        """Start a run with another input, on the state before an unfinished run's input.

        The unfinished run is closed with the new one's first entry.
        """
        threads, head = self.threads, chain.entries[-1]
        threads.refuse_foreign(previous)
        base = before_input(threads.store, self.key, head)
        over = bring_over(threads, self.key, base) if base else self._afresh()
        over = msgspec.structs.replace(over, note=f"discards run {previous.run_id}")
        plan = self._plan(over, record, update=update, head=head, unless=unless, config=config)
        if plan.journal and TRANSITIONS[previous.status]:
            attempt = attempts_at(head.step, threads.restore(chain).results)
            plan.journal.supersede(previous, head.next, attempt)
        return plan

    def _resumed(
        self,
        over: BroughtOver,
        previous: RunRecord,
        given: Given = NOTHING_GIVEN,
        digest: str = "",
        config: Any = None,
    ) -> RunPlan:
        call, key, threads, position = self.call, self.key, self.threads, over.position
        if call.queues:  # workers would run it with the code of this graph
            threads.refuse_foreign(previous)
        given = given.renamed(over.renames)
        answers, answered_by = match_answers(key.thread, position, given) if given else ({}, {})
        released = over.released if not answers else ()
        arrived, timed_out = self._ended_waits(position, given, answers)
        is_unsafe = previous.status == "running" or (
            previous.status == "queued" and not call.is_claimed  # a worker may have begun with it
        )
        if not (answers or released or arrived or timed_out):
            if not call.is_claimed:  # then the store has compared the time with its own clock
                _refuse_sleeping(threads, key, previous, position)
            elif (resting := self._still_waits(over, previous)) is not None:
                return resting
            waits = waits_at(position.reserved)
            is_started = previous.status in ("queued", "failed") and call.is_claimed
            is_cut_short = previous.status == "running" or is_started
            if not is_cut_short or not (waits.topics or waits.deadlines):
                # otherwise it stops again: its index row says for what it waits
                refuse_without_answer(key.thread, threads.graph, position, threads.clock.now())
        opening: Source | None = "takeover" if over.note or is_unsafe else None
        opening = "answer" if answers or timed_out else opening
        if over.changed:
            opening = "update"
        if call.queues or config is not None:
            opening = opening or "takeover"
        how: dict[str, Any] = {"opening": opening, "answers": answers, "released": released}
        how |= {"arrived": arrived, "timed_out": timed_out, "config": config}
        how["answered_by"] = answered_by
        if previous.status in ("queued", "interrupted", "sleeping"):
            record = msgspec.structs.replace(
                previous,
                fingerprint=threads.graph.fingerprint,
                status="running",
                wake_at=None,
                owner=current_owner(),
                metadata=_with_answer(previous.metadata, digest),
            )
            return self._plan(over, record, **how)
        record = _new_record(threads, key, previous.input_digest, previous)
        metadata = _with_answer(_following(previous, record).metadata, digest)
        record = msgspec.structs.replace(record, metadata=metadata)
        was_running = previous.status == "running"
        plan = self._plan(over, record, fresh_attempts=not was_running, **how)
        if was_running and plan.journal:
            attempt = attempts_at(position.step, position.results)
            plan.journal.supersede(previous, position.next, attempt)
        return plan

    def _ended_waits(
        self,
        position: Position,
        given: Given = NOTHING_GIVEN,
        answers: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[frozenset[str], Mapping[str, int]]:
        """The waits a message has ended, and those whose deadlines have passed.

        A queued run leaves its deadlines to its worker. A subgraph's questions are answered
        in the root's log, and time out there, so one or the other is refused.
        """
        if waits_at(position.reserved) is NOTHING:
            return frozenset(), {}
        arrived = arrived_waits(self.threads.store, self.key, position)
        if self.call.queues:
            return arrived, {}
        reserved, now = position.reserved, self.threads.clock.now()
        passed = passed_deadlines(reserved, now, {*arrived, *answers})
        if (known := given.timed_out) is not None:
            ids = {found.id for found in open_interrupts(reserved, position.place)}
            place = f"{position.place}:"
            passed = {label: passed[label] for label in passed if place + label not in ids}
            passed |= {id.removeprefix(place): known[id] for id in known if id in ids}
        return arrived, passed

    def _still_waits(self, over: BroughtOver, previous: RunRecord) -> RunPlan | None:
        """Release a thread due for a message now gone; ``None`` if it has work."""
        threads, position, entry = self.threads, over.position, over.position.entry
        waits = waits_at(position.reserved)
        if not waits.topics or entry is None or over.changed or self.call.assignment is None:
            return None
        if previous.status not in ("sleeping", "interrupted"):
            return None
        if has_work(threads.graph, position, threads.clock.now()):
            return None
        return self._released(position, entry, thread_info(entry, previous, waits))

    def _with_messages(self, chain: Chain, previous: RunRecord) -> RunPlan:
        threads, key, inboxes = self.threads, self.key, self.threads.graph.schema.inboxes
        over, mailbox = bring_over(threads, key, chain), require_mailbox(threads.store)
        if any(mailbox.unread(key, topic=topic, limit=1) for topic in inboxes):
            record = _following(previous, _new_record(threads, key, ""))
            return self._plan(over, record, update={})
        entry = chain.entries[-1]
        info = thread_info(entry, previous, NOTHING, inboxes)
        return self._released(over.position, entry, info)

    def _released(self, position: Position, entry: Entry, info: ThreadInfo) -> RunPlan:
        assignment = self.call.assignment
        row = assignment.line(info, None) if assignment else info
        batch = Batch(key=self.key, head=entry.seq, head_id=entry.id, thread=row)
        self.threads.store.commit(batch)
        return self._ended(position, info.run_id, rest_at(position, info.status, info.wake_at))

    def _plan(
        self,
        over: BroughtOver,
        record: RunRecord,
        *,
        head: Entry | None = None,
        at: Position | None = None,
        unless: str | None = None,
        config: Any = None,
        **how: Any,
    ) -> RunPlan:
        """``head`` is the thread's newest entry, if not the one at the position.

        ``at`` is where the run starts, if its thread has no entry there. ``unless`` is a key's
        digest that no run in the thread has yet. ``config`` replaces the stored one.
        """
        threads, position = self.threads, over.position
        if self.call.limit_key is not None:
            record = _with_limit_key(record, self.call.limit_key)
        newest, codec = head or position.entry, threads.codec
        if threads.encrypts:
            codec = codec.for_thread(record.key, new=newest is None)
        journal = Journal(
            record=record,
            codec=codec,
            clock=threads.clock,
            position=position,
            head=newest.seq if newest else 0,
            head_id=newest.id if newest else None,
            rollup_after=threads.store.rollup_after,
            manifest=threads.manifest,
            assignment=self.call.assignment,
        )
        journal.unless = unless
        if SUBGRAPH not in record.key.thread:
            journal.inboxes = threads.graph.schema.inboxes
            if threads.graph.hooks:
                journal.notifies = threads.graph.notifies
        if config is not None:
            journal.configure(config)
        is_declared = threads.graph.config_type is not None
        if journal.config is not None and (is_declared or self.call.config is None):
            how["node_config"] = journal.config
        if over.changed:
            journal.restart()
        if (over.changed and not over.renames) or head:
            threads.close_children(record.key)
        how["look"] = partial(look, threads.store, codec, record.key)
        how["send"] = partial(_send_from, threads, record.key)
        plan = self.make(
            position=at or position,
            run_id=record.run_id,
            journal=journal,
            note=over.note,
            recall=partial(_rows, threads, journal),
            rewrites=over.changed and bool(over.renames),
            **how,
        )
        exits = threads.graph.exits.get(START)
        is_straight = plan.queues or (exits is not None and exits.straight is not None)
        if is_straight and not plan.has_readers:  # no router and no reader can change it
            journal.encoded = self.encoded
        return plan


def settle_thread(threads: Threads, key: ThreadKey) -> bool:
    """``settle`` with a completed run's state, and its graph's hooks."""

    def read_state() -> Any:
        position, _ = threads.existing(key)
        return threads.graph.schema.present(position.values)

    notify = partial(threads.notify, key)
    return settle(threads.store, threads.codec, threads.clock, key, read_state, notify)


def begin_child(threads: Threads | None, clock: Clock, effect: Begin) -> RunPlan:
    parent, subgraph = effect.parent, effect.subgraph
    graph, journal = subgraph.graph, parent.journal
    make = partial(
        RunPlan,
        graph=graph,
        clock=clock,
        config=graph.config.overridden(parent.options),
        options=parent.options,
        interval=subgraph.interval,
        node_config=parent.node_config,
        has_readers=parent.has_readers,
        feeding=parent.feeding,
        streaming=parent.streaming,
        accept_changes=parent.accept_changes,
        root=parent.root or parent.graph.fingerprint,
        path=(*parent.path, effect.node),
        parent=(parent.run_id, effect.task),
        memory=parent.memory,
    )
    update = graph.schema.start_input(effect.input)
    if threads is None or journal is None:
        position = fresh_position(graph.schema)
        return make(position=position, run_id=clock.new_id(), update=update)
    given = Given(answers=effect.answers, timed_out=effect.timed_out)
    call = Call(given=given, accept_changes=parent.accept_changes)
    key = _child_key(threads.store, journal.key, effect)
    return Start(threads.below(graph), key, call, make).child(update)


def _child_key(store: Store, parent: ThreadKey, effect: Begin) -> ThreadKey:
    """A subgraph's thread; one that began under its node's former name keeps it."""
    key = child_key(parent, effect.place, effect.task)
    former = effect.parent.graph.nodes[effect.node].policy.renamed_from
    if not former or store.head(key) is not None:
        return key
    for name in former:
        task = task_renamed(effect.task, Renames(nodes={effect.node: name}))
        found = child_key(parent, effect.place, task)
        if store.head(found) is not None:
            return found
    return key


def _taken_meanwhile(key: ThreadKey, head: Entry) -> Conflict:
    return Conflict(tenant=key.tenant, thread=key.thread, expected=1, head=head.seq)


def enqueue(
    threads: Threads,
    store: ClaimStore,
    key: ThreadKey,
    update: Mapping[str, Any],
    call: Call,
    observers: Observers,
) -> tuple[RunRecord, bool] | None:
    """Let an input wait behind a busy thread's runs; the run, and whether it was there before.

    A key naming a run finds it, without ``waits`` too. ``None`` if the thread is free, or its
    unfinished run has this input: then it is not to wait.
    """
    info = store.thread(key)
    if info is None:
        return None
    is_free = info.status == "completed" and info.due_at is None and not info.worker
    waits = call.if_exists == "queue" and not is_free
    if not waits and not call.names_run:
        return None
    threads = threads.for_thread(key, store.read(key)) if threads.encrypts else threads
    digest, _ = _digest(threads, update, call.key, call.config)
    current = store.run(key, info.run_id)
    known = None if call.again else current
    if call.names_run:
        known = store.find_run(key, digest)
    if known is not None and known.input_digest == digest:
        if known.run_id == info.run_id and info.status != "completed":
            return None
        if call.names_run:
            return known, True
    if not waits:
        return None
    threads.refuse_foreign(current)
    if call.limit_key not in (None, info.limit_key):
        raise InvalidRequest(
            f"an input that waits has the limit key of its thread, and thread '{key.thread}' has "
            "another one than keys= says: submit when its runs have ended"
        )
    head = store.head(key) if info.status == "cancelled" else None
    if head is not None:
        before_input(store, key, head)  # where the input would start, or refused
    return _wait_behind(threads, store, key, update, call, observers, digest)


def _wait_behind(
    threads: Threads,
    store: ClaimStore,
    key: ThreadKey,
    update: Mapping[str, Any],
    call: Call,
    observers: Observers,
    digest: str,
) -> tuple[RunRecord, bool]:
    record = msgspec.structs.replace(_new_record(threads, key, digest), status="queued", owner=None)
    same = None if call.again else store.find_run(key, digest)
    if same is not None:
        waiting = (store.run(key, one.mark) for one in waiting_inputs(store, key))
        known = next((run for run in waiting if run and run.input_digest == digest), None)
        if known is not None:
            return known, True
    config = {} if call.config is None else {CONFIG: call.config}
    body = threads.codec.encode_state({**config, **update})
    payload = threads.codec.for_thread(key).seal(body, _input_place(record.run_id))
    segment = Segment(run_id=record.run_id, graph=record.graph, key=key, queues=True)
    if call.tags:  # before the input: a caller that tries again finds the run, and then adds none
        change_tags(store, key, TagChange(add=call.tags))
    try:
        carried = _as_metadata(observers.begin_segment(segment))
        record = msgspec.structs.replace(record, metadata=record.metadata | carried)
        besides = same.run_id if same and not call.names_run else None
        run = NewRun(record=record, unless=None if call.again else digest, besides=besides)
        mailbox = require_mailbox(store)
        sent = mailbox.send(key, INPUTS, record.run_id, payload, record.graph, run)
    finally:
        observers.end_segment(segment.run_id)
    if not sent.number and not sent.reused:
        raise InvalidRequest(
            f"thread '{key.thread}' is not run by workers, so its inputs cannot wait for one: "
            "submit when its run has ended"
        )
    same = None if sent.number else store.find_run(key, digest)
    return (record, False) if same is None else (same, True)


def _input_place(run_id: str) -> PayloadPlace:
    return PayloadPlace(0, task=f"input {run_id}")


def _end_of_run(threads: Threads, chain: Chain, run: RunRecord) -> Chain | None:
    """The chain up to the entry with which a run completed, below later ones; ``None`` if pruned.

    ``chain`` is the head's.
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
    asleep = asleep or (info.wake_at is None and bool(info.waiting_topics))
    return info.status == "interrupted" or (info.status == "sleeping" and asleep)


def rest_at(position: Position, status: Any, wake_at: int | None = None) -> Ending:
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


def _answer_digest(threads: Threads, given: Given) -> str:
    if given.key is None:
        return ""
    return threads.codec.digest(_ANSWER_MARK + given.key.encode("utf-8", "surrogatepass"))


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


def _rows(threads: Threads, journal: Journal) -> Mapping[str, Mapping[str, Any]]:
    key, expected = journal.key, journal.head
    chain = threads.store.read(key)
    head = chain.entries[-1].seq if chain is not None else 0
    if chain is None or head != expected:
        raise Conflict(tenant=key.tenant, thread=key.thread, expected=expected + 1, head=head)
    return still_unread(threads.store, key, threads.restore(chain).results)


def _send_from(
    threads: Threads,
    sender: ThreadKey,
    thread: str,
    value: Any,
    topic: str,
    name: str,
    carried: Mapping[str, str],
) -> Sent:
    refuse_subgraph(thread)
    to = ThreadKey(sender.tenant, thread)
    by = sender.thread.partition(SUBGRAPH)[0]
    return send_message(threads.unbound, to, value, topic, by=by, task=name, carried=carried)


def _new_record(
    threads: Threads, key: ThreadKey, digest: str, previous: RunRecord | None = None
) -> RunRecord:
    metadata = describe_environment()
    if previous is not None:
        metadata = metadata | _as_metadata(previous.carried) | inherited(previous)
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
        metadata=metadata,
        owner=current_owner(),
    )


def _answers_of(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in metadata.items() if name.startswith(ANSWERED)}


def _following(previous: RunRecord, record: RunRecord) -> RunRecord:
    metadata = record.metadata | _answers_of(previous.metadata)
    if previous.limit_key:
        metadata[LIMIT_KEY] = previous.limit_key
    return msgspec.structs.replace(record, metadata=metadata)


def _with_limit_key(record: RunRecord, limit_key: str) -> RunRecord:
    metadata = {name: text for name, text in record.metadata.items() if name != LIMIT_KEY}
    own = {LIMIT_KEY: limit_key} if limit_key else {}
    return msgspec.structs.replace(record, metadata=metadata | own)


def _with_answer(metadata: Mapping[str, str], digest: str) -> dict[str, str]:
    if not digest:
        return dict(metadata)
    oldest = list(_answers_of(metadata))[: -_ANSWERS_KEPT + 1]
    kept = {name: text for name, text in metadata.items() if name not in oldest}
    return {**kept, ANSWERED + digest: ""}


def _as_metadata(carried: Mapping[str, str]) -> dict[str, str]:
    return {CARRIED + name: text for name, text in carried.items()}


def _digest(
    threads: Threads, update: Mapping[str, Any], key: str | None, config: Any
) -> tuple[str, Encoded | None]:
    """A digest that distinguishes inputs with their configs, or keys; and the encoded input.

    An input that cannot be stored is refused. It is to be encoded again if code of the user may
    change it before it is stored: a reducer, or the state's class.
    """
    schema, codec = threads.graph.schema, threads.codec
    operations: Operations = [] if config is None else [SET, CONFIG, config]
    is_final = not schema.is_guarded
    for name, channel in schema.channels.items():
        if name in update:
            operations += (SET, name, update[name])
            is_final = is_final and channel.reducer is LAST
    body = codec.encode(operations)
    encoded = (operations, body) if is_final else None
    if key is not None:
        body = _KEY_MARK + key.encode("utf-8", "surrogatepass")
    return codec.digest(body), encoded
