"""The verb of schedules, with its document and its table."""

from __future__ import annotations

import pytest

from milecastle.views.documents import SchedulesDocument
from tests.unit.cli.commands import Desk

TIMED = """\
from typing import TypedDict
from milecastle import END, START, StateGraph

class Report(TypedDict):
    day: str

graph = StateGraph(Report, name="report")

@graph.node
def write(state: Report) -> dict:
    return {}

graph.add_edges(START, "write", END)

@graph.schedule("0 3 * * *", tz="Europe/Zurich", catch_up="last")
def day(tick):
    print("computing")
    return {"day": f"{tick:%d.%m. %H:%M}"}

app = graph.compile(store="sqlite:///runs.db")
"""

APP = ("--app", "timed:app")
RANGE = ("--from", "2026-03-28", "--to", "2026-03-31T00:00:00+02:00")


@pytest.fixture
def timed(desk: Desk) -> Desk:
    desk.write("timed.py", TIMED)
    return desk


def listed(desk: Desk, *arguments: str) -> SchedulesDocument:
    return desk.json(SchedulesDocument, "schedules", *arguments, *APP)


def test_schedules_are_listed_before_and_after_a_worker_has_seen_them(timed: Desk) -> None:
    """Fails if the state of the schedule's thread is not read."""
    (line,) = listed(timed).schedules
    assert (line.name, line.status, line.next) == ("report", "new", None)
    assert (line.when, line.catch_up) == ("0 3 * * * Europe/Zurich", "last")
    timed.call("worker", "timed:app", "--until-idle", "--poll", "0.05")
    (line,) = listed(timed).schedules
    assert (line.status, line.fired, line.last) == ("active", 0, "")
    assert line.next is not None
    assert "active" in timed.out("schedules", *APP)


def test_a_backfill_submits_each_tick_once(timed: Desk) -> None:
    """Over a change of the clocks, and twice. Fails if ``if_absent`` is not given."""
    threads = [
        "tick@@report@2026-03-28T02:00:00Z",
        "tick@@report@2026-03-29T01:00:00Z",
        "tick@@report@2026-03-30T01:00:00Z",
    ]
    found = listed(timed, "backfill", "report", *RANGE).submitted
    assert [(each.thread, each.reused) for each in found] == [(each, False) for each in threads]
    out = timed.call("schedules", "backfill", "report", *RANGE, *APP)
    assert "0 of 3 ticks were submitted" in out.stderr
    assert out.stdout.count("(exists)") == 3
    timed.call("worker", "timed:app", "--until-idle", "--poll", "0.05")
    assert "29.03. 03:00" in timed.out("show", threads[1])


def test_a_schedule_is_paused_and_resumed(timed: Desk) -> None:
    """Fails if a worker that starts resumes what was paused."""
    timed.call("worker", "timed:app", "--until-idle", "--poll", "0.05")
    (line,) = listed(timed, "pause", "report").schedules
    assert (line.status, line.next) == ("paused", None)
    timed.call("worker", "timed:app", "--until-idle", "--poll", "0.05")
    assert listed(timed).schedules[0].status == "paused"
    (line,) = listed(timed, "resume", "report").schedules
    assert line.status == "active"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pause",), "which schedule"),
        (("backfill", "report"), "needs --from and --to"),
        (("backfill", "report", "--from", "soon", "--to", "later"), "is not a time"),
    ],
)
def test_incomplete_calls_say_what_is_missing(
    timed: Desk, arguments: tuple[str, ...], message: str
) -> None:
    assert message in timed.call("schedules", *arguments, *APP, code=2).stderr


def test_an_unknown_schedule_is_refused_with_those_that_exist(timed: Desk) -> None:
    refused = timed.call("schedules", "resume", "yearly", *APP, code=2)
    assert "no schedule 'yearly'; the graph has 'report'" in refused.stderr


def test_a_graph_without_schedules_says_so(timed: Desk) -> None:
    said = timed.call("schedules", "--app", "demo:app").stderr
    assert "has no schedules" in said
