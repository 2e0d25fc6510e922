"""The page that lists runs, and the jobs that retry, cancel or delete many of them."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from milecastle.model.keys import ThreadKey
from milecastle.server.identity import ALL_SCOPES
from milecastle.server.pages.rendering import segment
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import OTHER, Api, build, token_of, trip
from tests.unit.server.test_threads_page import HOSTILE, fill, names


def test_failed_runs_are_listed_first(api: Api, browser: Browser) -> None:
    """Fails if another status is the default, or the failure is not shown."""
    api.run("asks", 42)
    api.run("fails", 13)
    found = browser.page("/runs")
    assert names(found) == ["fails"]
    assert "RuntimeError at begin" in found.texts("td")
    assert "no ink" not in found.one("main").text
    assert found.commands()[0] == "milecastle runs --status=failed --limit=100"
    assert names(browser.page("/runs?status=interrupted&graph=trip")) == ["asks"]
    assert names(browser.page("/runs?status=interrupted&graph=none")) == []
    assert names(browser.page("/runs?status=any")) == ["fails", "asks"]
    assert names(browser.page("/runs?status=any&graph=none")) == []
    assert browser.page("/runs?status=any").commands()[0] == ("milecastle runs --limit=100")
    assert browser.ask("GET", "/runs?status=flying").status_code == 400


@pytest.mark.parametrize("status", ["queued", "any"])
def test_pages_of_runs_lead_to_each_other(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Fails if a run is on no page, or on two."""
    monkeypatch.setattr("milecastle.server.pages.runs._ROWS", 4)
    threads = [f"t{number}" for number in range(10)]
    fill(api, *threads)
    found, seen = browser.page(f"/runs?status={status}"), list[str]()
    while following := found.all("a", rel="next"):
        seen += names(found)
        assert "there are more" in found.one("main").text
        found = browser.page(following[0].get("href"))
    assert sorted(seen + names(found)) == threads
    assert "the last 2" in found.one("main").text
    assert found.one("a", rel="first").get("href") == f"/runs?status={status}"


@pytest.mark.parametrize("status", ["queued", "any"])
def test_full_page_of_runs_is_not_too_large(api: Api, browser: Browser, status: str) -> None:
    """``page`` refuses more than 300 kB. Fails if rows are counted and their bytes are not."""
    long = "\u202e" * 169
    fill(api, *(f"{number:03}{long}" for number in range(60)))
    found = browser.page(f"/runs?status={status}")
    shown = len(names(found))
    assert shown < 60
    while following := found.all("a", rel="next"):
        found = browser.page(following[0].get("href"))
        shown += len(names(found))
    assert shown == 60


