"""What users may set: guards of a run, how it is stored, and what one call overrides."""

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
]

CycleDetection = bool | Literal["strict"]


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
    cancel: CancelEvent | None = None


class ExecutionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The guards of a run.

    ``cycle_detection=True`` stops a node that comes back while nothing in the state has changed
    since its last visit; ``"strict"`` stops any repeat within the window; ``False`` is off.
    """

    max_steps: int = 50
    cycle_detection: CycleDetection = True
    cycle_window: int = 20
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise InvalidRequest(f"max_steps must be at least 1, not {self.max_steps}")
        if self.cycle_window < 1:
            raise InvalidRequest(f"cycle_window must be at least 1, not {self.cycle_window}")
        if self.cycle_detection not in (True, False, "strict"):
            raise InvalidRequest("cycle_detection must be True, False or 'strict'")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidRequest(f"timeout must be positive, not {self.timeout}")

    def overridden(self, options: ExecutionOptions | None) -> ExecutionConfig:
        """This config with what the call sets; what the call leaves out stays."""
        if options is None:
            return self
        names = ("max_steps", "cycle_detection", "cycle_window", "timeout")
        given = {name: getattr(options, name) for name in names}
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
