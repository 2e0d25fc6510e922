"""The pages of graphs, the form that starts a run, and the first page of an empty store."""

from __future__ import annotations

import base64
import re
from datetime import timedelta
from hashlib import sha256
from typing import Any, NotRequired, TypedDict
from urllib.parse import quote

import pytest

from milecastle import END, START, Context, StateGraph
from milecastle.server.pages.schema_forms import form_fields
from milecastle.server.pages.table import PAGES
from tests.unit.server.browsing import Browser, Document
from tests.unit.server.calling import OTHER, Api, build, token_of

BAD = "<script>\x1b[1m\u202e"


def start_fields(found: Document) -> dict[str, Any]:
    """What the form that starts a run would send now."""
    found.one("form", **{"class": "form start"})
    inputs = [one for one in found.all("input") if one.get("name") in ("thread", "key")]
    return {
        **{one.get("name"): one.get("value") for one in inputs},
        "field": [one.get("value") for one in found.all("input", name="field")],
    }


def test_graphs_are_listed_and_described(api: Api, browser: Browser) -> None:
    """Fails if a graph, a node or a channel is left out."""
    api.serve(api.app, build("second").compile(store=api.app.store))
    found = browser.page("/graphs")
    assert [one.text for one in found.all("th", scope="row")] == ["trip", "second"]
    assert found.one("a", href="/graphs/second").text == "second"
    shown = browser.page("/graphs/trip")
    assert [one.get("id") for one in shown.all("tr") if one.get("id")] == ["node-begin", "node-ask"]
    assert [one.text.split() for one in shown.all("a", href="#node-ask")] == [["ask"] * 2, ["ask"]]
    rows = [one.own for one in shown.all("th", scope="row")]
    assert rows == ["begin", "ask"]
    assert shown.texts("dt")[:3] == ["n", "log", "sure"]
    assert '"additionalProperties": false' in shown.one("main").text
    assert shown.commands() == [
        "milecastle graph",
        """milecastle submit --thread=NAME '--input={"n": 1, "log": [], "sure": true}'""",
    ]
    assert "MC604" in browser.page("/graphs/none", 404).one("main").text


def test_graph_shows_how_its_nodes_have_done(api: Api, browser: Browser) -> None:
    """Fails if runs of another tenant or graph are counted, or a colour is of another figure."""
    for number, n in enumerate((13, 13, 1, 42)):
        api.run(f"t{number}", n)
    api.app.submit({"n": 1, "log": []}, "waits")

    row = browser.page("/graphs/trip").one("tr", id="node-begin").text.split()
    assert [row[row.index("end") + 1], *row[-2:]] == ["4", "2", "0"]  # runs, failed, retried

    def look(way: str) -> tuple[str, str]:
        found = browser.page(f"/graphs/trip?by={way}")
        (kind,) = [one.get("class") for one in found.all("a") if one.get("data-node") == "begin"]
        return kind, " ".join(found.texts("text"))

    assert look("failures")[0] == "bad"
    assert "2 of 4 runs failed" in look("failures")[1]
    assert look("time")[0] == "plain"
    assert "p95" in look("time")[1]
    assert "p95" not in look("plain")[1]
    assert "no worker" in browser.page("/graphs/trip").one("main").text
    other = Browser(api).log_in(token_of(OTHER)).page("/graphs/trip")
    assert "nothing has run" in other.one("main").text


def test_drawing_is_an_image_whose_style_is_allowed(api: Api, browser: Browser) -> None:
    """Fails if the policy blocks the style of the drawing, or allows any other."""
    url = "/graphs/trip/drawing.svg"
    assert browser.page("/graphs/trip").one("a", href=url).text == "Drawing as an image"
    answer = browser.ask("GET", url)
    assert answer.headers["content-type"] == "image/svg+xml"
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert "style=" not in answer.text
    assert browser.ask("GET", "/graphs/none/drawing.svg").status_code == 404


