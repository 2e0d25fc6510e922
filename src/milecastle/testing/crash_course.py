"""Courses: a run from its input to its end, through a crash or without one.

After a crash, and at interrupts, a course continues as a careful user would:

- nothing is saved: ``invoke`` with the input;
- the run was cut short: ``invoke`` again with the same input, which resumes it;
- the thread waits for answers: ``resume`` with all of them, or at the deadline with none;
- the thread waits at an interrupt asking nothing: ``resume``;
- the thread sleeps: time passes, and it is woken;
- the thread ended: ``invoke`` again with the same input, as a script does that is run again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from milecastle.app.application import App
from milecastle.app.clock import SystemClock
from milecastle.app.runs.answering import UNANSWERED
from milecastle.app.threads.children import delete_with_children
from milecastle.app.threads.log import log_codec_for
from milecastle.app.threads.messages import require_mailbox
from milecastle.app.with_store import with_store
from milecastle.codec.deltas import LogCodec
from milecastle.engine.emissions import emission_offset
from milecastle.engine.tasks import outcome_row
from milecastle.errors import InvalidRequest, MilecastleError, ResumeRefused, UnserializableState
from milecastle.model.checkpoint import HOLDING, CheckpointMetadata, to_datetime
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.model.task import RunTask
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing.clock import ManualClock
from milecastle.testing.process import Crashed, CrashPoint
from milecastle.testing.simulator import Simulator

TaskRow = tuple[ThreadKey, str]
"""What a store keeps besides entries, by its name: ``2:task``, ``2?task/name``."""


def encode_or_none(codec: LogCodec, values: dict[str, Any]) -> bytes | None:
    try:
        return codec.encode_state(values)
    except UnserializableState:
        return None


class CourseRecord:
    """A witness of a simulation. It outlives the crash, as a person at the screen does.

    ``acknowledged`` holds, for each thread, the id of the first entry of each seq the store
    said is durable. ``wasted`` are tasks that ran although their result, or their step, was
    durable; ``unsaved`` are those whose result was not durable when the engine started to wait
    for others. ``done`` counts recorded work (``ctx.once``), by thread and row;
    ``repeated`` was done again although its record was durable. ``changed`` are nodes that
    changed a value of the state they were given; these are looked for when ``watching``.
    """

    def __init__(self, codec: LogCodec, *, watching: bool) -> None:
        self.runs: Counter[str] = Counter()
        self.acknowledged: dict[ThreadKey, dict[int, str]] = {}
        self.wasted: set[str] = set()
        self.unsaved: set[str] = set()
        self.done: Counter[TaskRow] = Counter()
        self.repeated: set[str] = set()
        self.changed: set[str] = set()
        self._codec = codec
        self._watching = watching
        self._kept: dict[ThreadKey, set[str]] = {}
        self._steps: dict[ThreadKey, int] = {}
        self._told: list[tuple[str, TaskRow]] = []
        self._given: tuple[dict[str, Any], bytes | None] = ({}, None)

    def starting(self, task: RunTask) -> None:
        self.runs[task.node] += 1
        if task.run.thread is not None and self._is_durable(_row(task, task.run.thread)):
            self.wasted.add(task.id)
        if self._watching:
            values = dict(task.state)
            self._given = values, encode_or_none(self._codec, values)

    def ended(self, task: RunTask) -> None:
        values, before = self._given
        if self._watching and encode_or_none(self._codec, values) != before:
            self.changed.add(task.node)

    def told(self, task: RunTask) -> None:
        if task.run.thread is not None:
            self._told.append((task.id, _row(task, task.run.thread)))

    def waiting(self) -> None:
        told, self._told = self._told, []
        self.unsaved.update(task for task, row in told if not self._is_durable(row))

    def recording(self, batch: Batch) -> None:
        for result in batch.results:
            if emission_offset(result.task) is not None:
                continue  # what a node emits is not done once
            self.done[batch.key, result.task] += 1
            if result.task in self._kept.get(batch.key, ()):
                self.repeated.add(result.task)

    def committed(self, batch: Batch) -> None:
        key = batch.key
        acknowledged = self.acknowledged.setdefault(key, {})
        kept = self._kept.setdefault(key, set())
        for entry in batch.entries:
            acknowledged.setdefault(entry.seq, entry.id)
            if entry.source not in HOLDING:
                kept.clear()
            self._steps[key] = entry.step  # an interrupt, too, saves the steps that were skipped
        kept.update(result.task for result in batch.results)

    def crashed(self) -> None:
        self._told = []

    def _is_durable(self, row: TaskRow) -> bool:
        key, name = row
        step = int(name.partition(":")[0])
        return name in self._kept.get(key, ()) or step <= self._steps.get(key, 0)


def _row(task: RunTask, key: ThreadKey) -> TaskRow:
    return key, outcome_row(task.step, task.id)


S = TypeVar("S")

Answer = Callable[[Interrupt], Any]
"""What a person would answer; the same each time."""

Sender = Callable[[tuple[str, ...]], Iterable[tuple[str, Any]]]
"""The messages that others would send to a thread that waits for these topics."""

_MOST_CALLS = 1000


class Course(msgspec.Struct, kw_only=True):
    """One course and its outcome.

    ``kinds`` are the effects it reached. ``result`` is from the last call that did not crash.
    ``answered`` are the questions whose answers were acknowledged, ``timed_out`` those that code
    ran without, ``asked_again`` those of both that were open later on. ``again`` is the call's
    result after the end, and ``worked_again`` how many effects it had. ``problem`` says why it did
    not come to an end. ``sent`` counts messages, and ``unread`` are those left in the end.
    ``woken`` counts the calls that only waited: a crash may part two deadlines that were one.
    """

    thread: str | ThreadKey
    point: CrashPoint | None
    record: CourseRecord
    kinds: list[str]
    calls: int = 0
    woken: int = 0
    crashed: bool = False
    result: Any = None
    again: Any = None
    worked_again: int = 0
    answered: list[str] = []
    timed_out: list[str] = []
    asked_again: list[str] = []
    problem: str = ""
    sent: int = 0
    unread: Sequence[tuple[str, Any]] = ()

    @property
    def kind(self) -> str:
        effect = self.point.effect if self.point else 0
        return self.kinds[effect - 1] if 0 < effect <= len(self.kinds) else ""


class Courses(Generic[S]):
    def __init__(
        self,
        app: App[S],
        input: S | Mapping[str, Any],
        *,
        thread: str | ThreadKey,
        options: ExecutionOptions | None,
        config: Any,
        answer: Answer | None,
        seed: int,
        send: Sender | None = None,
    ) -> None:
        self._series = int.from_bytes(os.urandom(4))
        self._clock = ManualClock(SystemClock().now(), series=self._series)
        self.store: Store = app.store if app.has_store else MemoryStore()
        self.app = with_store(app, self.store, clock=self._clock, preserve=True)
        self._codec = log_codec_for(app.graph)
        self._input = self._codec.encode_state(app.graph.schema.read_input(input))
        self._thread = thread
        self._options = options
        self._config = config
        self._answer = answer
        self._seed = seed
        self._send = send
        self._count = 0

    def run(self, point: CrashPoint | None, most_calls: int = _MOST_CALLS) -> Course:
        """Run to the end. An error is the course's problem, if it was to crash."""
        record = CourseRecord(self._codec, watching=point is None)
        simulator = Simulator(
            self.app,
            seed=self._seed,
            crashes=() if point is None else (point,),
            clock=self._clock,
            witness=record,
        )
        course = Course(
            thread=self._fresh_thread(), point=point, record=record, kinds=simulator.kinds
        )
        begun = self._clock.now()
        try:
            self._go_to_the_end(simulator, course, most_calls)
            self._call_again(simulator, course)
            if self._send is not None:
                found = self.app.mailbox(course.thread)
                course.unread = [(one.topic, one.value) for one in found]
        except Exception as error:
            if point is None:
                raise
            course.problem = f"it could not continue: {_describe(error)}"
        self._clock.advance((begun - self._clock.now()) / 1_000_000)  # all begin at one time
        return course

    def forget(self, course: Course) -> None:
        for head in self.app.history(course.thread, limit=1):
            delete_with_children(self.store, head.key)

    def _go_to_the_end(self, simulator: Simulator[S], course: Course, most_calls: int) -> None:
        while course.calls < min(most_calls + course.woken, _MOST_CALLS):
            head = next(self.app.history(course.thread, limit=1), None)
            if head is not None and not head.next:
                return
            course.calls += 1
            try:
                self._call(simulator, course, head)
            except Crashed:
                course.crashed = True
                course.record.crashed()
        head = next(self.app.history(course.thread, limit=1), None)
        if head is None or head.next:
            raise InvalidRequest(f"it did not finish in {course.calls} calls")

    def _call_again(self, simulator: Simulator[S], course: Course) -> None:
        before = len(simulator.kinds)
        course.again = simulator.invoke(
            self._codec.decode_state(self._input),
            course.thread,
            options=self._options,
            config=self._config,
        )
        course.worked_again = len(simulator.kinds) - before
        del simulator.kinds[before:]

    def _call(
        self, simulator: Simulator[S], course: Course, head: CheckpointMetadata | None
    ) -> None:
        found = None if head is None else self.app.state(course.thread)
        asking = [] if found is None else [each for each in found.interrupts if each.asks]
        course.asked_again += [each.id for each in asking if each.id in course.timed_out]
        if found is None or found.status not in ("interrupted", "sleeping"):
            try:
                # Decoded each time: a new process would share no values with the dead one.
                self._invoke(simulator, course, self._codec.decode_state(self._input))
                return
            except ResumeRefused:
                if found is None or not asking:
                    raise  # otherwise nothing is left to do but to answer
        course.asked_again += [each.id for each in asking if each.id in course.answered]
        answers = {each.id: self._answer_to(each) for each in asking}
        answers = {id: answer for id, answer in answers.items() if answer is not UNANSWERED}
        if answers:
            self._invoke_with_answers(simulator, course, found.key, answers)
            return
        if self._send is not None and self._send_awaited(found.key, course, self._send):
            pass
        elif found.wake_at is not None and (asking or not found.interrupts):
            late = found.wake_at - to_datetime(self._clock.now())
            self._clock.advance(max(0.0, late.total_seconds()))
            course.woken += 1
        before, now = len(simulator.kinds), to_datetime(self._clock.now())
        try:
            self._invoke(simulator, course, None)
        finally:
            if {"RunTask", "StartTasks"} & {*simulator.kinds[before:]}:
                course.timed_out += [each.id for each in asking if each.until and each.until <= now]

    def _send_awaited(self, key: ThreadKey, course: Course, send: Sender) -> bool:
        """Send what a thread waits for, unless it has come; ``False`` if there is nothing."""
        row, mailbox = self.store.thread(key), require_mailbox(self.store)
        waiting = row.waiting_topics if row else ()
        if any(mailbox.unread(key, topic=topic, after=seen, limit=1) for topic, seen in waiting):
            return True
        messages = list(send(tuple(topic for topic, _ in waiting))) if waiting else []
        for topic, value in messages:
            course.sent += 1
            for _ in range(2):
                self.app.send(key, value, topic, key=str(course.sent))
        return bool(messages)

    def _invoke(
        self,
        simulator: Simulator[S],
        course: Course,
        input: Any,
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        course.result = simulator.invoke(
            input, course.thread, options=self._options, config=self._config, answers=answers
        )

    def _invoke_with_answers(
        self, simulator: Simulator[S], course: Course, key: ThreadKey, answers: dict[str, Any]
    ) -> None:
        acknowledged = course.record.acknowledged.get(key, {})
        before = len(acknowledged)
        try:
            self._invoke(simulator, course, None, answers)
        finally:
            if len(acknowledged) > before:
                course.answered += answers

    def _answer_to(self, found: Interrupt) -> Any:
        if self._answer is None:
            raise InvalidRequest(
                f"node '{found.node}' asks a question: pass answer=, a function that takes the "
                "interrupt and returns the answer"
            )
        return self._answer(found)

    def _fresh_thread(self) -> str | ThreadKey:
        self._count += 1
        suffix = f"{self._series:08x}-{self._count}"
        if isinstance(self._thread, ThreadKey):
            return ThreadKey(self._thread.tenant, f"{self._thread.thread}-{suffix}")
        return f"{self._thread}-{suffix}"


def _describe(error: Exception) -> str:
    name = type(error).__name__
    if isinstance(error, MilecastleError):
        return f"{name}: {error.message} [{error.code}]"
    return f"{name}: {error}" if isinstance(error, AssertionError) else name
