"""Courses: a run from its input to its end, through a crash or without one.

After a crash, and at interrupts, a course goes on as a careful user would:

- nothing is saved: ``invoke`` with the input;
- the run was cut short: ``invoke`` again with the same input, which goes on;
- the thread waits for answers: ``resume`` with all of them;
- the thread waits at an interrupt that asks nothing: ``resume``;
- the thread sleeps: time passes, and it is woken;
- the thread ended: there is nothing left to do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from milecastle.app.answering import NOTHING_GIVEN, Given
from milecastle.app.application import App
from milecastle.app.children import delete_with_children
from milecastle.app.clock import SystemClock
from milecastle.app.threads import log_codec_for
from milecastle.errors import InvalidRequest, MilecastleError, ResumeRefused
from milecastle.model.checkpoint import CheckpointMetadata, to_datetime
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing.clock import ManualClock
from milecastle.testing.crash_record import CourseRecord
from milecastle.testing.simulator import Crashed, CrashPoint, Simulator

__all__ = ["Answer", "Course", "Courses"]

S = TypeVar("S")

Answer = Callable[[Interrupt], Any]
"""What a person would answer; the same each time."""

_MOST_CALLS = 1000


class Course(msgspec.Struct, kw_only=True):
    """One course and what came of it.

    ``kinds`` are the effects that it reached. ``result`` is what the last call that did not crash
    returned. ``answered`` are the questions whose answers were acknowledged, ``asked_again`` those
    of them that were open later on. ``problem`` says why it did not come to an end.
    """

    thread: str | ThreadKey
    point: CrashPoint | None
    record: CourseRecord
    kinds: list[str]
    calls: int = 0
    crashed: bool = False
    result: Any = None
    answered: list[str] = []
    asked_again: list[str] = []
    problem: str = ""

    @property
    def kind(self) -> str:
        """The effect at which it was to crash."""
        effect = self.point.effect if self.point else 0
        return self.kinds[effect - 1] if 0 < effect <= len(self.kinds) else ""


class Courses(Generic[S]):
    """Runs courses of one app with one input, each in a thread of its own."""

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
    ) -> None:
        self._series = int.from_bytes(os.urandom(4))
        self._clock = ManualClock(SystemClock().now(), series=self._series)
        self.store: Store = app.store or MemoryStore()
        self.app = app.using(store=self.store, clock=self._clock, preserve=True)
        self._codec = log_codec_for(app.graph)
        self._input = self._codec.encode_state(app.graph.schema.read_input(input))
        self._thread = thread
        self._options = options
        self._config = config
        self._answer = answer
        self._seed = seed
        self._count = 0

    def run(self, point: CrashPoint | None, most_calls: int = _MOST_CALLS) -> Course:
        """Go all the way. What is raised is the course's problem, if it was to crash."""
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
        except Exception as error:
            if point is None:
                raise
            course.problem = f"it could not go on: {_describe(error)}"
        self._clock.advance((begun - self._clock.now()) / 1_000_000)  # all begin at one time
        return course

    def forget(self, course: Course) -> None:
        """Remove the threads of a course."""
        for head in self.app.history(course.thread, limit=1):
            delete_with_children(self.store, head.key)

    def _go_to_the_end(self, simulator: Simulator[S], course: Course, most_calls: int) -> None:
        while course.calls < most_calls:
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
            raise InvalidRequest(f"it did not come to an end in {most_calls} calls")

    def _call(
        self, simulator: Simulator[S], course: Course, head: CheckpointMetadata | None
    ) -> None:
        found = None if head is None else self.app.state(course.thread)
        asking = [each for each in found.interrupts if each.asks] if found else []
        if found is None or found.status not in ("interrupted", "sleeping"):
            try:
                # Decoded anew each time: a new process would share no values with the dead one.
                self._invoke(simulator, course, self._codec.decode_state(self._input))
                return
            except ResumeRefused:
                if found is None or not asking:
                    raise  # otherwise nothing is left to do but to answer
        course.asked_again += [each.id for each in asking if each.id in course.answered]
        if asking:
            answers = {each.id: self._answer_to(each) for each in asking}
            self._invoke_with_answers(simulator, course, found.key, answers)
            return
        if found.wake_at is not None and not found.interrupts:
            late = found.wake_at - to_datetime(self._clock.now())
            self._clock.advance(max(0.0, late.total_seconds()))
        self._invoke(simulator, course, None)

    def _invoke(
        self,
        simulator: Simulator[S],
        course: Course,
        input: Any,
        given: Given = NOTHING_GIVEN,
    ) -> None:
        course.result = simulator.invoke(
            input, course.thread, options=self._options, config=self._config, given=given
        )

    def _invoke_with_answers(
        self, simulator: Simulator[S], course: Course, key: ThreadKey, answers: dict[str, Any]
    ) -> None:
        acknowledged = course.record.acknowledged.get(key, {})
        before = len(acknowledged)
        try:
            self._invoke(simulator, course, None, Given(answers=answers))
        finally:
            if len(acknowledged) > before:
                course.answered += answers

    def _answer_to(self, found: Interrupt) -> Any:
        if self._answer is None:
            raise InvalidRequest(
                f"node '{found.node}' asks a question: say answer=, a function that is given the "
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
    """An error without anything that a user's code put into it."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, MilecastleError | AssertionError) else name
