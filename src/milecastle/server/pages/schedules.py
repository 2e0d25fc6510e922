"""The served graphs' schedules: the next 24 hours, recent firings, pause and resume."""

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
from milecastle.model.keys import ThreadKey, own_name
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.forms import named
from milecastle.server.pages.rendering import fitting, query_text, segment, shown_size
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.pages.words import cron_words, duration
from milecastle.server.request import ApiRequest
from milecastle.views.documents import ScheduleLine
from milecastle.views.lines import schedule_line

_DAY: Final = 86_400_000_000
_HOUR: Final = 3_600_000_000
_TICKS: Final = 72
"""Ticks of a day that are drawn one by one."""


_FIRINGS: Final = 20
_BACKFILLED: Final = 500
"""How many ticks a page counts and starts."""

_MINUTES: Final = "%Y-%m-%dT%H:%M"
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
    """A past tick: its run's colour and a few words; no colour if it has no run."""

    kind: str
    said: str


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with its next ticks in percent of a day; ``None`` if too many.

    ``firings`` are its last 20 ticks, oldest first, from the first with a run.
    """

    graph: str
    line: ScheduleLine
    when: str
    cron: str
    ticks: list[tuple[float, str]] | None
    firings: list[Firing]


class ScheduleForm(HttpDocument, frozen=True):
    graph: str
    name: str
    action: Literal["pause", "resume", "run", "backfill"]
    start: str = ""
    end: str = ""


class BackfillQuery(HttpDocument, frozen=True):
    """A schedule, and a backfill's times in UTC, as browsers write them: 2026-11-10T00:00."""

    graph: str = ""
    name: str = ""
    start: str = ""
    end: str = ""


@WebPage("GET", "/schedules", "read", label="Schedules")
def show_schedules(request: ApiRequest) -> PageView:
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
    if not isinstance(request.service.store, ClaimStore):
        return
    for name, app in sorted(request.service.apps.items()):
        if app.tenant != request.tenant:
            continue
        for info in Schedules(app).all():
            yield ScheduleRow(
                graph=name,
                line=schedule_line(info),
                when=when_said(info.schedule),
                cron="" if isinstance(info.schedule.when, timedelta) else info.schedule.described,
                ticks=_ticks(info.schedule, now),
                firings=_firings(request.service.store, app.tenant, info.schedule, now),
            )


def when_said(schedule: Schedule) -> str:
    period = schedule.when
    if isinstance(period, timedelta):
        return f"every {duration(period.total_seconds())}"
    return cron_words(period, schedule.tz) or schedule.described


def _firings(store: Store, tenant: str, schedule: Schedule, now: int) -> list[Firing]:
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


@WebPage("GET", "/schedules/backfill", "read", query=BackfillQuery)
def plan_backfill(request: ApiRequest) -> PageView:
    """The number of runs a backfill would start, before it does."""
    query: BackfillQuery = request.query
    if not query.name:
        return _backfill(query, ("schedules",))
    app = _app_of(request, query.graph)
    schedules, store = Schedules(app), app.runner.settings.store
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    start = query.start or f"{today - timedelta(days=7):{_MINUTES}}"
    end = query.end or f"{today:{_MINUTES}}"
    ticks = _bounded(schedules, query.name, start, end)
    schedule = schedules.runs[query.name].schedule
    keys = (ThreadKey(app.tenant, schedule.thread(tick)) for tick in ticks)
    existing = sum(store is not None and store.thread(key) is not None for key in keys)
    command = ("schedules", "backfill", query.name, "--from", f"{start}Z", "--to", f"{end}Z")
    return _backfill(
        query,
        command,
        start=start,
        end=end,
        ticks=len(ticks),
        existing=existing,
        may_change="admin" in request.identity.scopes,
    )


def _backfill(query: BackfillQuery, command: tuple[str, ...], **values: Any) -> PageView:
    return PageView(
        template="backfill.html",
        title=f"Backfill {query.name}",
        commands=(command,),
        values={"graph": query.graph, "name": query.name, **values},
    )


def _app_of(request: ApiRequest, graph: str) -> App[Any]:
    app: App[Any] = request.service.named(graph)
    if app.tenant != request.tenant:
        raise InvalidRequest("the schedules of this graph belong to another tenant")
    return app


def _bounded(schedules: Schedules, name: str, start: str, end: str) -> list[int]:
    ticks = list(islice(schedules.past_ticks(name, _utc(start), _utc(end)), _BACKFILLED + 1))
    if len(ticks) > _BACKFILLED:
        raise InvalidRequest(
            f"there are more than {_BACKFILLED} ticks between these times: choose fewer, or use "
            "milecastle schedules backfill"
        )
    return ticks


def _utc(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest("a time is written as 2026-11-10T00:00, in UTC") from None


@WebPage("POST", "/schedules", "admin", form=ScheduleForm)
async def change_schedule(request: ApiRequest) -> Response:
    form: ScheduleForm = request.body
    app, name = _app_of(request, named(form.graph)), named(form.name)
    return RedirectResponse(await request.off_loop(_change, Schedules(app), name, form), 303)


def _change(schedules: Schedules, name: str, form: ScheduleForm) -> str:
    if form.action == "run":
        return f"/threads/{segment(schedules.run(name).thread.thread)}"
    if form.action == "backfill":
        _bounded(schedules, name, form.start, form.end)
        schedules.backfill(name, _utc(form.start), _utc(form.end))
        return f"/threads{query_text({'prefix': own_name('tick', f'{name}@')})}"
    change: Any = schedules.pause if form.action == "pause" else schedules.resume
    change(name)
    return "/schedules"
