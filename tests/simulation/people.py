"""People and processes of a simulation: who calls an app, with what, and what became of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator
from random import Random
from typing import Any

import msgspec

from milecastle.app.application import App
from milecastle.app.results import Result, Snapshot
from milecastle.app.runs.answering import NOTHING_GIVEN, Given
from milecastle.app.runs.calls import Call
from milecastle.engine.context import Context
from milecastle.errors import (
    AttemptsExhausted,
    Conflict,
    ExecutionError,
    InvalidAnswer,
    InvalidRequest,
    MilecastleError,
    ResumeRefused,
)
from milecastle.model.checkpoint import to_datetime
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.testing.clock import ManualClock
from milecastle.testing.process import Crashed, CrashPoint, SimulatedProcess
from tests.simulation.ledger import Ledger
from tests.simulation.random_graphs import World
from tests.simulation.random_shapes import INPUT, Shape, Tally
from tests.simulation.shaky_store import ShakyStore, Writer

__all__ = ["People", "place_of"]

_MOST_THREADS = 3
_MOST_CALLS = 200
_PLACE = re.compile(r"\d+\.(\d+):")


def place_of(found: Interrupt) -> str:
    """Where a question was asked, whatever the branch: ``2:w0a/0``."""
    return _PLACE.sub(r"\1:", found.id)


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Walker(msgspec.Struct, eq=False):
    """A process that is on its way."""

    writer: Writer
    thread: str
    walk: Generator[str, None, Any]
    is_over: bool = False
    error: Exception | None = None


class People:
    """Acts on the threads of one app, in ways that follow from random numbers."""

    def __init__(
        self,
        shape: Shape,
        app: App[Tally],
        store: ShakyStore,
        clock: ManualClock,
        world: World,
        random: Random,
    ) -> None:
        child = shape.child or shape
        self.app = app
        self.store = store
        self.threads = ["t0"]
        self.wrong: list[str] = store.wrong
        self.effects = self.crashes = self.conflicts = self.failures = 0
        self.answers = self.forks = self.updates = 0
        self.branched: set[str] = set()
        self.ledger = Ledger(store, (shape.interval, child.interval), self.wrong)
        self._clock = clock
        self._random = random
        self._walkers: list[Walker] = []
        self._deadly = random.choice((0.0, 0.01, 0.05))
        self._stack: list[Walker] = []
        world.on_doing = self._doing

    # ---- acting

    def act(self) -> None:
        """Let a process continue for a while, or do something else."""
        random = self._random
        if self._walkers and (len(self._walkers) > 1 or random.random() < 0.85):
            walker = random.choice(self._walkers)
            for _ in range(random.randint(1, 12)):
                if not walker.is_over:
                    self._advance(walker)
            return
        self._visit(random.choice(self.threads))

    def calm_down(self) -> None:
        """No more faults: active calls stop, then every thread is run to its end."""
        self.store.calm()
        self._deadly = 0.0
        while self._walkers:
            self._advance(self._random.choice(self._walkers))
        for thread in list(self.threads):
            self._finish(thread)

    def _finish(self, thread: str) -> None:
        for _ in range(_MOST_CALLS):
            found = self._look(thread)
            if found is not None and not found.next:
                return
            walker = self._go_on(thread, found)
            while not walker.is_over:
                self._advance(walker)
            if walker.error is not None and not self._may_fail(walker.error):
                kind = type(walker.error).__name__
                self.wrong.append(f"a thread could not continue ({kind}: {walker.error})")
                return
        self.wrong.append("a thread did not come to an end")

    def _may_fail(self, error: Exception) -> bool:
        """A node may have used its attempts up in crashes; then a person tries again."""
        cause: BaseException | None = error
        while isinstance(cause, ExecutionError):
            cause = cause.cause
        return isinstance(cause, AttemptsExhausted)

    def _look(self, thread: str) -> Snapshot[Tally] | None:
        writer, self.store.writer = self.store.writer, None
        try:
            known = ThreadKey("default", thread) in self.store.heads
            return self.app.state(thread) if known else None
        finally:
            self.store.writer = writer

    def _go_on(self, thread: str, found: Snapshot[Tally] | None) -> Walker:
        """What a careful user does."""
        if found is None:
            return self._start(thread, INPUT)
        asking = [each for each in found.interrupts if each.asks]
        if asking:
            return self._answer(thread, asking)
        if found.wake_at is not None and not found.interrupts:
            late = found.wake_at - to_datetime(self._clock.now())
            self._clock.advance(max(0.0, late.total_seconds()))
        return self._start(thread, None)

    def _visit(self, thread: str) -> None:
        """What people do who are not always careful."""
        random, found = self._random, self._look(thread)
        chance = random.random()
        if found is None:
            self._start(thread, INPUT)
        elif chance < 0.12:
            self._travel(thread, found)
        elif not found.next:
            if chance < 0.3:
                self._travel(thread, found)
        elif chance < 0.2:
            self._err(thread, found)
        elif chance < 0.5 and found.status not in ("interrupted", "sleeping"):
            self._start(thread, INPUT)
        else:
            asking = [each for each in found.interrupts if each.asks]
            if asking and random.random() < 0.5:
                self._answer(thread, random.sample(asking, random.randint(1, len(asking))))
            else:
                self._go_on(thread, found)

    def _answer(self, thread: str, asking: list[Interrupt]) -> Walker:
        answers: dict[str, int] = {}
        said: dict[str, int] = {}
        for each in asking:
            self.answers += 1
            answers[each.id] = said[place_of(each)] = self.answers
        return self._start(thread, None, Given(answers=answers), said)

    def _travel(self, thread: str, found: Snapshot[Tally]) -> None:
        """Fork the thread, here or elsewhere, or update it, at any checkpoint."""
        random = self._random
        at = random.randint(max(1, found.seq - 12), found.seq)
        act: Callable[[], Any]
        said: Any = None
        if random.randint(0, 1):
            said = {"notes": [f"update {self.updates}"], "n": self.updates}
            self.updates += 1

            def act() -> Any:
                return self.app.update_state(thread, said, at=at)

        elif len(self.threads) < _MOST_THREADS and random.randint(0, 1):
            self.forks += 1
            other = f"t{len(self.threads)}"
            self.threads.append(other)
            self.branched.add(other)

            def act() -> Any:
                return self.app.fork(thread, at, as_thread=other)

        else:
            self.forks += 1

            def act() -> Any:
                return self.app.fork(thread, at)

        self.branched.add(thread)
        self._by_hand(act, said)

    def _by_hand(self, act: Callable[[], Any], said: Any) -> None:
        outer, self.store.writer = self.store.writer, Writer(said)
        try:
            act()
        except MilecastleError:
            self.failures += 1
        finally:
            self.store.writer = outer

    def _err(self, thread: str, found: Snapshot[Tally]) -> None:
        """Answer wrongly, or wake a sleeper too early: it is refused and nothing changes."""
        heads = self.store.heads.copy()
        asking = [each for each in found.interrupts if each.asks]
        given = Given(answers={"1.1:nobody/0": 1})
        if asking:
            given = Given(answers={asking[0].id: "no number"})
        elif found.source == "sleep" and found.wake_at is not None:
            if found.wake_at <= to_datetime(self._clock.now()):
                return
            given = NOTHING_GIVEN
        outer, self.store.writer = self.store.writer, None
        try:
            self.app.runner.begin(Call(thread=thread, given=given))
            self.wrong.append("what should be refused was accepted")
        except (InvalidAnswer, ResumeRefused, InvalidRequest):
            if heads != self.store.heads:
                self.wrong.append("what was refused changed the thread")
        finally:
            self.store.writer = outer

    # ---- processes

    def _start(
        self, thread: str, input: Any, given: Given = NOTHING_GIVEN, said: Any = None
    ) -> Walker:
        writer = Writer(said)
        call = Call(input=input, thread=thread, given=given)
        walker = Walker(writer, thread, self._walk(call, writer))
        self._walkers.append(walker)
        self._advance(walker)
        return walker

    def _walk(self, call: Call, writer: Writer) -> Generator[str, None, Any]:
        planned = self.app.runner.begin(call)
        if isinstance(planned, Result):
            return planned
        witness = self.ledger.witness(writer)
        process = SimulatedProcess(
            planned, random=self._random, clock=self._clock, gate=self, witness=witness
        )
        yield "Begin"
        return self.app.runner.conclude(planned, (yield from process.go()))

    def _advance(self, walker: Walker) -> None:
        """One effect further."""
        outer, self.store.writer = self.store.writer, walker.writer
        self._stack.append(walker)
        try:
            next(walker.walk)
            return
        except StopIteration:
            pass
        except Crashed:
            self.crashes += 1
            self.store.crash()
        except Conflict:
            self.conflicts += 1
        except (MilecastleError, AssertionError) as error:
            self.failures += 1
            walker.error = error
            if isinstance(error, AssertionError):
                self.wrong.append(f"the engine went wrong: {error}")
        finally:
            self._stack.pop()
            self.store.writer = outer
        walker.is_over = True
        self._walkers.remove(walker)

    def before(self, kind: str) -> int:
        """The gate of every process: it may die here; inside a node, others may continue."""
        self.effects += 1
        self._die_perhaps(kind, "before")
        if kind == "Record":
            self._let_others_go_on()
        self._stack[-1].writer.in_node = kind == "Record"
        return self.effects

    def after(self, kind: str, number: int) -> None:
        """The gate after an effect."""
        if kind == "Record":
            self._stack[-1].writer.in_node = False
        self._die_perhaps(kind, "after")

    def _die_perhaps(self, kind: str, when: Any) -> None:
        if self._deadly and self._random.random() < self._deadly:
            raise Crashed(CrashPoint(self.effects, when), kind)

    def _let_others_go_on(self) -> None:
        """While a sync node is at work: other processes continue; on a loop they could not."""
        others = [walker for walker in self._walkers if walker not in self._stack]
        if others and len(self._stack) < 2 and self._random.randint(0, 1) and not _in_loop():
            other = self._random.choice(others)
            for _ in range(self._random.randint(1, 4)):
                if not other.is_over:
                    self._advance(other)

    def _doing(self, ctx: Context, name: str) -> None:
        self.ledger.doing(ctx, name)
