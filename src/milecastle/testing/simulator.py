"""The simulator: a third driver, with virtual time, seeded choices and crashes.

Rules:

- One seed, one course: the seed decides which task in a step runs first, how many are done when the
  engine asks, how many are reported to it, and how much time has passed.
- A crash happens before an effect is performed, or after it and before the engine learns of it; a
  ``ctx.once`` record counts as an effect (kind ``Record``). Then the run is abandoned, tasks not
  handed back are lost, a ``Volatile`` store loses its memory, and the next call finds the same as a
  new process.
- Everything runs on the calling thread, async functions on a separate event loop. Several calls
  that ``walk`` may be taken in turns, as processes running at once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from random import Random
from typing import Any, Generic, TypeVar

from milecastle.app.application import App
from milecastle.app.portable.files import FilePath
from milecastle.app.results import Result
from milecastle.app.runs.answering import UNANSWERED, Given
from milecastle.app.runs.calls import Call
from milecastle.app.with_store import with_store
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.testing.clock import ManualClock
from milecastle.testing.faulty_stores import Volatile
from milecastle.testing.process import Crashed, CrashPoint, SimulatedProcess, When, Witness

S = TypeVar("S")


class Simulator(Generic[S]):
    """Calls an app the way a process would that may die at any moment.

    ``kinds`` lists the reached effects, by name. After ``Crashed`` call again: the
    next process has started.
    """

    def __init__(
        self,
        app: App[S],
        *,
        seed: int = 0,
        crashes: Iterable[CrashPoint] = (),
        clock: ManualClock | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self._store = app.store if app.has_store else None
        self.app = with_store(app, self._store, clock=self.clock)
        self.kinds: list[str] = []
        self._random = Random(seed)  # noqa: S311 - repeatable choices, no secrets
        self._crashes = frozenset(crashes)
        self._witness = witness

    def invoke(
        self,
        input: S | Mapping[str, Any] | None,
        thread: str | ThreadKey | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
        answer: Any = UNANSWERED,
        answers: Mapping[str, Any] | None = None,
        file: FilePath | None = None,
    ) -> Result[S]:
        """Like ``App.invoke``; ``Crashed`` if a crash was due."""
        walk = self.walk(
            input, thread, options=options, config=config, answer=answer, answers=answers, file=file
        )
        while True:
            try:
                next(walk)
            except StopIteration as stop:
                result: Result[S] = stop.value
                return result

    def resume(
        self,
        thread: str | ThreadKey,
        answer: Any = UNANSWERED,
        *,
        answers: Mapping[str, Any] | None = None,
        options: ExecutionOptions | None = None,
        config: Any = None,
    ) -> Result[S]:
        """Like ``App.resume``; ``Crashed`` if a crash was due."""
        return self.invoke(
            None, thread, options=options, config=config, answer=answer, answers=answers
        )

    def walk(
        self,
        input: S | Mapping[str, Any] | None,
        thread: str | ThreadKey | None = None,
        *,
        options: ExecutionOptions | None = None,
        config: Any = None,
        answer: Any = UNANSWERED,
        answers: Mapping[str, Any] | None = None,
        file: FilePath | None = None,
    ) -> Generator[str, None, Result[S]]:
        """``invoke``, one effect at a time. First it reads the thread."""
        call = Call(
            input=input,
            thread=thread,
            options=options,
            config=config,
            given=Given(answer=answer, answers=answers),
            file=file,
        )
        app = self.app
        planned = app.runner.begin(call)
        if isinstance(planned, Result):
            return planned
        yield "Look"
        process = SimulatedProcess(
            planned, random=self._random, clock=self.clock, gate=self, witness=self._witness
        )
        try:
            ending = yield from process.go()
        except Crashed:
            self._begin_anew()
            raise
        return app.runner.conclude(planned, ending)

    def before(self, kind: str) -> int:
        """Gate before an effect: count it, and crash if due."""
        self.kinds.append(kind)
        self._crash_if_due(len(self.kinds), "before")
        return len(self.kinds)

    def after(self, kind: str, number: int) -> None:
        """Gate after an effect. A record is inside the effect running its node."""
        self._crash_if_due(number, "after")

    def _crash_if_due(self, number: int, when: When) -> None:
        point = CrashPoint(number, when)
        if point in self._crashes:
            raise Crashed(point, self.kinds[number - 1])

    def _begin_anew(self) -> None:
        store: object = self._store
        if isinstance(store, Volatile):
            store.crash()
        self.app = with_store(self.app, self._store, clock=self.clock)
