"""What users may set: guards of runs, where they are stored, what a call overrides, retries."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest

__all__ = [
    "CancelEvent",
    "CheckpointConfig",
    "CycleDetection",
    "ExecutionConfig",
    "ExecutionOptions",
    "Retry",
    "SiblingFailure",
    "Timeout",
]

CycleDetection = bool | Literal["strict"]

SiblingFailure = Literal["finish", "cancel"]


class CancelEvent(Protocol):
    """Anything with ``is_set``: a ``threading.Event``, an ``asyncio.Event``, your own."""

    def is_set(self) -> bool:
        """Whether the run should stop."""
        ...


class ExecutionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one call sets. ``None`` leaves the graph's default in place, field by field.

    ``timeout`` is for the whole call, in seconds; ``cancel`` is looked at between two steps,
    and inside async nodes.
    """

    max_steps: int | None = None
    cycle_detection: CycleDetection | None = None
    cycle_window: int | None = None
    timeout: float | None = None
    max_parallel: int | None = None
    sibling_failure: SiblingFailure | None = None
    cancel: CancelEvent | None = None


class ExecutionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The guards of a run.

    ``cycle_detection=True`` stops a node that comes back while nothing in the state has changed
    since its last visit; ``"strict"`` stops any repeat within the window; ``False`` is off.
    ``max_parallel`` is how many tasks of a step run at once. When one of them fails, the others
    ``"finish"`` and their results are kept, or are asked to ``"cancel"``.
    """

    max_steps: int = 50
    cycle_detection: CycleDetection = True
    cycle_window: int = 20
    timeout: float | None = None
    max_parallel: int = 32
    sibling_failure: SiblingFailure = "finish"

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise InvalidRequest(f"max_steps must be at least 1, not {self.max_steps}")
        if self.cycle_window < 1:
            raise InvalidRequest(f"cycle_window must be at least 1, not {self.cycle_window}")
        if self.cycle_detection not in (True, False, "strict"):
            raise InvalidRequest("cycle_detection must be True, False or 'strict'")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidRequest(f"timeout must be positive, not {self.timeout}")
        if self.max_parallel < 1:
            raise InvalidRequest(f"max_parallel must be at least 1, not {self.max_parallel}")
        if self.sibling_failure not in ("finish", "cancel"):
            raise InvalidRequest("sibling_failure must be 'finish' or 'cancel'")

    def overridden(self, options: ExecutionOptions | None) -> ExecutionConfig:
        """This config with what the call sets; what the call leaves out stays."""
        if options is None:
            return self
        given = {name: getattr(options, name) for name in self.__struct_fields__}
        set_by_call = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(self, **set_by_call) if set_by_call else self


class CheckpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how often a thread is saved.

    ``store`` is a name, a URL or a store. ``interval`` 1 saves every step, ``n`` every n-th step
    and always at an interrupt, a failure and the end, 0 never. ``preserve=False`` deletes the
    thread's checkpoints after a clean end.
    """

    store: Any = None
    interval: int = 1
    preserve: bool = True

    def __post_init__(self) -> None:
        if self.interval < 0:
            raise InvalidRequest(f"interval must be 0 or more, not {self.interval}")


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often a node is tried. Attempts are counted durably, also those that a crash ended.

    Before the second attempt the run waits ``delay`` seconds, before each further one ``factor``
    times as long, never more than ``longest``; a random part of up to ``jitter`` of that is taken
    off, so that many runs do not come back at once. ``on`` are the exceptions that are worth
    another attempt.
    """

    attempts: int = 3
    delay: float = 1.0
    factor: float = 2.0
    longest: float = 60.0
    jitter: float = 0.5
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidRequest(f"attempts must be at least 1, not {self.attempts}")
        if self.delay < 0 or self.longest < 0 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise InvalidRequest("delay and longest are 0 or more, factor 1 or more, jitter 0 to 1")

    def pause(self, attempt: int, chance: float) -> float:
        """Seconds to wait after this attempt; ``chance`` is a random number from 0 to 1."""
        whole = min(self.longest, self.delay * self.factor ** (attempt - 1))
        return whole * (1 - self.jitter * chance)


class Timeout(msgspec.Struct, frozen=True, kw_only=True):
    """How long one attempt of a node may take, in seconds.

    ``run`` is for the whole attempt; ``idle`` is between two calls of ``ctx.heartbeat()``.
    An async node is cancelled; a sync one cannot be, and is left to itself.
    """

    run: float | None = None
    idle: float | None = None

    def __post_init__(self) -> None:
        if self.run is None and self.idle is None:
            raise InvalidRequest("a timeout says run=, idle=, or both")
        for seconds in (self.run, self.idle):
            if seconds is not None and seconds <= 0:
                raise InvalidRequest(f"a timeout must be positive, not {seconds}")