def test_run_is_started_by_the_form(api: Api, browser: Browser) -> None:
    """Fails if the input is not converted, or key, priority or delay is not passed on."""
    fields = start_fields(browser.page("/graphs/trip"))
    assert re.fullmatch(r"trip-[0-9a-f]{8}", fields["thread"])
    assert fields["field"] == ["n", "log", "sure"]
    assert start_fields(browser.page("/graphs/trip"))["thread"] != fields["thread"]
    sent = {**fields, "value": ["5", '["a"]', ""], "key": "k", "priority": "7", "delay": "0"}
    answer = browser.ask("POST", "/graphs/trip/runs", data={"csrf": browser.csrf, **sent})
    if any(page.path == "/threads/{thread}" for page in PAGES):
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            f"/threads/{fields['thread']}",
        )
    else:
        assert fields["thread"] in Document(answer.text).one("main").text
    info = api.app.store.thread(api.application.service.key("default", fields["thread"]))
    assert info is not None
    assert (info.status, info.priority) == ("queued", 7)
    api.work()
    assert api.app.state(fields["thread"]).state == {"n": 6, "log": ["a", "begin"]}
    browser.ask("POST", "/graphs/trip/runs", data={"csrf": browser.csrf, **sent})
    api.work()
    assert api.app.state(fields["thread"]).state["n"] == 6, "the key finds the run"
    late = {**sent, "thread": "late", "delay": "3600", "key": ""}
    browser.ask("POST", "/graphs/trip/runs", data={"csrf": browser.csrf, **late})
    api.work()
    assert api.app.state("late").status == "queued"


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"value": ["five", "[]", ""]}, 422, "the input is not valid: $.n"),
        ({"value": ["5", "[", ""]}, 422, "$.log"),
        ({"priority": "1000"}, 400, "priority"),
        ({"priority": "high"}, 400, "priority is not a number"),
        ({"delay": "-1"}, 400, "delay"),
        ({"delay": "nan"}, 400, ""),
        ({"thread": ""}, 400, "thread"),
        ({"thread": "x" * 600}, 400, "thread"),
    ],
)
def test_refused_form_is_shown_again_as_it_was(
    api: Api, browser: Browser, changed: dict[str, Any], status: int, said: str
) -> None:
    """Fails if what was typed is lost, or something is started."""
    sent = {"thread": "t", "field": ["n", "log", "sure"], "value": ["5", "[]", ""], **changed}
    found = browser.post("/graphs/trip/runs", sent, status)
    assert said in found.one("p", role="alert").text
    assert found.one("input", name="thread").get("value") == sent["thread"]
    assert found.one("input", id="start-1").get("value") == sent["value"][0]
    assert list(api.app.store.threads("default")) == []


def test_schedules_are_shown_to_the_tenant_of_the_app(api: Api, browser: Browser) -> None:
    """Fails if another tenant learns when they ran."""
    graph = build("timed")
    graph.schedule(timedelta(hours=1), name="each-hour", input={"n": 1, "log": []})
    api.serve(graph.compile(store=api.app.store))
    shown = browser.page("/graphs/timed")
    assert "each-hour" in shown.texts("span")
    other = Browser(api).log_in(token_of(OTHER))
    assert "each-hour" not in other.page("/graphs/timed").one("main").text


def test_reader_may_not_start(api: Api) -> None:
    """Fails if the form is shown to those who may not send it."""
    reader = Browser(api).log_in(token_of("default", "read"))
    assert reader.page("/graphs/trip").all("form", **{"class": "form start"}) == []
    assert reader.page("/overview").all("form", **{"class": "form start"}) == []


def test_run_is_started_in_the_tenant_of_the_session(api: Api) -> None:
    """Fails if the tenant is that of the app."""
    other = Browser(api).log_in(token_of(OTHER))
    sent = {"thread": "t", "field": ["n", "log"], "value": ["5", "[]"]}
    other.ask("POST", "/graphs/trip/runs", data={"csrf": other.csrf, **sent})
    assert [info.key.thread for info in api.app.store.threads(OTHER)] == ["t"]
    assert list(api.app.store.threads("default")) == []
    assert f"submit --tenant={OTHER}" in other.page("/graphs/trip").commands()[1]


def test_hostile_names_of_a_graph_are_text(api: Api, browser: Browser) -> None:
    """``Document`` refuses scripts and handlers. Fails if a name of a graph is not escaped."""
    state: Any = TypedDict("state", {"n": int})
    state.__annotations__[BAD] = int
    graph: StateGraph[Any] = StateGraph(state, name=BAD)
    graph.add_node(BAD, lambda state: {}, version=BAD)
    graph.add_edges(START, BAD, END)
    graph.schedule(timedelta(hours=1), name=BAD, input={})
    api.serve(graph.compile(store=api.app.store))
    place = f"/graphs/{quote(BAD, safe='')}"
    shown = "<script>\\x1b[1m\\u202e"
    for path in ("/graphs", place, "/overview"):
        response = browser.ask("GET", path)
        assert response.status_code == 200, response.text
        assert response.text.replace("\n", "").isprintable(), path
        found = browser.page(path)
        assert shown in found.one("main").text
        assert len(found.all("script")) == 3
    assert browser.page(place).texts("th").count(shown) == 1
    assert shown in browser.page(place).one("section", **{"aria-labelledby": "g-sch"}).text
    assert browser.page(place).texts("dt").count(shown) == 1
    drawing = browser.ask("GET", f"{place}/drawing.svg")
    assert "<script" not in drawing.text
    assert "\x1b" not in drawing.text


