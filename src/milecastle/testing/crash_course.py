"""Courses: a run from its input to its end, through a crash or without one.

After a crash, and at interrupts, a course goes on as a careful user would:

- nothing is saved: ``invoke`` with the input;
- the run was cut short: ``invoke`` again with the same input, which goes on;
- the thread waits at an interrupt: ``resume``;
- the thread ended: there is nothing left to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from milecastle.app.application import App
from milecastle.app.clock import SystemClock
from milecastle.app.results import Result
from milecastle.app.threads import log_codec_for
from milecastle.errors import InvalidRequest, MilecastleError
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.ports.store import Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing.clock import ManualClock
from milecastle.testing.crash_record import CourseRecord
from milecastle.testing.simulator import Crashed, CrashPoint, Simulator

__all__ = ["Course", "Courses"]

S = TypeVar("S")

_MOST_CALLS = 1000


class Course(msgspec.Struct, kw_only=True):
    """One course and what came of it.

    ``kinds`` are the effects that it reached. ``result`` is what the last call that did not crash
    returned. ``problem`` says why it did not come to an end.
    """

    thread: str | ThreadKey
    point: CrashPoint | None
    record: CourseRecord
    kinds: list[str]
    calls: int = 0
    crashed: bool = False
    result: Any = None
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
        self._seed = seed
        self._count = 0

    def run(self, point: CrashPoint | None, most_calls: int = _MOST_CALLS) -> Course:
        """Go all the way. What is raised is the course's problem, if it was to crash."""
        record = CourseRecord(self.app.graph.schema, self._codec, watching=point is None)
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
        try:
            self._go_to_the_end(simulator, course, most_calls)
        except Exception as error:
            if point is None:
                raise
            course.problem = f"it could not go on: {_describe(error)}"
        return course

    def forget(self, course: Course) -> None:
        """Remove the thread of a course."""
        for head in self.app.history(course.thread, limit=1):
            self.store.delete(head.key)

    def _go_to_the_end(self, simulator: Simulator[S], course: Course, most_calls: int) -> None:
        while course.calls < most_calls:
            head = next(self.app.history(course.thread, limit=1), None)
            if head is not None and not head.next:
                return
            course.calls += 1
            try:
                course.result = self._call(simulator, course.thread, head)
            except Crashed:
                course.crashed = True
        head = next(self.app.history(course.thread, limit=1), None)
        if head is None or head.next:
            raise InvalidRequest(f"it did not come to an end in {most_calls} calls")

    def _call(
        self, simulator: Simulator[S], thread: str | ThreadKey, head: CheckpointMetadata | None
    ) -> Result[S]:
        waits = head is not None and self.app.state(thread).status == "interrupted"
        # Decoded anew each time: a new process would not share values with the one that died.
        given = None if waits else self._codec.decode_state(self._input)
        return simulator.invoke(given, thread, options=self._options, config=self._config)

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
