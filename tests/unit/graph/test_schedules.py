"""Ticks: what an expression and a time zone mean, also when the clocks change."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milecastle import END, START, InvalidRequest, StateGraph
from milecastle.graph.schedules import Schedule


class Day(TypedDict):
    day: str


def plain() -> StateGraph[Day]:
    graph: StateGraph[Day] = StateGraph(Day, name="plain")
    graph.add_node("a", lambda state: {})
    return graph.add_edges(START, "a", END)


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    moment = datetime(year, month, day, hour, minute, tzinfo=UTC)
    return round(moment.timestamp()) * 1_000_000


def times(schedule: Schedule, after: int, count: int) -> list[str]:
    found = [
        schedule.thread(tick).rpartition("@")[2] for tick in islice(schedule.ticks(after), count)
    ]
    return [time.removesuffix("Z")[5:] for time in found]


def new_york(when: str) -> Schedule:
    return Schedule(name="x", when=when, tz="America/New_York")


def test_a_time_that_does_not_exist_fires_after_the_gap() -> None:
    """On 8 March 2026, 02:30 does not exist: it fires at 03:00, which is 07:00 in UTC."""
    found = times(new_york("30 2 * * *"), at(2026, 3, 7), 3)
    assert found == ["03-07T07:30:00", "03-08T07:00:00", "03-09T06:30:00"]


def test_a_time_that_exists_twice_fires_the_first_time() -> None:
    """On 1 November 2026 01:30 is 05:30 and 06:30 in UTC. Fails if ``ticks`` does not compare."""
    schedule = new_york("30 1 * * *")
    assert times(schedule, at(2026, 10, 31), 3) == [
        "10-31T05:30:00",
        "11-01T05:30:00",
        "11-02T06:30:00",
    ]
    assert times(schedule, at(2026, 11, 1, 6, 10), 1) == ["11-02T06:30:00"]


def test_an_expression_of_every_so_many_minutes_goes_by_elapsed_time() -> None:
    schedule = new_york("*/30 * * * *")
    assert times(schedule, at(2026, 11, 1, 5), 3) == [
        "11-01T05:30:00",
        "11-01T06:00:00",
        "11-01T06:30:00",
    ]
    assert times(schedule, at(2026, 3, 8, 6, 30), 2) == ["03-08T07:00:00", "03-08T07:30:00"]


def test_a_period_fires_at_its_multiples() -> None:
    schedule = Schedule(name="x", when=timedelta(milliseconds=250))
    assert times(schedule, at(2026, 1, 1) + 1, 3) == [
        "01-01T00:00:00.250",
        "01-01T00:00:00.500",
        "01-01T00:00:00.750",
    ]
    assert Schedule(name="x", when=timedelta(minutes=5)).thread(at(2026, 1, 1)) == (
        "tick@@x@2026-01-01T00:00:00Z"
    )


EXPRESSIONS = [
    "30 2 * * *",
    "*/20 * * * *",
    "15 1,2,3 * * *",
    "0 0 1 * *",
    "*/7 1-3 * * 1",
    "0 12 * 3 *",
]
ZONES = ["UTC", "America/New_York", "Europe/Zurich", "Australia/Lord_Howe", "Africa/Cairo"]


@settings(max_examples=60, deadline=None)
@given(
    when=st.sampled_from([*EXPRESSIONS, timedelta(minutes=7)]),
    tz=st.sampled_from(ZONES),
    start=st.integers(at(2026, 1, 1), at(2027, 1, 1)),
    later=st.integers(0, 5 * 86_400 * 1_000_000),
)
def test_ticks_do_not_depend_on_who_looks_when(
    when: str | timedelta, tz: str, start: int, later: int
) -> None:
    """``after`` and ``latest`` agree with the list from the start.

    Fails if ``ticks`` does not compare, and if ``latest`` looks back too little.
    """
    schedule = Schedule(name="x", when=when, tz=tz)
    ticks: list[int] = []
    for tick in schedule.ticks(start):
        ticks.append(tick)
        if tick > start + later:
            break
    assert ticks == sorted(set(ticks))
    assert ticks[0] > start
    assert schedule.after(start + later) == ticks[-1]
    if len(ticks) > 1:
        assert schedule.latest(ticks[0], start + later) == ticks[-2]


def test_the_newest_tick_of_years_is_found_at_once() -> None:
    """Fails, by its time, without the windows: a year has half a million minutes."""
    now = at(2026, 1, 1)
    assert Schedule(name="x", when="* * * * *").latest(at(1990, 1, 1), now) == now
    yearly = Schedule(name="x", when="0 0 29 2 *")
    assert yearly.latest(at(2004, 2, 29), now) == at(2024, 2, 29)
    assert yearly.latest(at(2024, 2, 29), now) == at(2024, 2, 29)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"when": "every day"}, "not a cron expression"),
        ({"when": "0 0 3 * * *"}, "not a cron expression"),  # the page of schedules was a 500
        ({"when": "61 * * * *"}, "Bad minute"),
        ({"when": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"when": 5}, "not a cron expression"),
        ({"when": timedelta(0)}, "number of milliseconds"),
        ({"when": timedelta(microseconds=1500)}, "number of milliseconds"),
        ({"tz": "Mars/Olympus"}, "not a time zone"),
        ({"tz": "../../etc/passwd"}, "not a time zone"),
        ({"overlap": "both"}, "'skip', 'queue' or 'cancel'"),
        ({"catch_up": "some"}, "'none', 'last' or 'all'"),
        ({"name": ""}, "not empty"),
    ],
)
def test_what_has_no_ticks_is_refused_where_it_is_declared(
    wrong: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"when": "0 3 * * *", **wrong}
    with pytest.raises(InvalidRequest, match=message):
        plain().schedule(**given)


def test_a_missing_parser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A period needs none."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(InvalidRequest, match=r"milecastle\[fleet\]"):
        plain().schedule("0 3 * * *")
    plain().schedule(timedelta(hours=1))


def test_a_schedule_is_no_part_of_the_fingerprint() -> None:
    """Fails if it is put into the manifest."""
    graph = plain()
    before = graph.compile().fingerprint
    graph.schedule("0 3 * * *", input={"day": "x"})
    app = graph.compile()
    assert app.fingerprint == before
    assert [schedule.name for schedule in app.graph.schedules] == ["plain"]


def test_several_schedules_of_a_graph_need_names() -> None:
    graph = plain()

    @graph.schedule("0 3 * * *", tz="Asia/Tokyo")
    def day(tick: datetime) -> dict[str, Any]:
        return {"day": tick.isoformat()}

    with pytest.raises(InvalidRequest, match="has a schedule 'plain' already"):
        graph.schedule("0 4 * * *")
    graph.schedule("0 4 * * *", name="later", input={"day": "later"})
    first, later = graph.compile().graph.schedules
    assert first.input_at(at(2026, 1, 1, 18)) == {"day": "2026-01-02T03:00:00+09:00"}
    assert later.input_at(0) == {"day": "later"}


def test_an_input_is_given_once() -> None:
    def day(tick: datetime) -> dict[str, Any]:
        raise AssertionError

    with pytest.raises(InvalidRequest, match="not both"):
        plain().schedule("0 3 * * *", input={"day": "x"})(day)


def test_the_newest_tick_of_a_period_is_computed() -> None:
    """Fails if it is before ``tick``, or is not a multiple of the period."""
    hourly = Schedule(name="x", when=timedelta(hours=1))
    assert hourly.latest(at(2026, 1, 1), at(2026, 1, 1, 5, 30)) == at(2026, 1, 1, 5)
    assert hourly.latest(at(2026, 1, 1), at(2026, 1, 1)) == at(2026, 1, 1)
    assert hourly.latest(at(2026, 1, 1, 7), at(2026, 1, 1, 5, 30)) == at(2026, 1, 1, 7)
