"""Both ways to call an app, with answers, and what scenarios need besides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from milecastle import App, Command, Event, ExecutionError, Result, Store, ThreadKey
from milecastle.testing import Crashed, CrashPoint, ManualClock, Simulator
from tests.acceptance.running import Runner, Thread, made_async

KEY = ThreadKey("default", "t")

Paint = Callable[[Callable[..., Any]], Callable[..., Any]]


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same node."""
    return function


COLOURS: dict[str, Paint] = {"sync nodes": plain, "async nodes": made_async}


class Caller(Runner):
    """Calls an app from plain code or from an event loop; the thread is ``t`` unless given."""

    def invoke(
        self, app: App[Any], input: Any, thread: Thread | None = "t", **named: Any
    ) -> Result[Any]:
        return super().invoke(app, input, thread, **named)

    def resume(self, app: App[Any], thread: Thread = "t", **named: Any) -> Result[Any]:
        return super().resume(app, thread, **named)

    def stream(
        self,
        app: App[Any],
        input: Any,
        thread: Thread | None = "t",
        *,
        until: Callable[[Event], bool] = lambda event: False,
        **named: Any,
    ) -> list[Event]:
        return super().stream(app, input, thread, until=until, **named)

    def fails(self, app: App[Any], input: Any, thread: str = "t", **named: Any) -> ExecutionError:
        """What a run that must fail raised; without an input it is resumed."""
        try:
            if input is None:
                self.resume(app, thread, **named)
            else:
                self.invoke(app, input, thread, **named)
        except ExecutionError as error:
            return error
        raise AssertionError("the run did not fail")


class Calls:
    """Counts calls by name, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.made: list[Any] = []

    def __call__(self, name: Any) -> None:
        with self._lock:
            self.made.append(name)

    def count(self, name: Any) -> int:
        return self.made.count(name)


class Gauge:
    """How many are inside at once, and the most there ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1


def rows(store: Store, key: ThreadKey = KEY) -> set[str]:
    """The names of what tasks have left under the head of a thread."""
    chain = store.read(key)
    return {result.task for result in chain.results} if chain else set()


def crash_at(
    app: App[Any],
    input: Any,
    effect: int,
    *,
    thread: str = "t",
    seed: int = 0,
    answers: dict[str, Any] | None = None,
) -> str | None:
    """Let the process die after its n-th effect: which one it was; ``None`` if it ended before."""
    sim = Simulator(app, seed=seed, crashes=[CrashPoint(effect, "after")], clock=_Later())
    try:
        if input is None:
            sim.resume(thread, answers=answers)
        else:
            sim.invoke(input, thread)
    except Crashed as crash:
        return crash.kind
    return None


class _Dying(Simulator[Any]):
    """Dies as soon as a node has been started."""

    def after(self, kind: str, number: int) -> None:
        if kind in ("StartTasks", "RunTask"):
            raise Crashed(CrashPoint(number, "after"), kind)


def die_at_work(app: App[Any], input: Any, thread: str = "t") -> None:
    """Let the process die while its first node is at work."""
    try:
        _Dying(app, clock=_Later()).invoke(input, thread)
    except Crashed:
        return
    raise AssertionError("nothing was run")


class _Later(ManualClock):
    """A clock of today, so that records of real runs and of simulated ones are in order."""

    def __init__(self) -> None:
        from time import time_ns

        super().__init__(time_ns() // 1000, series=next(_series))


_series = iter(range(1, 1 << 30))


def ids(result: Result[Any]) -> dict[str, str]:
    """The ids of open questions, by question."""
    return {str(found.question): found.id for found in result.interrupts}


def questions(result: Result[Any]) -> list[Any]:
    return [found.question for found in result.interrupts]


def everything(app: App[Any], thread: str = "t") -> Any:
    """All that a thread shows of itself, to compare it with what it was."""
    head = app.state(thread)
    return list(app.history(thread)), head


def leftovers(before: Iterable[threading.Thread]) -> list[str]:
    """The threads of ours that were not there before and are not gone after a short while."""
    from time import monotonic, sleep

    known = set(before)
    end = monotonic() + 30
    left: list[threading.Thread] = []
    while monotonic() < end:
        left = [t for t in threading.enumerate() if t not in known and _is_ours(t)]
        if not left:
            return []
        sleep(0.005)
    return [thread.name for thread in left]


def _is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("milecastle") and "commit" not in thread.name


def of_state(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A node, router or predicate, so that a checker knows what its parameter is."""
    return function


def leading(goto: Any = (), update: Any = None) -> Command[Any]:
    """A command, of a type that a checker knows."""
    return Command(update=update, goto=goto)
