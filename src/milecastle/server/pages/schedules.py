"""Schedules of the served graphs: the next 24 hours, and how each is doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Final

import msgspec

from milecastle.fleet.schedules import Schedules
from milecastle.graph.schedules import Schedule
from milecastle.ports.claims import ClaimStore
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.request import ApiRequest
from milecastle.views.documents import ScheduleLine
from milecastle.views.lines import schedule_line

_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_TICKS: Final = 72
"""Ticks of a day that are drawn one by one."""


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with the times of its next ticks in percent of a day; ``None`` if too many."""

    graph: str
    line: ScheduleLine
    ticks: list[tuple[float, str]] | None


@WebPage("GET", "/schedules", "read", label="Schedules")
def show_schedules(request: ApiRequest) -> PageView:
    """Next and missed firings."""
    now = time.time_ns() // 1000
    rows = list(fitting(_rows(request, now), _size))
    return PageView(
        template="schedules.html",
        live="_schedules.html",
        title="Schedules",
        commands=(("schedules",),),
        values={
            "rows": rows,
            "marks": _marks(now),
            "has_queue": isinstance(request.service.store, ClaimStore),
        },
    )


def _rows(request: ApiRequest, now: int) -> Iterator[ScheduleRow]:
    """Those of the apps of this tenant: schedules belong to one."""
    if not isinstance(request.service.store, ClaimStore):
        return
    for name, app in sorted(request.service.apps.items()):
        if app.tenant != request.tenant:
            continue
        for info in Schedules(app).all():
            yield ScheduleRow(
                graph=name, line=schedule_line(info), ticks=_ticks(info.schedule, now)
            )


def _ticks(schedule: Schedule, now: int) -> list[tuple[float, str]] | None:
    coming = takewhile(lambda tick: tick <= now + _DAY, schedule.ticks(now))
    found = list(islice(coming, _TICKS + 1))
    if len(found) > _TICKS:
        return None
    return [(round(100 * (tick - now) / _DAY, 2), _clock(tick)) for tick in found]


def _marks(now: int) -> list[tuple[float, str]]:
    """Every third hour."""
    first = (now // _HOUR + 1) * _HOUR
    hours = [first + number * _HOUR for number in range(24)]
    return [
        (round(100 * (hour - now) / _DAY, 2), _clock(hour))
        for hour in hours
        if datetime.fromtimestamp(hour / 1_000_000, UTC).hour % 3 == 0
    ]


def _clock(tick: int) -> str:
    return f"{datetime.fromtimestamp(tick / 1_000_000, UTC):%H:%M}"


def _size(row: ScheduleRow) -> int:
    return 2000 + 90 * len(row.ticks or ()) + 3 * shown_size(row.line.name)
