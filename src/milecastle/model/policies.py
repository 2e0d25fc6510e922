"""User settings: run limits, storage, call overrides, retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Literal, NoReturn, Protocol, Self, cast, dataclass_transform

from milecastle.errors import InvalidRequest
from milecastle.support.migration_hints import refuse_keywords


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Settings:
    """A field is an annotated name with its default. Any other keyword is refused."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._fields = tuple(cls.__annotations__)

    def __init__(self, **given: Any) -> None:
        unknown = [name for name in given if name not in self._fields]
        refuse_keywords(type(self).__name__, unknown, self._fields)
        self.__dict__.update(given)
        self._check()

    def _check(self) -> None: ...

    def replaced(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**self.__dict__ | changes)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: create a new one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: create a new one")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Settings) or type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), *self._values().values()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._values().items())
        return f"{type(self).__name__}({shown})"


CycleDetection = bool | Literal["strict"]

SiblingFailure = Literal["finish", "cancel"]


class Ray(Settings):
    """``run_on=Ray(...)``: a node whose tasks run in a Ray cluster, and each actor's needs.

    ``num_cpus`` and ``resources`` are counted as Ray counts them, ``memory`` is in bytes.
    ``runtime_env`` lists Ray's preparations where the actor starts: files, packages, variables.
    ``run_on="ray"`` is the same as ``run_on=Ray()``: one processor each.
    """

    num_cpus: float = 1.0
    memory: int | None = None
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, Any] | None = None

    def _check(self) -> None:
        needs: dict[str, Any] = {"num_cpus": self.num_cpus, **(self.resources or {})}
        for name, value in needs.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise TypeError(f"Ray takes a number of at least 0 for {name}")
        if not any(needs.values()):
            raise TypeError("Ray needs num_cpus= or resources=: they limit how many actors start")
        if self.memory is not None and self.memory < 1:
            raise TypeError("memory= takes a number of bytes")

    def __hash__(self) -> int:
        return hash(repr(self))


RunOn = Literal["process", "ray"] | Ray
"""Where the tasks of a node run, if not in the process that drives the run."""

Unlimited = Literal["unlimited"]
"""The value that lifts a limit of the graph, because ``None`` means not set."""


class CancelEvent(Protocol):
    """Anything with ``is_set``: a ``threading.Event``, an ``asyncio.Event``, your own."""

    def is_set(self) -> bool: ...


class ExecutionOptions(Settings):
    """One call's settings. ``None`` leaves the graph's default in place, field by field.

    ``max_steps="unlimited"`` and ``timeout="unlimited"`` lift the limit for this call.
    ``timeout`` is for the whole call, in seconds; ``cancel`` is checked between two steps, and
    inside async nodes. An invalid value is refused by the call.
    """

    max_steps: int | Unlimited | None = None
    cycle_detection: CycleDetection | None = None
    cycle_window: int | None = None
    timeout: float | Unlimited | None = None
    max_parallel: int | None = None
    sibling_failure: SiblingFailure | None = None
    cancel: CancelEvent | None = None

    def _check(self) -> None:
        if self.cancel is not None and not callable(getattr(self.cancel, "is_set", None)):
            raise InvalidRequest("cancel= takes an object with is_set(), such as threading.Event()")


class ExecutionConfig(Settings):
    """A run's limits. ``None`` as ``max_steps`` or ``timeout`` means no limit.

    ``cycle_detection=True`` stops a node running again although the state has not changed since
    its last visit; ``"strict"`` stops any repeated visit within the window; ``False`` is off.
    ``max_parallel`` limits a step's concurrent tasks. When one of them
    fails, the others ``"finish"`` and their results are stored, or are asked to ``"cancel"``.
    """

    max_steps: int | None = 50
    cycle_detection: CycleDetection = True
    cycle_window: int = 20
    timeout: float | None = None
    max_parallel: int = 32
    sibling_failure: SiblingFailure = "finish"

    def _check(self) -> None:
        if self.max_steps is not None:
            _check_whole("max_steps", self.max_steps, 1)
        _check_whole("cycle_window", self.cycle_window, 1)
        _check_whole("max_parallel", self.max_parallel, 1)
        if self.cycle_detection not in (True, False, "strict"):
            raise InvalidRequest("cycle_detection must be True, False or 'strict'")
        if self.sibling_failure not in ("finish", "cancel"):
            raise InvalidRequest("sibling_failure must be 'finish' or 'cancel'")
        _check_seconds(self.timeout)

    def overridden(self, options: ExecutionOptions | None) -> ExecutionConfig:
        """This config overridden by a call's settings."""
        if options is None:
            return self
        given = {name: getattr(options, name) for name in self._fields}
        set_by_call = {
            name: None if value == "unlimited" else value
            for name, value in given.items()
            if value is not None
        }
        return self.replaced(**set_by_call) if set_by_call else self


