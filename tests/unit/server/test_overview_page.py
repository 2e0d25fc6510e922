"""The overview and the failures: what needs a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from urllib.parse import quote, unquote, urlencode

import msgspec.structs
import pytest

from milecastle import END, START, StateGraph
from milecastle.fleet.schedules import Schedules
from milecastle.graph.schedules import ScheduleInfo
from milecastle.server.pages.charts import Stack, stacked
from milecastle.server.pages.json_tree import json_tree
from milecastle.server.pages.words import ago, cron_words, duration
from milecastle.views.overview import (
    AskingLine,
    AttentionKind,
    AttentionLine,
    OverviewDocument,
    overview_document,
)
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import OTHER, Api, Trip, build, token_of, trip
from tests.unit.server.test_threads_page import fill

BAD = "<script>\x1b[1m\u202e"
SECOND = 1_000_000


def tiles(browser: Browser, query: str = "") -> list[str]:
    """The numbers on top."""
    found = browser.page(f"/overview{query}").all("span", **{"class": "value"})
    return [one.text.split()[0] for one in found]


def test_overview_counts_what_runs_waits_and_failed(api: Api, browser: Browser) -> None:
    """Fails if a number is of another status or tenant, or trouble is not listed."""
    api.run("fails", 13)
    api.run("asks", 42)
    fill(api, "waits")
    assert tiles(browser) == ["0", "1", "1", "1", "0"]
    found = browser.page("/overview")
    text = found.one("main").text
    assert "1 run of trip failed at begin" in text
    assert "No worker has trip" in text
    assert "sure?" in text
    other = Browser(api).log_in(token_of(OTHER))
    other.ask("POST", "/graphs/trip/runs", data={"csrf": other.csrf, "thread": "own"})
    shown = other.page("/overview").one("main").text
    assert "failed at" not in shown
    assert "sure?" not in shown


def test_all_that_needs_attention_is_said_and_escaped(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a kind has no words, a name is not escaped, or a thread deleted since ends it."""
    api.run("t")
    moment = "2026-11-17T11:30:02.000000Z"
    kinds: tuple[AttentionKind, ...] = get_args(AttentionKind)
    lines = tuple(
        AttentionLine(
            kind=kind, level=2, graph=BAD, thread=BAD, worker=BAD, node=BAD, error=BAD, since=moment
        )
        for kind in kinds
    )
    asking = (AskingLine(thread="gone", graph="trip", questions=2, since=moment),)

    def document(*args: Any, **more: Any) -> OverviewDocument:
        found = overview_document(*args, **more)
        return msgspec.structs.replace(found, attention=lines, asking=asking)

    monkeypatch.setattr("milecastle.server.pages.overview.overview_document", document)
    assert browser.ask("GET", "/overview").text.replace("\n", "").isprintable()
    found = browser.page("/overview")
    (card,) = found.all("section", **{"aria-labelledby": "t-look"})
    words = ("failed at", "No worker has", "silent for", "asks a question", "no checkpoint for")
    assert [one for one in words if one not in card.text] == []
    (card,) = found.all("section", **{"aria-labelledby": "t-ask"})
    assert "2 questions" in card.text


def test_failures_are_grouped_by_their_cause(api: Api, browser: Browser) -> None:
    """Fails if two causes are one group, or a group offers threads of another."""
    for name in ("a", "b"):
        api.run(name, 13)
    api.run("asks", 42)
    found = browser.page("/failures")
    (group,) = found.all("summary", **{"data-row": ""})[-1:]
    assert "RuntimeError at begin of trip" in " ".join(group.text.split())
    assert "no ink" in group.text
    assert "2 runs" in group.text
    fields = [one.get("value") for one in found.all("input", name="thread")]
    assert sorted(fields) == ["a", "b", "b"], "both, and the newest to try"
    assert "calling.py" in found.one("li", **{"class": "own"}).text
    assert "No failure" in browser.page("/failures?state=retried").one("main").text
    assert "No failure" in browser.page("/failures?graph=none").one("main").text
    assert "No failure" in Browser(api).log_in(token_of(OTHER)).page("/failures").one("main").text
    done = browser.post("/bulk/retry", {"thread": fields[:1], "confirmed": "yes"})
    assert done.texts("td")[0] == "queued"


