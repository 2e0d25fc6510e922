"""The items of a fan-out, and the runs of a thread."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, StateGraph, append
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import Api

BAD = "<script>alert(1)</script>\x1b[31m\u202e"


class Rows(TypedDict):
    rows: list[int]
    bad: list[int]
    done: Annotated[list[int], append]


class Row(TypedDict):
    row: int
    bad: list[int]


def read(state: Row) -> dict[str, Any]:
    if state["row"] in state["bad"]:
        raise ValueError(f"{BAD} {state['row']}")
    return {"done": [state["row"]]}


@pytest.fixture
def app(api: Api) -> App[Rows]:
    """A fan-out, which the server serves."""
    graph: StateGraph[Rows] = StateGraph(Rows, name="imports")
    graph.add_node("read", read)
    graph.map(START, "read", over="rows", item="row")
    graph.add_edge("read", END)
    app = graph.compile(store=api.app.store)
    api.serve(api.app, app)
    return app


def run(api: Api, app: App[Rows], count: int, *bad: int) -> None:
    app.submit({"rows": [100 + row for row in range(count)], "bad": [*bad], "done": []}, "t")
    api.work(app)


def test_failed_items_come_first_with_their_input(
    api: Api, app: App[Rows], browser: Browser
) -> None:
    """Fails if an item cannot be found among many, or another one's input is shown."""
    run(api, app, 2000, 411, 1300)
    found = browser.page("/threads/t/items")
    assert [one.own for one in found.all("th", scope="row")] == ["read#311", "read#1200"]
    text = " ".join(found.one("main").text.split())
    assert "read, 2,000 items" in text
    assert "done 1,998" in text
    assert "failed 2" in text
    assert "ValueError: <script>" in text
    link = found.all("th", scope="row")[0]
    assert link.text
    shown = browser.page("/threads/t/items?item=311").one("section", id="input").text
    assert "row" in shown
    assert "411" in shown
    assert "no such item" in browser.page("/threads/t/items?item=5000").one("main").text
    assert browser.ask("GET", "/threads/t/items").text.replace("\n", "").isprintable()
    fields = {**found.sent("/bulk/retry"), "confirmed": "yes"}
    answer = browser.ask("POST", "/bulk/retry", data={**fields, "csrf": browser.csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, "/threads/t")


def test_single_failed_item_is_shown_without_its_place(
    api: Api, app: App[Rows], browser: Browser
) -> None:
    """It is not stored which one it was. Tried: nothing said to have failed."""
    run(api, app, 9, 103)
    found = browser.page("/threads/t/items")
    assert [one.own for one in found.all("th", scope="row")] == ["one of read"]
    text = " ".join(found.one("main").text.split())
    assert "done 8failed 1" in text
    assert "ValueError: <script>" in text


def test_finished_fan_out_has_its_slowest_items(api: Api, app: App[Rows], browser: Browser) -> None:
    """Fails if a step that has ended is taken for one that runs, or its input for the next."""
    run(api, app, 30)
    found = browser.page("/threads/t/items")
    assert len(found.all("th", scope="row")) == 30
    assert "done 30" in found.one("main").text
    assert found.all("svg", role="img")[-1].get("aria-label") == "How long items took: 30 attempts"
    shown = browser.page("/threads/t/items?item=3&node=read").one("section", id="input").text
    assert "103" in shown
    assert "Items" in browser.page("/threads/t").texts("a")
    assert "No fan-out" in browser.page("/threads/t/items?node=other").one("main").text


def test_runs_of_a_thread_are_listed(
    api: Api, app: App[Rows], browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a run is on no page, or its failure is left out."""
    run(api, app, 3, 101)
    for _ in range(2):
        app.retry("t")
        api.work(app)
    found = browser.page("/threads/t/runs")
    assert found.statuses()[1:] == ["failed"] * 3
    text = found.one("main").text
    assert "ValueError at read" in text
    assert browser.ask("GET", "/threads/t/runs").text.replace("\n", "").isprintable()
    monkeypatch.setattr("milecastle.server.pages.thread_runs._ROWS", 2)
    found = browser.page("/threads/t/runs")
    (following,) = found.all("a", rel="next")
    rest = browser.page(following.get("href"))
    assert [len(one.all("th", scope="row")) for one in (found, rest)] == [2, 1]
