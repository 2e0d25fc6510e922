"""Schedules of the served graphs: the next 24 hours, how each is doing, pause and resume."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import dropwhile, islice, takewhile
from typing import Any, Final, Literal, NamedTuple

import msgspec
from starlette.responses import RedirectResponse, Response

from milecastle.app.application import App
from milecastle.engine.status import claimed
from milecastle.errors import InvalidRequest
from milecastle.fleet.schedules import Schedules
from milecastle.graph.schedules import Schedule
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.forms import named
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.pages.words import duration
from milecastle.server.request import ApiRequest
from milecastle.views.documents import ScheduleLine
from milecastle.views.lines import schedule_line

_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_TICKS: Final = 72
"""Ticks of a day that are drawn one by one."""


_FIRINGS: Final = 20
_WINDOWS: Final = (_HOUR, _DAY, 31 * _DAY, 366 * _DAY)
_LOOKS: Final[Mapping[str, str]] = {
    "completed": "work",
    "failed": "bad",
    "running": "run",
    "interrupted": "ask",
    "sleeping": "sleep",
    "queued": "queue",
    "cancelled": "off",
    "superseded": "off",
}


class Firing(NamedTuple):
    """A tick of the past: the colour of its run and a few words; no colour if it has no run."""

    kind: str
    said: str


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with the times of its next ticks in percent of a day; ``None`` if too many.

    ``firings`` are its last 20 ticks, oldest first, from the first that has a run.
    """

    graph: str
    line: ScheduleLine
    when: str
    ticks: list[tuple[float, str]] | None
    firings: list[Firing]


class ScheduleForm(HttpDocument, frozen=True):
    graph: str
    name: str
    action: Literal["pause", "resume"]


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
            "may_change": "admin" in request.identity.scopes,
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
                graph=name,
                line=schedule_line(info),
                when=_when(info.schedule),
                ticks=_ticks(info.schedule, now),
                firings=_firings(request.service.store, app.tenant, info.schedule, now),
            )


def _when(schedule: Schedule) -> str:
    period = schedule.when
    if isinstance(period, timedelta):
        return f"every {duration(period.total_seconds())}"
    return schedule.described


def _firings(store: Store, tenant: str, schedule: Schedule, now: int) -> list[Firing]:
    """How the last ticks ended, from one read of the index."""
    ticks = _past(schedule, now)
    if not ticks:
        return []
    names = {schedule.thread(tick): _clock(tick, days=True) for tick in ticks}
    before = next(iter(names))[:-1]  # only this is before it, and after the tick before
    found = store.threads(tenant, after=before, limit=2 * _FIRINGS)
    statuses = {info.key.thread: claimed(info).status for info in found}
    firings = [
        Firing(_LOOKS.get(statuses[name], "off"), f"{time}: {statuses[name]}")
        if name in statuses
        else Firing("", f"{time}: no run")
        for name, time in names.items()
    ]
    return list(dropwhile(lambda one: not one.kind, firings))


def _past(schedule: Schedule, now: int) -> list[int]:
    windows: tuple[int, ...] = _WINDOWS
    if isinstance(schedule.when, timedelta):
        windows = (_FIRINGS * (schedule.when // timedelta(microseconds=1)),)
    for window in windows:
        coming = schedule.ticks(now - window)
        found = deque(takewhile(lambda tick: tick <= now, coming), maxlen=_FIRINGS)
        if len(found) == _FIRINGS or window == windows[-1]:
            return list(found)
    raise AssertionError(schedule)


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


def _clock(tick: int, *, days: bool = False) -> str:
    time = datetime.fromtimestamp(tick / 1_000_000, UTC)
    return f"{time.day} {time:%b %H:%M}" if days else f"{time:%H:%M}"


def _size(row: ScheduleRow) -> int:
    return 4500 + 90 * len(row.ticks or ()) + 3 * shown_size(row.line.name)


@WebPage("POST", "/schedules", "admin", form=ScheduleForm)
async def change_schedule(request: ApiRequest) -> Response:
    """Pause or resume a schedule."""
    form: ScheduleForm = request.body
    app: App[Any] = request.service.named(named(form.graph))
    if app.tenant != request.tenant:
        raise InvalidRequest("the schedules of this graph belong to another tenant")
    schedules = Schedules(app)
    change: Any = schedules.pause if form.action == "pause" else schedules.resume
    await request.off_loop(change, named(form.name))
    return RedirectResponse("/schedules", 303)