def test_settled_failures_are_listed_and_not_retried(api: Api, browser: Browser) -> None:
    """Fails if a thread that went on is still offered, or the counts are not those of the tabs."""
    api.run("t", 13)
    assert "Wait for you 1" in browser.page("/failures").texts("a")
    api.app.update_state("t", {"n": 1})
    api.app.resume("t")
    assert "No failure waits for you" in browser.page("/failures").one("main").text
    found = browser.page("/failures?state=settled")
    assert "Settled 1" in found.texts("a")
    assert "RuntimeError at begin" in " ".join(found.one("main").text.split())
    assert found.all("input", name="thread") == []


def test_what_only_failed_runs_have_is_said(api: Api, browser: Browser) -> None:
    """Fails if it is missing, or said of what a completed run has too."""
    api.app.submit(trip(1)["input"], "ends", tags=["both"])
    for name in ("a", "b"):
        api.app.submit(trip(13)["input"], name, tags=["both", "trade"])
    api.work()
    (note,) = browser.page("/failures").all("p", **{"class": "note"})
    assert note.text == "All 2 have tag trade; no run that completed has."


def test_slowest_nodes_are_of_the_tenant_and_link_to_their_graph(
    api: Api, browser: Browser
) -> None:
    api.run("t")
    (card,) = browser.page("/overview").all("section", **{"aria-labelledby": "t-slow"})
    assert "begin trip" in " ".join(card.text.split())
    assert "/graphs/trip" in [one.get("href") for one in browser.page("/overview").all("a")]
    other = Browser(api).log_in(token_of(OTHER))
    other.ask("POST", "/graphs/trip/runs", data={"csrf": other.csrf, "thread": "own"})
    (card,) = other.page("/overview").all("section", **{"aria-labelledby": "t-slow"})
    assert "Nothing has run." in card.text


def test_hook_gets_a_message_before_it_is_cut(api: Api) -> None:
    """Fails if a hook that looks for the end of a text gets its beginning."""

    def fails(state: Trip) -> dict[str, Any]:
        raise RuntimeError("x" * 5000 + "end")

    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node("fails", fails)
    graph.add_edges(START, "fails", END)
    app = graph.compile(store=api.app.store)
    app.submit({"n": 1, "log": []}, "t")
    api.work(app)
    api.serve(app, redact=lambda place, value: value[-5:] if place == "message" else value)
    found = Browser(api).log_in(token_of("default")).page("/failures")
    assert "xxend" in found.all("summary", **{"data-row": ""})[-1].text


def test_hostile_failures_are_text_and_pass_the_hook(api: Api) -> None:
    """``Document`` refuses scripts. Fails if an error is not escaped, or misses the hook."""

    def fails(state: Trip) -> dict[str, Any]:
        raise RuntimeError(f"{BAD} sekrit")

    graph: StateGraph[Trip] = StateGraph(Trip, name=BAD)
    graph.add_node(BAD, fails)
    graph.add_edges(START, BAD, END)
    app = graph.compile(store=api.app.store)
    app.submit({"n": 1, "log": []}, BAD)
    api.work(app)
    api.serve(app, redact=lambda place, value: "-" if place == "message" else value)
    browser = Browser(api).log_in(token_of("default"))
    for path in ("/failures", "/overview"):
        response = browser.ask("GET", path)
        assert response.text.replace("\n", "").isprintable(), path
        assert "<script>\\" not in response.text
        assert "sekrit" not in response.text
        browser.page(path)