class CheckpointConfig(Settings):
    """Where and how often a thread is saved.

    ``store`` is a name, a URL or a store. ``interval`` 1 saves every step, ``n`` every n-th step
    and always at an interrupt, a failure and the end, 0 never. ``preserve=False`` deletes the
    thread's checkpoints after it completes.
    """

    store: Any = None
    interval: int = 1
    preserve: bool = True

    def _check(self) -> None:
        _check_whole("interval", self.interval, 0)
        if not isinstance(cast("object", self.preserve), bool):
            raise InvalidRequest(f"preserve must be True or False, not {self.preserve!r}")


class Retry(Settings):
    """A node's retry policy.

    Attempts are counted durably, including those ended by a crash.
    Before the second attempt the run waits ``delay`` seconds, before each further one ``factor``
    times as long, never more than ``longest``; a random fraction of up to ``jitter`` is subtracted,
    so many runs do not retry at the same moment. ``on`` is the exception or exceptions
    retried.
    """

    attempts: int = 3
    delay: float = 1.0
    factor: float = 2.0
    longest: float = 60.0
    jitter: float = 0.5
    on: type[BaseException] | Sequence[type[BaseException]] = (Exception,)

    def _check(self) -> None:
        _check_whole("attempts", self.attempts, 1)
        for name in ("delay", "factor", "longest", "jitter"):
            _check_number(name, getattr(self, name))
        if self.delay < 0 or self.longest < 0 or self.factor < 1 or not 0 <= self.jitter <= 1:
            raise InvalidRequest(
                "delay and longest must be at least 0, factor at least 1, jitter between 0 and 1"
            )
        if not isinstance(self.on, type | tuple | list) or not all(map(_is_error, self.errors)):
            raise InvalidRequest("on= takes exception classes: on=TimeoutError or on=(A, B)")

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """The retried exceptions."""
        return (self.on,) if isinstance(self.on, type) else tuple(self.on)

    def pause(self, attempt: int, chance: float) -> float:
        """Seconds to wait after this attempt; ``chance`` is a random number from 0 to 1."""
        whole = min(self.longest, self.delay * self.factor ** (attempt - 1))
        return whole * (1 - self.jitter * chance)

    def next_at(self, now: int, attempt: int, seed: str) -> int:
        """When to try again after this attempt failed now, in microseconds.

        The same seed gives the same delay: a repeated run waits as it did before.
        """
        chance = Random(seed).random()  # noqa: S311 - no secrets
        return now + round(self.pause(attempt, chance) * 1_000_000)


class Timeout(Settings):
    """Time limits for a node's attempt, in seconds.

    ``run`` is for the whole attempt; ``idle`` is between two calls of ``ctx.heartbeat()``.
    An async node is cancelled; a sync node cannot be, and is abandoned.
    """

    run: float | None = None
    idle: float | None = None

    def _check(self) -> None:
        if self.run is None and self.idle is None:
            raise InvalidRequest("Timeout needs run=, idle=, or both")
        for seconds in (self.run, self.idle):
            _check_seconds(seconds)


def _is_error(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, BaseException)


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be a whole number, not {type(value).__name__}")
    if value < least:
        raise InvalidRequest(f"{name} must be at least {least}, not {value}")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {type(value).__name__}")
    if value != value:
        raise InvalidRequest(f"{name} must be a number, not nan")


def _check_seconds(value: Any) -> None:
    if value is not None:
        _check_number("timeout", value)
        if not value > 0:
            raise InvalidRequest(f"timeout must be positive, not {value}")