def test_large_graph_is_not_too_large(api: Api, browser: Browser) -> None:
    """``page`` refuses more than 300 kB. Fails if a part has no limit."""
    graph = build("large")
    names = [f"{number}-{'<' * 90}" for number in range(200)]
    for name in names:
        graph.add_node(name, lambda state: {})
    graph.add_edges("ask", *names, END)
    api.serve(graph.compile(store=api.app.store))
    found = browser.page("/graphs/large")
    assert "more are not shown here" in found.one("main").text
    assert "milecastle graph --json" in found.one("main").text


def test_empty_store_says_how_to_begin(api: Api, browser: Browser) -> None:
    """Fails if a way is left out, or if it stays once there are threads."""
    found = browser.page("/overview")
    assert found.texts("h2")[:3] == ["The server has no worker", "Start a run", "Watch it"]
    shell, python, curl = (one.text for one in found.all("pre", **{"class": "raw"}))
    given = '{"n": 1, "log": [], "sure": true}'
    assert shell == (f"milecastle submit --app=MODULE:ATTRIBUTE --thread=first '--input={given}'")
    assert python == """app.submit({'n': 1, 'log': [], 'sure': True}, "first")"""
    assert "http://127.0.0.1:8321/v1/threads/first/runs" in curl
    body = curl.partition("-d '")[2].removesuffix("'")
    answer = api.ask(
        "POST",
        "/v1/threads/first/runs",
        content=body,
        headers={"Content-Type": "application/json"},
        token=token_of(OTHER),
    )
    assert answer.status_code == 202
    api.app.submit({"n": 1, "log": [], "sure": True}, "first")
    assert start_fields(found)["field"] == ["n", "log", "sure"]
    assert browser.page("/overview").all("form", **{"class": "form start"}) == []
    assert browser.page("/overview?since=7d").all("form", **{"class": "form start"}) == []


class Order(TypedDict):
    item: str
    count: int
    sent: bool


class Ordered(TypedDict):
    item: str
    count: NotRequired[int]


def test_the_form_and_the_api_take_the_declared_input(api: Api, browser: Browser) -> None:
    """Every field was marked optional, also one without which no run can start."""
    graph = StateGraph(Order, name="orders", input=Ordered)
    graph.add_node("send", lambda state: {"sent": True})
    graph.add_edges(START, "send", END)
    api.serve(graph.compile(store=api.app.store))
    fields = form_fields(api.ask("GET", "/v1/graphs/orders").json()["input"])
    assert [(one.name, one.required) for one in fields] == [("item", True), ("count", False)]
    refused = api.ask("POST", "/v1/threads/t/runs", json={"input": {"count": 1}})
    assert refused.status_code == 400
    assert "the input lacks 'item', which Ordered requires" in refused.text
    sent = api.ask("POST", "/v1/threads/t/runs", json={"input": {"item": "x"}})
    assert sent.status_code == 202


class Settings(TypedDict):
    speed: int


class Race(TypedDict):
    n: int


def test_run_is_started_with_the_config_its_graph_declares(api: Api) -> None:
    """Tried: the field for graphs without a config; text that is not JSON submitted as none."""
    graph: StateGraph[Race] = StateGraph(Race, name="fast", config=Settings)

    @graph.node
    def go(state: Race, ctx: Context) -> dict[str, int]:
        return {"n": ctx.config["speed"]}

    graph.add_edges(START, "go", END)
    app = graph.compile(store=api.app.store)
    plain = Browser(api).log_in(token_of("default")).page("/graphs/trip")
    assert plain.all("textarea", name="config") == []
    api.serve(app)
    browser = Browser(api).log_in(token_of("default"))
    fields = start_fields(browser.page("/graphs/fast")) | {"thread": "f", "value": ["1"]}
    for wrong in ("speed", '["speed"]', '{"speed": "high"}'):
        data = {"csrf": browser.csrf, **fields, "config": wrong}
        assert browser.ask("POST", "/graphs/fast/runs", data=data).status_code in (400, 422)
    data = {"csrf": browser.csrf, **fields, "config": '{"speed": 9}'}
    assert browser.ask("POST", "/graphs/fast/runs", data=data).status_code in (200, 303)
    api.work(app)
    assert app.state("f").state["n"] == 9
    sdk: dict[str, Any] = {"assistant_id": "fast", "input": {"n": 1}, "context": {"speed": 7}}
    assert api.ask("POST", "/langgraph/threads/g/runs", json=sdk).status_code == 200
    api.work(app)
    assert app.state("g").state["n"] == 7
    sdk["context"] = {"speed": "high"}
    assert api.ask("POST", "/langgraph/threads/h/runs", json=sdk).status_code in (400, 422)