def test_two_checkpoints_are_compared(api: Api, browser: Browser) -> None:
    """Fails if sides are swapped, a difference is lost, or another tenant's thread is read."""
    api.run("t", 42)
    place = "/compare?a=t%401&b=t%402"
    found = browser.page(place)
    assert [one.get("value") for one in found.all("input") if one.get("name") in "ab"] == [
        "t@1",
        "t@2",
    ]
    rows = [" ".join(one.text.split()) for one in found.all("tr")][-2:]
    assert rows == ['log[0]not set"begin"', "n4243"]
    (node,) = [one.text for one in found.all("tr") if one.text.startswith("begin")]
    assert "none" in node
    assert found.commands() == ["milecastle diff -- t@1 t@2"]
    assert "equal" in browser.page("/compare?a=t&b=t%403").one("main").text
    assert browser.page("/compare").all("table") == []
    assert browser.ask("GET", "/compare?a=t%409&b=t").status_code == 404
    assert browser.ask("GET", "/compare?a=none&b=t").status_code == 404
    assert Browser(api).log_in(token_of(OTHER)).ask("GET", place).status_code == 404
    api.serve(api.app, redact=lambda place, value: "-" if place == "$.n" else value)
    changes = Browser(api).log_in(token_of("default")).page(place).all("tr")[-2:]
    shown = " ".join(one.text for one in changes)  # not of times: a node may work 43 ms
    assert "42" not in shown
    assert "43" not in shown


def test_schedules_have_their_next_ticks(api: Api, browser: Browser) -> None:
    """Fails if a tick is missing, or another tenant learns when the schedules ran."""
    assert "No schedules" in browser.page("/schedules").one("main").text
    graph = build("timed")
    graph.schedule(timedelta(hours=6), name=BAD, input={"n": 1, "log": []})
    graph.schedule(timedelta(minutes=1), name="often", input={"n": 1, "log": []})
    api.serve(graph.compile(store=api.app.store))
    response = browser.ask("GET", "/schedules")
    assert response.text.replace("\n", "").isprintable()
    found = browser.page("/schedules")
    assert found.texts("th")[-2:] == ["<script>\\x1b[1m\\u202e", "often"]
    assert len(found.all("circle", r="5")) == 4
    assert "every 1 min" in found.texts("td")
    other = Browser(api).log_in(token_of(OTHER)).page("/schedules")
    assert "often" not in other.one("main").text


