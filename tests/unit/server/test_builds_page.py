"""The pages of builds: runs in a workspace, what they reused, and plans."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from milecastle.errors import MilecastleError
from tests.unit.server.browsing import Browser
from tests.unit.server.building import build_files, source_of
from tests.unit.server.calling import OTHER, Api, token_of
from tests.unit.server.test_threads_page import names

BAD = "<script>\x1b[1m\u202e"


def test_server_without_a_workspace_says_so(browser: Browser) -> None:
    """Fails if the page raises where no graph has builds."""
    assert "No graph of this server has a workspace" in browser.page("/builds").one("main").text
    for path in ("/builds?graph=trip", "/builds/trip/plan", "/builds/trip/runs/x"):
        assert "MC604" in browser.page(path, 404).one("main").text


def test_builds_are_listed_with_what_they_reused(api: Api, browser: Browser) -> None:
    """Fails if a node that was reused counts as run, or the newest is not first."""
    app = build_files(api)
    first = app.build({}).run_id
    source_of(api).write_text("two")
    app.build({})
    last = app.build({}).run_id
    found = browser.page("/builds")
    counts = [one.text for one in found.all("td", **{"class": "n"})]
    assert counts == ["0", "2", "2", "0", "2", "0"]
    shown = browser.page(found.one("a", href=f"/builds/files/runs/{last}").get("href"))
    assert [one.text for one in shown.all("th", scope="row")] == ["upper", "double"]
    assert [cell.startswith("reused of ") for cell in shown.texts("td")[::3]] == [True, True]
    assert shown.commands()[0] == f"milecastle show -- files@{last}"
    made = browser.page(f"/builds/files/runs/{first}")
    assert made.texts("td")[::3] == ["run", "run"]
    assert made.texts("td")[2::3] == ["mid.txt", "out.txt"]
    live = found.one("div", id="live")
    part = browser.page(live.get("data-live"), headers={"HX-Request": "true"})
    assert part.elements[0].attributes == live.attributes


def test_plan_says_what_would_run_and_why(api: Api, browser: Browser) -> None:
    """Fails if a plan is that of another mode, or runs something."""
    app = build_files(api)
    app.build({})
    found = browser.page("/builds/files/plan")
    assert found.statuses() == ["reuse", "reuse"]
    source_of(api).write_text("two")
    found = browser.page("/builds/files/plan")
    assert found.statuses() == ["execute", "execute"]
    assert "in.txt" in found.texts("td")[1]
    assert "Would not run" in browser.page("/builds/files/plan?mode=resume-only").one("main").text
    assert found.commands()[0] == "milecastle plan --mode=incremental"
    assert (source_of(api).parent / "mid.txt").read_text() == "oneone"
    assert browser.ask("GET", "/builds/files/plan?mode=fast").status_code == 400


def test_failed_build_is_shown_without_its_message(api: Api, browser: Browser) -> None:
    """Fails if the text of an exception, which may have values, is shown in a list."""
    app = build_files(api)
    source_of(api).write_text("broken")
    with pytest.raises(MilecastleError):
        app.build({})
    found = browser.page("/builds")
    assert "RuntimeError at upper" in found.texts("td")
    assert "sekrit" not in found.one("main").text


def test_pages_of_builds_lead_to_each_other(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a run is on no page, or on two."""
    app = build_files(api)
    made = [app.build({}).run_id for _ in range(5)]
    monkeypatch.setattr("milecastle.server.pages.builds._ROWS", 2)
    found, seen = browser.page("/builds"), list[str]()
    while following := found.all("a", rel="next"):
        seen += names(found)
        found = browser.page(following[0].get("href"))
    assert seen + names(found) == made[::-1]
    monkeypatch.setattr("milecastle.server.pages.builds._LOOKED_AT", 1)
    assert len(names(browser.page("/builds"))) == 1


def test_builds_of_another_tenant_are_out_of_reach(api: Api) -> None:
    """Fails if the tenant is not that of the session."""
    run = build_files(api).build({}).run_id
    other = Browser(api).log_in(token_of(OTHER))
    assert "No builds" in other.page("/builds").one("main").text
    assert "MC604" in other.page(f"/builds/files/runs/{run}", 404).one("main").text
    assert other.page("/builds/files/plan").statuses() == ["execute", "execute"]
    assert f"--tenant={OTHER}" in other.page("/builds/files/plan").commands()[0]


def test_hostile_names_of_builds_are_text(api: Api, browser: Browser) -> None:
    """``Document`` refuses scripts and handlers. Fails if a name is not escaped."""
    app = build_files(api, name=BAD, nodes=(BAD, "<b>"))
    run = app.build({}, thread=BAD).run_id
    name = quote(BAD, safe="")
    shown = "<script>\\x1b[1m\\u202e"
    for path in ("/builds", f"/builds/{name}/plan", f"/builds/{name}/runs/{run}"):
        response = browser.ask("GET", path)
        assert response.status_code == 200, path
        assert response.text.replace("\n", "").isprintable(), path
        found = browser.page(path)
        assert shown in (*found.texts("th"), *found.texts("td")), path
        assert len(found.all("script")) == 3
    for run in ("..", "%2e%2e%2f", "a%00b", name):
        assert browser.ask("GET", f"/builds/{name}/runs/{run}").status_code in (400, 404)
