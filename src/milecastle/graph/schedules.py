"""When a graph is run by the clock: a schedule's description, and its ticks.

Rules:

- Ticks are computed from the expression and the time zone alone, never from when somebody looked:
  ``after(time)`` is the same in every process.
- A cron expression has five fields and Debian's rules for changes of the clocks. An expression that
  names its hour and minute fires once on every such day: at the first moment after a gap if its
  time does not exist, and the first time if it exists twice. One whose hour or minute begins with
  ``*`` goes by elapsed time: nothing fires in a gap, and an hour that exists twice fires twice.
- A period (``timedelta``) fires at its multiples since 1970 in UTC. It knows no time zone.
- A schedule is no part of the fingerprint: changing it makes no thread unfit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any, Literal, cast, get_args

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import to_datetime
from milecastle.model.keys import own_name

Overlap = Literal["skip", "queue", "cancel"]
"""What becomes of a tick while the run of the one before has not ended."""

CatchUp = Literal["none", "last", "all"]
"""Which of the ticks that came while no worker looked are fired afterwards."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HOUR = 3_600_000_000
_WINDOWS = (_HOUR, 48 * _HOUR, 1500 * _HOUR, 1_000_000 * _HOUR)
"""How far back to look for the newest tick, in microseconds: no more of them than needed."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A graph's schedule, as it was declared; times are in microseconds since 1970.

    ``input`` is each run's, or a function on the tick, a datetime in the schedule's time zone.
    ``config`` is each run's.
    """

    name: str
    when: str | timedelta
    tz: str = "UTC"
    input: Any = msgspec.field(default_factory=dict[str, Any])
    overlap: Overlap = "skip"
    catch_up: CatchUp = "none"
    config: Any = None

    def __post_init__(self) -> None:
        given: tuple[tuple[str, str, Any], ...] = (
            ("overlap", self.overlap, Overlap),
            ("catch_up", self.catch_up, CatchUp),
        )
        for word, value, known in given:
            if value not in get_args(known):
                raise InvalidRequest(f"{word}= takes {_one_of(get_args(known))}")
        if not isinstance(cast("object", self.name), str) or not self.name:
            raise InvalidRequest("the name of a schedule is a str that is not empty")
        own_name("schedule", self.name)
        _zone(self.tz)
        if isinstance(self.when, timedelta):
            if self.when <= timedelta(0) or self.when % timedelta(milliseconds=1):
                raise InvalidRequest("the period of a schedule is a number of milliseconds")
        else:
            _moments(self.when, datetime(2000, 1, 1, tzinfo=UTC))

    @property
    def definition(self) -> str:
        """The schedule's definition as text: a different one is another schedule."""
        return f"{self.described} overlap={self.overlap} catch_up={self.catch_up}"

    @property
    def described(self) -> str:
        if isinstance(self.when, timedelta):
            return f"every {self.when.total_seconds():g} s"
        return f"{' '.join(self.when.split())} {self.tz}"

    def after(self, time: int) -> int:
        return next(self.ticks(time))

    def ticks(self, after: int) -> Iterator[int]:
        if isinstance(self.when, timedelta):
            period = self.when // _MICROSECOND
            tick = after // period * period
            while True:
                tick += period
                yield tick
        last = after
        for moment in _moments(self.when, to_datetime(after).astimezone(_zone(self.tz))):
            tick = (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND
            if tick > last:  # at the end of summer time, a local time comes twice
                last = tick
                yield tick

    def latest(self, tick: int, now: int) -> int:
        if isinstance(self.when, timedelta):
            period = self.when // _MICROSECOND
            return max(tick, now // period * period)
        for window in _WINDOWS:
            found = self.ticks(max(tick, now - window))
            newest = deque(takewhile(lambda each: each <= now, found), maxlen=1)
            if newest:
                return newest[0]
        return tick

    def thread(self, tick: int) -> str:
        short = isinstance(self.when, timedelta) and self.when % timedelta(seconds=1)
        form = "milliseconds" if short else "seconds"
        time = to_datetime(tick).isoformat(timespec=form).replace("+00:00", "Z")
        return own_name("tick", f"{self.name}@{time}")

    def thread_beside(self, time: int) -> str:
        at = to_datetime(time).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return own_name("tick", f"{self.name}@now@{at}")

    def input_at(self, tick: int) -> Any:
        if not callable(self.input):
            return self.input
        make = cast("Callable[[datetime], Any]", self.input)
        return make(to_datetime(tick).astimezone(_zone(self.tz)))


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its state in a store.

    ``status`` is ``new`` if no worker has seen it, ``active``, ``paused``, ``failing`` if its last
    firing could not be started and is tried again, or ``held`` if it needs a ``resume``.
    ``last`` is the thread of the last firing. ``missed`` counts ticks that
    were not caught up, at most 1,000 for each gap.
    """

    schedule: Schedule
    graph: str
    thread: str
    status: Literal["new", "active", "paused", "failing", "held"]
    next: datetime | None = None
    last: str = ""
    fired: int = 0
    skipped: int = 0
    missed: int = 0


def _moments(expression: str, start: datetime) -> Iterator[datetime]:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise InvalidRequest(
            "cron expressions need a package: pip install 'milecastle[fleet]'; a timedelta as "
            "period needs none"
        ) from None
    try:
        if len(expression.split()) != 5:
            raise CronSimError("it has not five fields")  # some versions take a sixth for seconds
        return CronSim(expression, start)
    except (CronSimError, AttributeError) as error:
        raise InvalidRequest(
            f"{expression!r} is not a cron expression such as '0 3 * * *' (minute, hour, day, "
            f"month, day of the week): {error}"
        ) from None


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, TypeError, KeyError):
        raise InvalidRequest(
            f"tz={name!r} is not a time zone such as 'Europe/Zurich'; if it is one, this machine "
            "lacks the data: pip install tzdata"
        ) from None


def _one_of(words: tuple[str, ...]) -> str:
    return ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"