def test_schedules_that_fail_or_missed_ticks_need_attention(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if one that runs is listed, or another tenant or graph learns of it."""
    api.run("t")
    graph = build("timed")
    changes: dict[str, dict[str, Any]] = {
        BAD: {"status": "failing"},
        "held": {"status": "held"},
        "late": {"missed": 2},
        "fine": {},
    }
    for name in changes:
        graph.schedule(timedelta(hours=6), name=name, input={"n": 1, "log": []})
    api.serve(api.app, graph.compile(store=api.app.store))
    every = Schedules.all

    def found(self: Schedules) -> list[ScheduleInfo]:
        return [msgspec.structs.replace(one, **changes[one.schedule.name]) for one in every(self)]

    monkeypatch.setattr(Schedules, "all", found)
    assert browser.ask("GET", "/overview").text.replace("\n", "").isprintable()
    (card,) = browser.page("/overview").all("section", **{"aria-labelledby": "t-look"})
    text = " ".join(card.text.split())
    assert "<script>\\x1b[1m\\u202e is failing" in text
    assert "held is held" in text
    assert "late missed 2 ticks" in text
    assert "fine" not in text
    other = Browser(api).log_in(token_of(OTHER))
    for page in (browser.page("/overview?graph=trip"), other.page("/overview")):
        assert "is held" not in page.one("main").text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1224, "122 ms"),
        (8.74, "8.7 s"),
        (41, "41 s"),
        (108, "1 min 48 s"),
        (720.9, "12 min"),
        (7380, "2 h 3 min"),
        (3 * 86400, "3 d"),
        (26 * 3600, "1 d 2 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_are_said_from_now() -> None:
    assert ago("2026-11-17T11:30:02Z", 1794915002 + 22 * 60) == "22 min ago"
    assert ago("2026-11-17T11:30:02Z", 1794915002 - 90) == "in 1 min 30 s"


def test_tree_reads_the_first_items_and_escapes_all() -> None:
    """Fails if a list of a million is read, a text is not escaped, or a change is not marked."""
    given = {"rows": list(range(1_000_000)), BAD: {BAD: [BAD]}, "n": 2}
    tree = json_tree(
        [(name, value, f"$.{name}") for name, value in given.items()],
        20_000,
        was={"$.n": "was 1"},
        more="/v1",
    )
    assert "999,992 more" in tree.html
    assert '<li class="new"><span class="k">n</span>' in tree.html
    assert "<script>" not in tree.html
    assert tree.html.isprintable()
    small = json_tree([("text", "<" * 50_000, "$.text"), ("n", 1, "$.n")], 1000)
    assert small.is_cut
    assert small.size < 12_000


def test_chart_adds_up_and_leaves_out_empty_parts() -> None:
    counts = [(1, 1), (0, 1), *[(0, 0)] * 7, (1, 0)]
    stacks = [Stack("2026-11-17T11:30:00.000000Z", *both) for both in counts]
    chart = stacked(stacks, 92, ("completed", "failed"))
    assert (chart.lower, chart.upper, len(chart.bars), chart.most) == (2, 2, 3, 4)
    assert chart.bars[0].said == "11:30: 1 completed, 1 failed"
    assert chart.marks[0][1] == "11:30"


def test_schedule_is_paused_and_resumed_and_shows_its_firings(api: Api, browser: Browser) -> None:
    """Fails if a firing has the outcome of another tick, or another tenant can pause it."""
    graph = build("hourly")
    graph.schedule(timedelta(hours=1), name="each", input={"n": 13, "log": []})
    app = graph.compile(store=api.app.store)
    api.serve(app)
    schedules = Schedules(app)
    schedules.register()
    shown = browser.page("/overview").one("h1").text
    assert shown == "Nothing has run here yet", "a schedule is taken for a run"
    now = datetime.now(UTC)
    schedules.backfill("each", now - timedelta(hours=5), now)
    api.work(app)
    strip = browser.page("/schedules").one("svg", **{"class": "strip"})
    assert strip.get("aria-label") == "Last 5 ticks, 5 failed"
    app.delete(schedules.runs["each"].schedule.thread(hour(now - timedelta(hours=2))))
    titles = browser.page("/schedules").texts("title")
    assert [one.rpartition(": ")[2] for one in titles if ": " in one] == [
        "failed",
        "failed",
        "no run",
        "failed",
        "failed",
    ]

    def send(browser: Browser, action: str) -> int:
        data = {"csrf": browser.csrf, "graph": "hourly", "name": "each", "action": action}
        return browser.ask("POST", "/schedules", data=data).status_code

    other = Browser(api).log_in(token_of(OTHER))
    assert send(other, "pause") == 400
    for action, status in (("pause", "paused"), ("resume", "active")):
        assert send(browser, action) == 303
        (info,) = schedules.all()
        assert info.status == status
    reader = Browser(api).log_in(token_of("default", "read"))
    assert send(reader, "pause") == 403


def test_schedules_are_run_now_and_backfilled_from_their_page(api: Api, browser: Browser) -> None:
    """Fails if a run now takes the name of a tick, or a backfill starts what was not counted."""
    graph = build("hourly")
    graph.schedule(timedelta(hours=1), name=BAD, input={"n": 1, "log": []})
    app = graph.compile(store=api.app.store)
    api.serve(app)
    Schedules(app).register()
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    Schedules(app).backfill(BAD, now - timedelta(hours=2), now)

    def send(browser: Browser, action: str, **more: str) -> Any:
        data = {"csrf": browser.csrf, "graph": "hourly", "name": quote(BAD, safe="")}
        return browser.ask("POST", "/schedules", data={**data, "action": action, **more})

    begun = send(browser, "run")
    assert begun.status_code == 303
    thread = unquote(begun.headers["location"].removeprefix("/threads/"))
    assert thread.startswith(f"tick@@{BAD}@now@")
    assert app.state(thread).state == {"n": 1, "log": []}

    times = {"start": f"{now - timedelta(hours=5):%Y-%m-%dT%H:%M}", "end": f"{now:%Y-%m-%dT%H:%M}"}
    asked = urlencode({"graph": "hourly", "name": BAD, **times})
    said = browser.page(f"/schedules/backfill?{asked}").one("p", **{"class": "hint"}).text
    assert said == "5 ticks; 2 of them have a run. 3 runs would be started."
    done = send(browser, "backfill", **times)
    assert done.headers["location"].startswith("/threads?prefix=tick%40%40")
    said = browser.page(f"/schedules/backfill?{asked}").one("p", **{"class": "hint"}).text
    assert said == "5 ticks; 5 of them have a run. 0 runs would be started."
    assert len(list(app.threads(after="tick@@"))) == 6

    long = urlencode({"graph": "hourly", "name": BAD, **times, "start": "2026-01-01T00:00"})
    for query, words in (
        (long, "more than 500 ticks"),
        (asked.replace("start=", "start=x"), "a time is written as"),
        (asked.replace("hourly", "none"), "does not serve the graph"),
    ):
        refused = browser.ask("GET", f"/schedules/backfill?{query}")
        assert refused.status_code in (400, 404)
        assert words in refused.text
    reader = Browser(api).log_in(token_of("default", "read"))
    wider = {**times, "start": f"{now - timedelta(hours=6):%Y-%m-%dT%H:%M}"}
    wide = urlencode({"graph": "hourly", "name": BAD, **wider})
    for one, may in ((browser, True), (reader, False)):
        text = one.page(f"/schedules/backfill?{wide}").one("main").text
        assert ("Start 1 run" in text) is may
    assert send(reader, "run").status_code == 403
    other = Browser(api).log_in(token_of(OTHER))
    assert other.ask("GET", f"/schedules/backfill?{asked}").status_code == 400


def hour(time: datetime) -> int:
    """The tick of an hour, in microseconds."""
    return int(time.timestamp()) // 3600 * 3600 * SECOND


@pytest.mark.parametrize(
    ("cron", "zone", "said"),
    [
        ("*/15 * * * *", "UTC", "every 15 minutes"),
        ("*/7 * * * *", "UTC", ""),
        ("0 * * * *", "Europe/London", "every hour"),
        ("30 * * * *", "UTC", ""),
        ("0 3 * * *", "UTC", "every day at 03:00"),
        ("30 7 * * 1-5", "America/New_York", "every weekday at 07:30, New York"),
        ("0 6 1 * *", "Europe/London", "first of the month at 06:00, London"),
        ("0 6 13 * 5", "UTC", ""),
        ("0 6 1 2 *", "UTC", ""),
        ("0 6,18 * * *", "UTC", ""),
    ],
)
def test_a_cron_line_is_said_in_words_only_if_they_are_exact(
    cron: str, zone: str, said: str
) -> None:
    """Tried: every 7 minutes, which an hour interrupts; a day of the month and of the week."""
    assert cron_words(cron, zone) == said


def test_a_chart_has_its_numbers_in_a_table(api: Api, browser: Browser) -> None:
    """Tried: the counts of the first bar of each part alone."""
    stacks = [Stack(f"2026-11-19T10:{minute:02}:00Z", 2, 1) for minute in range(60)]
    assert stacked(stacks, 226, ("a", "b")).rows == tuple(
        (f"10:{minute}", 20, 10) for minute in ("00", 10, 20, 30, 40, 50)
    )
    api.run("fails", 13)
    for path in ("/overview", "/failures"):
        cells = [one.text for one in browser.page(path).all("td", **{"class": "n"})]
        assert "1" in cells, path