def test_scan_of_runs_for_a_graph_stops(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a page looks at every thread of a status."""
    fill(api, *(f"t{number}" for number in range(9)))
    monkeypatch.setattr("milecastle.server.limits.LOOKED_AT", 4)
    found = browser.page("/runs?status=queued&graph=none")
    assert "None of the threads searched matches" in found.one("main").text
    assert found.one("a", rel="next").get("href") == "/runs?status=queued&graph=none&after=t3"


def test_hostile_text_of_runs_is_text(api: Api, browser: Browser) -> None:
    """``Document`` refuses scripts and handlers. Fails if a name is not escaped."""
    fill(api, *HOSTILE)
    for status in ("queued", "any"):
        response = browser.ask("GET", f"/runs?status={status}")
        assert response.text.replace("\n", "").isprintable()
        found = browser.page(f"/runs?status={status}")
        assert "<script>alert(1)</script>" in names(found)
        assert "\\x1b[31mred\\x07" in names(found)
        assert len(found.all("script")) == 3
    hostile = quote('"><script>\x1b\u202e', safe="")
    shown = browser.ask("GET", f"/runs?status=queued&graph={hostile}")
    assert shown.text.replace("\n", "").isprintable()
    assert "<script>\\" not in shown.text


def test_hostile_graph_and_failure_are_text(api: Api, browser: Browser) -> None:
    """Fails if the name of a graph, a node or an error is not escaped."""
    from milecastle import END, START, StateGraph
    from tests.unit.server.calling import Trip

    bad = type('<img src="x">', (RuntimeError,), {})

    def fails(state: Trip) -> dict[str, int]:
        raise bad("\x1b[31m")

    graph: StateGraph[Trip] = StateGraph(Trip, name="<b>\r\n")
    graph.add_node("<script>", fails)
    graph.add_edges(START, "<script>", END)
    app = graph.compile(store=api.app.store)
    api.serve(api.app, app)
    app.submit(trip()["input"], "t")
    api.work(app)
    found = browser.page("/runs")
    assert '<img src="x"> at <script>' in found.texts("td")
    assert "<b>\\r\\n" in found.texts("td")
    assert found.texts("a").count("<b>\\r\\n") == 2, "the row and the menu"
    asked = browser.post("/runs/retry", {"status": "failed", "graph": segment("<b>\r\n")})
    assert asked.one("input", name="graph").get("value") == segment("<b>\r\n")
    assert "--graph=<b>" in asked.commands()[0]


def test_live_part_of_runs_has_the_same_url(api: Api, browser: Browser) -> None:
    """Fails if the script is given a whole page, or the filter is lost."""
    fill(api, "a")
    live = browser.page("/runs?status=queued").one("div", id="live")
    fill(api, "ab")
    part = browser.page(live.get("data-live"), headers={"HX-Request": "true"})
    assert part.elements[0].attributes == live.attributes
    assert names(part) == ["a", "ab"]


@pytest.mark.parametrize(
    ("action", "status", "n", "changed"),
    [
        ("retry", "failed", 13, ["failed", "failed"]),
        ("cancel", "interrupted", 42, ["cancelled", "cancelled"]),
        ("delete", "interrupted", 42, [None, None]),
        ("delete", "completed", 1, [None, None]),
    ],
)
@pytest.mark.parametrize("place", ["runs", "threads"])
def test_all_runs_of_a_filter_are_changed_by_a_job(
    api: Api, browser: Browser, place: str, action: str, status: str, n: int, changed: list[str]
) -> None:
    """Fails if it is done without the second page, or if its page does not follow it."""
    listed = f"/{place}?status={status}"
    for thread in ("a", "b", "c"):
        api.run(thread, n)
    fields = browser.page(listed).sent(f"/runs/{action}")
    asked = browser.post(f"/runs/{action}", {**fields, "limit": "2"})
    assert sorted(names(browser.page(listed))) == ["a", "b", "c"]
    assert len(browser.page("/threads").all("th", scope="row")) == 3
    command = f"milecastle runs --status={status} --graph=trip --limit=2 --{action}-all"
    assert asked.commands()[0] == command
    what = "threads" if action == "delete" else "runs"
    assert asked.one("h1").text.startswith(f"{action.capitalize()} at most 2 ") or (
        asked.one("h1").text.startswith(f"{action.capitalize()} 2 ")
    )
    assert what in asked.one("h1").text
    again = {
        **asked.sent(f"/runs/{action}"),
        "limit": asked.one("input", name="limit").get("value"),
    }
    answer = browser.ask("POST", f"/runs/{action}", data=again)
    assert answer.status_code == 303
    job = browser.page(answer.headers["location"])
    assert job.statuses() == ["queued"]
    assert [one.text for one in job.all("dd")][:2] == ["2", "0"]
    assert "0 of 2" in [one.get("aria-label") for one in job.all("svg")]
    assert job.commands()[0].startswith("milecastle show -- bulk@@")
    api.work()
    live = job.one("div", id="live")
    part = browser.page(live.get("data-live"), headers={"HX-Request": "true"})
    assert part.elements[0].attributes == live.attributes
    assert part.statuses() == ["completed"]
    assert [one.text for one in part.all("dd")][:2] == ["2", "2"]
    lines = [api.app.store.thread(ThreadKey("default", thread)) for thread in ("a", "b", "c")]
    left = [line.status if line else None for line in lines]
    assert left == [*changed, status]


def test_what_cannot_be_changed_is_refused(api: Api, browser: Browser) -> None:
    """Fails if a filter of the form is not looked at before a job is handed over."""
    for action, fields in (
        ("retry", {"status": "completed", "graph": "trip"}),
        ("retry", {"status": "queued", "graph": "trip"}),
        ("cancel", {"status": "failed", "graph": "trip"}),
        ("cancel", {"status": "completed", "graph": "trip"}),
        ("delete", {"status": "queued", "graph": "trip"}),
        ("delete", {"status": "superseded", "graph": "trip"}),
        ("delete", {"status": "any", "graph": "trip"}),
        ("cancel", {"status": "queued", "graph": "none"}),
        ("cancel", {"status": "queued", "graph": "trip", "limit": "0"}),
        ("cancel", {"status": "queued", "graph": "trip", "limit": "many"}),
    ):
        for confirmed in ("", "yes"):
            browser.post(f"/runs/{action}", {**fields, "confirmed": confirmed}, 400)
    assert browser.page("/runs?status=any").one("main").text.count("bulk@") == 0
    for status in ("any", "completed", "superseded"):
        shown = browser.page(f"/runs?status={status}", 400 if status == "superseded" else 200)
        offered = [one.get("formaction") for one in shown.all("button") if one.get("formaction")]
        assert offered == (["/runs/delete"] if status == "completed" else [])


def test_jobs_are_offered_for_what_the_list_of_threads_shows(api: Api, browser: Browser) -> None:
    """Fails if a job is offered beside a prefix, which it does not know: it would delete more."""
    fill(api, "a", "b")
    for filters, offered in (
        ("status=interrupted", ["/runs/cancel", "/runs/delete"]),
        ("status=queued", ["/runs/cancel"]),
        ("status=interrupted&prefix=a", []),
        ("prefix=a", []),
        ("status=lost", []),
        ("", []),
    ):
        buttons = browser.page(f"/threads?{filters}").all("button")
        found = [one.get("formaction") for one in buttons]
        assert [one for one in found if one and one.startswith("/runs/")] == offered


def test_jobs_that_delete_need_admin(api: Api, browser: Browser) -> None:
    """Fails if the scope of the other jobs is enough."""
    fill(api, "a")
    operator = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {"admin"})))
    shown = operator.page("/runs?status=interrupted")
    found = [one.get("formaction") for one in shown.all("button")]
    assert "/runs/cancel" in found
    assert "/runs/delete" not in found
    fields = {"status": "interrupted", "graph": "trip", "confirmed": "yes"}
    assert "MC602" in operator.post("/runs/delete", fields, 403).one("main").text


def test_reader_is_not_offered_jobs(api: Api) -> None:
    """Fails if the form is shown to those who may not send it."""
    reader = Browser(api).log_in(token_of("default", "read"))
    sent = [one for one in reader.page("/runs").all("form") if one.get("method") == "post"]
    assert [one.get("action") for one in sent] == ["/colours", "/logout"]
    assert not [one for one in reader.page("/runs").all("button") if one.get("formaction")]


def test_runs_and_jobs_of_another_tenant_are_out_of_reach(api: Api, browser: Browser) -> None:
    """Fails if the tenant is not that of the session."""
    api.run("fails", 13)
    other = Browser(api).log_in(token_of(OTHER))
    for status in ("failed", "any"):
        assert names(other.page(f"/runs?status={status}")) == []
    data = {"csrf": browser.csrf, "status": "failed", "graph": "trip", "confirmed": "yes"}
    place = browser.ask("POST", "/runs/retry", data=data).headers["location"]
    assert "MC604" in other.page(place, 404).one("main").text
    assert "MC604" in browser.page("/jobs/none", 404).one("main").text


def test_job_acts_on_the_runs_that_are_listed(api: Api, browser: Browser) -> None:
    """Failed: with two graphs listed, the form acted on the first by name, without a count."""
    other = build("another").compile(store=api.app.store)
    api.run("t", 13)
    other.submit(trip(13)["input"], "u")
    api.work(other)
    api.serve(api.app, other)
    every = browser.page("/runs?status=failed")
    assert "Choose a graph to retry, delete" in every.one("main").text
    assert not every.all("button", formaction="/runs/retry")
    page = browser.page("/runs?status=failed&graph=trip")
    assert "All of trip" in page.one("main").text
    named = page.one("input", name="graph").get("value")
    fields = {"status": "failed", "graph": named, "limit": ""}
    asked = browser.post("/runs/retry", fields)
    assert asked.one("h1").text == "Retry 1 failed run of trip?"
