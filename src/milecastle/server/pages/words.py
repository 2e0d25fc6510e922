"""Words on the pages: statuses, durations, times and numbers, as people read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final, NamedTuple


class StatusWord(NamedTuple):
    kind: str
    icon: str
    word: str


_STATUSES: Final = {
    "completed": StatusWord("good", "done", "Completed"),
    "running": StatusWord("run", "run", "Running"),
    "queued": StatusWord("queue", "queue", "Queued"),
    "interrupted": StatusWord("ask", "ask", "Needs answer"),
    "stopped": StatusWord("ask", "pause", "Stopped here"),
    "sleeping": StatusWord("sleep", "sleep", "Sleeping"),
    "failed": StatusWord("bad", "fail", "Failed"),
    "cancelled": StatusWord("off", "off", "Cancelled"),
    "superseded": StatusWord("off", "off", "Replaced"),
    "lost": StatusWord("bad", "lost", "Lost"),
    "long": StatusWord("ask", "clock", "Takes long"),
    "alive": StatusWord("good", "done", "Alive"),
    "draining": StatusWord("sleep", "pause", "Draining"),
    "silent": StatusWord("bad", "lost", "Silent"),
    "paused": StatusWord("queue", "pause", "Paused"),
    "active": StatusWord("good", "done", "Active"),
    "failing": StatusWord("bad", "fail", "Failing"),
    "execute": StatusWord("queue", "play", "Runs"),
    "reuse": StatusWord("good", "done", "Reused"),
    "none fits": StatusWord("bad", "lost", "None fits"),
}
_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))


def status_word(status: str) -> StatusWord:
    return _STATUSES.get(status) or StatusWord("off", "off", status.capitalize())


def duration(seconds: float) -> str:
    """A duration in at most two units; the smaller one only if it says something."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = int(seconds)
    for (unit, size), (below, less) in zip(_UNITS, (*_UNITS[1:], ("s", 1)), strict=True):
        if whole >= size:
            rest = whole % size // less
            most = 24 if unit == "h" else 10
            return f"{whole // size} {unit}" + (
                f" {rest} {below}" if rest and whole < most * size else ""
            )
    raise AssertionError(seconds)


def rough(seconds: float) -> str:
    unit, size = next(((one, size) for one, size in _UNITS if seconds >= size), ("s", 1))
    return f"{int(seconds // size)} {unit}"


def ago(moment: str, now: float | None = None) -> str:
    seconds = (time.time() if now is None else now) - parsed(moment).timestamp()
    return f"{rough(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


_PERIODS: Final = ("2", "3", "4", "5", "6", "10", "12", "15", "20", "30")
"""Of minutes, as an hour has whole ones."""
_WEEKDAYS: Final = {
    "*": "every day",
    "1-5": "every weekday",
    "mon-fri": "every weekday",
    "0": "every Sunday",
    "1": "every Monday",
    "2": "every Tuesday",
    "3": "every Wednesday",
    "4": "every Thursday",
    "5": "every Friday",
    "6": "every Saturday",
    "7": "every Sunday",
}


def cron_words(cron: str, zone: str) -> str:
    minute, hour, day, month, weekday = cron.split()
    is_plain = (day, month, weekday) == ("*", "*", "*")
    period = minute.removeprefix("*/")
    if is_plain and (hour, minute) == ("*", f"*/{period}") and period in _PERIODS:
        return f"every {period} minutes"
    if is_plain and hour == "*" and minute in ("*", "0"):
        return "every minute" if minute == "*" else "every hour"
    if not (minute.isdecimal() and hour.isdecimal()) or month != "*":
        return ""
    days = _WEEKDAYS.get(weekday.lower(), "") if day == "*" else ""
    if day.isdecimal() and weekday == "*":
        days = "first of the month" if int(day) == 1 else f"day {int(day)} of the month"
    place = "" if zone == "UTC" else f", {zone.rpartition('/')[2].replace('_', ' ')}"
    return f"{days} at {int(hour):02}:{int(minute):02}{place}" if days else ""


def soon(moment: str) -> str:
    return rough(max(0.0, parsed(moment).timestamp() - time.time()))


def since(moment: str) -> float:
    return max(0.0, time.time() - parsed(moment).timestamp())


def exact(moment: str) -> str:
    return f"{moment[:19].replace('T', ' ')} UTC"


def clock(moment: str) -> str:
    given = parsed(moment)
    if given.date() == datetime.now(UTC).date():
        return f"{given:%H:%M:%S}"
    return f"{given.day} {given:%b %H:%M:%S}"


def parsed(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


def number(value: int) -> str:
    return f"{value:,}"


def plural(count: int, one: str, many: str = "") -> str:
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
