"""The inbox: open questions, answered one by one or several at once."""

from __future__ import annotations

from typing import Any, Literal, TypedDict
from urllib.parse import quote

import msgspec
import pytest

from milecastle import END, START, App, StateGraph, interrupt
from milecastle.server.identity import ALL_SCOPES
from milecastle.server.pages.inbox import open_questions
from tests.unit.server.browsing import Browser, Document, Element
from tests.unit.server.calling import OTHER, Api, token_of

HX = {"HX-Request": "true"}
BAD = "<script>alert(1)</script>\x1b[31m\u202e"


class Review(TypedDict, total=False):
    kind: str
    text: str
    within: int
    got: Any


class Verdict(msgspec.Struct):
    grade: int
    mood: Literal["good", "bad"]


KINDS: dict[str, Any] = {"verdict": Verdict, "text": str, "anything": None}


def asks(state: Review) -> dict[str, Any]:
    kind = state.get("kind", "bool")
    text = state.get("text", "")
    within = state.get("within")
    kinds = KINDS.get(kind, bool)
    got = interrupt(f"{kind}?{text}", show={"text": text}, answer=kinds, within=within)
    return {"got": got if not isinstance(got, msgspec.Struct) else msgspec.to_builtins(got)}


@pytest.fixture
def app(api: Api) -> App[Review]:
    """An app whose runs ask for the type in ``kind``, and which the server serves."""
    graph: StateGraph[Review] = StateGraph(Review, name="review")
    graph.add_node("asks", asks)
    graph.add_edges(START, "asks", END)
    app = graph.compile(store=api.app.store)
    api.serve(api.app, app)
    return app


def fill(api: Api, app: App[Review], *threads: str, **state: Any) -> None:
    for thread in threads:
        app.submit({**state}, thread)
    api.work(app)


def items(found: Document) -> list[Element]:
    return [one for one in found.all("li") if "data-listed" in one.attributes]


def form_of(browser: Browser, thread: str, query: str = "") -> dict[str, Any]:
    """What the form of a thread's question sends, without an answer."""
    (link,) = [
        one.get("href")
        for one in browser.page(f"/inbox?{query}").all("a", **{"class": "q"})
        if f"q={quote(quote(thread, safe=''), safe='')}%2F" in one.get("href")
    ]
    found = browser.page(link)
    fields = [one.get("value") for one in found.all("input", name="field")]
    sent = found.sent("/inbox")
    return {"question": sent["question"], "kind": sent["kind"], "field": fields[:1]}


def values_of(found: Document) -> list[str]:
    """What the boxes of the listed questions send."""
    return [one.get("value") for one in found.all("input", name="also")]


def test_questions_with_a_deadline_come_first_and_show_it(
    api: Api, app: App[Review], browser: Browser
) -> None:
    """Tried: the page without its sort; the questions are by thread."""
    fill(api, app, "a")
    fill(api, app, "b", within=7200)
    fill(api, app, "c", within=3600)
    found = browser.page("/inbox")
    shown = [one.text for one in found.all("span") if "data-name" in one.attributes]
    assert shown == ["c", "b", "a"]
    until = app.state("c").interrupts[0].until
    assert until is not None
    assert "until in " in found.one("main").text
    assert f"{until:%Y-%m-%d %H:%M:%S} UTC" in [one.get("title") for one in found.all("time")]


def test_questions_are_shown_with_what_they_show(
    api: Api, app: App[Review], browser: Browser
) -> None:
    """Fails if a question, what it shows, or its form is left out."""
    fill(api, app, "a", text="why")
    fill(api, app, "b", kind="verdict")
    api.app.submit({"n": 42, "log": []}, "t")
    api.work()
    found = browser.page("/inbox")
    assert len(items(found)) == 3
    shown = found.one("main").text
    for text in ("bool?why", "sure?", "verdict?", "node asks", "yes or no", "form of 2 fields"):
        assert text in shown, text
    facts = dict(zip(found.texts("dt"), found.texts("dd"), strict=False))
    assert facts["text"] == "why"
    assert found.texts("button").count("Yes y") == 1, "one question is open"
    verdict = next(one for one in found.all("a", **{"class": "q"}) if "verdict" in one.text)
    opened = browser.page(verdict.get("href"))
    labels = [one.text.strip() for one in opened.all("label", **{"class": "field"})]
    assert [label.split()[0] for label in labels] == ["Reason", "grade", "mood"]
    assert names_of(browser.page("/inbox?graph=review")) == ["a", "b"]
    assert names_of(browser.page("/inbox?after=a")) == ["b", "t"]
    assert "No question is open" in browser.page("/inbox?graph=none").one("main").text
    command = "milecastle ls --status=interrupted --limit=50"
    assert found.commands()[0] == command


def names_of(found: Document) -> list[str]:
    return sorted(one.text for one in found.all("span") if "data-name" in one.attributes)


def test_question_is_answered_by_a_plain_form(api: Api, app: App[Review], browser: Browser) -> None:
    """Fails if the answer is not converted, or the browser is led elsewhere."""
    fill(api, app, "a")
    fields = form_of(browser, "a", "graph=review")
    data = {"csrf": browser.csrf, **fields, "value": "true", "graph": "review"}
    answer = browser.ask("POST", "/inbox", data=data)
    assert (answer.status_code, answer.headers["location"]) == (303, "/inbox?graph=review")
    api.work(app)
    assert app.state("a").state.get("got") is True
    assert items(browser.page("/inbox")) == []


def test_answer_of_several_fields(api: Api, app: App[Review], browser: Browser) -> None:
    """Fails if fields are mixed up, or what is not valid is accepted."""
    fill(api, app, "a", kind="verdict")
    fields = {**form_of(browser, "a"), "field": ["grade", "mood"]}
    for value in (["bad", '"good"'], ["3", '"sad"'], ["", '"good"']):
        shown = browser.post("/inbox", {**fields, "value": value})
        assert shown.texts("td")[-1].startswith("MC"), value
    assert app.state("a").status == "interrupted"
    browser.ask("POST", "/inbox", data={"csrf": browser.csrf, **fields, "value": ["3", '"good"']})
    api.work(app)
    assert app.state("a").state.get("got") == {"grade": 3, "mood": "good"}


def test_several_questions_get_one_answer(api: Api, app: App[Review], browser: Browser) -> None:
    """Fails if one that was not selected is answered, or one refusal ends it."""
    fill(api, app, "a", "b", "c", "d")
    found = browser.page("/inbox")
    boxes = found.all("input", name="also")
    assert len(boxes) == 4
    batch = boxes[0].get("form")
    assert found.one("form", id=batch).get("action") == "/inbox"
    assert {box.get("form") for box in boxes} == {batch}
    own = form_of(browser, "a")
    app.cancel("b")
    chosen = [value for value in values_of(found) if not value.startswith("d")]
    fields = {**own, "value": "false", "also": chosen}
    browser.post("/inbox", {**fields, "question": "a/none"})
    api.work(app)
    assert app.state("c").status == "interrupted", "those that are selected were not asked for"
    done = browser.post("/inbox", {**fields, "others": "yes"})
    assert done.texts("th")[3:] == ["a", "b", "c"]
    assert [code.startswith("MC") for code in done.texts("td")[1::2]] == [False, True, False]
    api.work(app)
    assert [app.state(name).state.get("got") for name in "acd"] == [False, False, None]


def test_what_is_answered_is_looked_up_again(api: Api, app: App[Review], browser: Browser) -> None:
    """Fails if a question that is not open, or asks for another type, is answered."""
    fill(api, app, "a")
    fill(api, app, "b", kind="text")
    fields = form_of(browser, "a")
    other = form_of(browser, "b")["question"]
    for question, said in (
        ("a/none", "no longer open"),
        ("none/none", "no such thread"),
        (other, "another type"),
    ):
        done = browser.post("/inbox", {**fields, "question": question, "value": "true"})
        assert said in done.texts("td")[0]
    browser.post("/inbox", {"kind": fields["kind"]}, 400)
    assert {app.state(name).status for name in "ab"} == {"interrupted"}


def test_script_gets_the_list_and_the_outcome(api: Api, app: App[Review], browser: Browser) -> None:
    """Fails if the part that is swapped differs from the page, or a refusal is not said."""
    fill(api, app, "a", "b")
    page = browser.page("/inbox?graph=review")
    live = page.one("div", id="live")
    assert live.get("data-live").startswith("/inbox?graph=review&q=a%2F")
    part = browser.page(live.get("data-live"), headers=HX)
    assert part.elements[0].attributes == live.attributes
    assert {one.get("id") for one in items(part)} == {one.get("id") for one in items(page)}
    fields = {**form_of(browser, "a", "graph=review"), "graph": "review"}
    done = browser.post("/inbox", {**fields, "value": "true"}, headers=HX)
    following = {"data-live": live.get("data-live").replace("=a%2F", "=b%2F")}
    assert done.elements[0].attributes == {**live.attributes, **following}
    assert names_of(done) == ["b"]
    outcome = done.one("div", id="outcome")
    assert "Answered a. It continues." in outcome.text
    again = browser.post("/inbox", {**fields, "value": "true"}, headers=HX)
    assert "no longer open" in again.one("p", role="alert").text


def test_question_answered_elsewhere_is_not_replaced_by_another(
    api: Api, app: App[Review], browser: Browser
) -> None:
    """Tried: the first question opened in its place, for the key that was meant for this one."""
    fill(api, app, "a", "b")
    live = browser.page("/inbox").one("div", id="live").get("data-live")
    assert live.startswith("/inbox?q=a%2F"), "the stream does not name the question that is open"
    fields = form_of(browser, "b")
    app.answer("a", True)
    part = browser.page(live, headers=HX)
    assert "no longer open" in part.one("h2", id="q-now").text
    assert part.all("form") == []
    assert names_of(part) == ["b"]
    assert part.one("div", id="live").get("data-live") == live
    (following,) = [one.get("href") for one in part.all("a", **{"class": "btn"})]
    assert browser.page(following).sent("/inbox")["question"] == fields["question"]
    fill(api, app, "c")
    done = browser.post("/inbox", {**fields, "value": "true", "next": "a/gone"}, headers=HX)
    assert "bool" in done.one("h2", id="q-now").text, "an answer does not move on"


def test_refused_answer_is_said_beside_its_question(
    api: Api, app: App[Review], browser: Browser
) -> None:
    """Fails if text of several lines or JSON is changed on its way."""
    fill(api, app, "a", kind="text")
    fields = form_of(browser, "a")
    data = {"csrf": browser.csrf, **fields, "value": "one\r\ntwo <b>"}
    assert browser.ask("POST", "/inbox", data=data).status_code == 303
    api.work(app)
    assert app.state("a").state.get("got") == "one\ntwo <b>"


def test_hostile_questions_are_text(api: Api, app: App[Review], browser: Browser) -> None:
    """``Document`` refuses scripts and handlers. Fails if a text of a question is not escaped."""
    for kind in ("bool", "text", "anything"):
        fill(api, app, f"{kind}{BAD}", kind=kind, text=f"{BAD}\n{{{{ 7 * 7 }}}}")
    response = browser.ask("GET", "/inbox")
    assert response.text.replace("\n", "").isprintable()
    found = browser.page("/inbox")
    assert len(items(found)) == 3
    assert len(found.all("script")) == 4
    line = "<script>alert(1)</script>\\x1b[31m\\u202e"
    titles = [one.text for one in found.all("span", **{"class": "cut"}) if "?" in one.text]
    assert sorted(titles) == [f"{kind}?{line}" for kind in ("anything", "bool", "text")]
    names, kinds, questions = list[str](), set[str](), list[str]()
    for link in found.all("a", **{"class": "q"}):
        response = browser.ask("GET", link.get("href"))
        assert response.text.replace("\n", "").isprintable()
        opened = browser.page(link.get("href"))
        questions.append(opened.one("h2", id="q-now").text)
        names.append(opened.sent("/inbox")["question"])
        kinds.add(opened.sent("/inbox")["kind"])
    shown = f"{line}\n{{{{ 7 * 7 }}}}"
    assert sorted(questions) == [f"{kind}?{shown}" for kind in ("anything", "bool", "text")]
    for name in names:
        outcomes = [
            browser.ask(
                "POST",
                "/inbox",
                data={
                    "csrf": browser.csrf,
                    "question": name,
                    "kind": kind,
                    "field": "",
                    "value": "true",
                },
            )
            for kind in kinds
        ]
        assert [one.status_code for one in outcomes].count(303) == 1
        for one in outcomes:
            assert one.status_code == 303 or one.text.replace("\n", "").isprintable()


def test_pages_of_the_inbox_lead_to_each_other(
    api: Api, app: App[Review], browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a thread is on no page, or on two."""
    monkeypatch.setattr("milecastle.server.pages.inbox._ROWS", 2)
    threads = [f"t{number}" for number in range(5)]
    fill(api, app, *threads)
    found, seen = browser.page("/inbox"), list[str]()
    while following := found.all("a", rel="next"):
        seen += names_of(found)
        found = browser.page(following[0].get("href"))
    assert seen + names_of(found) == threads
    assert found.one("a", rel="first").get("href") == "/inbox"


def test_full_inbox_is_not_too_large(api: Api, app: App[Review], browser: Browser) -> None:
    """``page`` refuses more than 300 kB. Fails if questions are counted and not their bytes."""
    fill(api, app, *(f"{number}" + "\u202e" * 150 for number in range(30)), text="<" * 5000)
    found, seen = browser.page("/inbox"), list[str]()
    assert "There is more" in found.one("main").text
    while following := found.all("a", rel="next"):
        seen += names_of(found)
        found = browser.page(following[0].get("href"))
    assert len(seen + names_of(found)) == 30


def test_thread_with_many_questions_is_cut(api: Api, browser: Browser) -> None:
    """Fails if one thread makes a page too large, or the rest is not mentioned."""

    def many(state: Review) -> dict[str, Any]:
        interrupt("<" * 1900, answer=bool)
        return {}

    graph: StateGraph[Review] = StateGraph(Review, name="many")
    names = [f"n{number}" for number in range(40)]
    for name in names:
        graph.add_node(name, many)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=api.app.store)
    api.serve(app)
    app.submit({}, "t")
    api.work(app)
    found = browser.page("/inbox")
    assert 1 < len(items(found)) < 40
    assert "more questions" in found.one("main").text


def test_badge_looks_at_so_many_threads(
    api: Api, app: App[Review], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if every thread that waits is counted."""
    fill(api, app, *(f"t{number}" for number in range(6)))
    service = api.application.service
    assert open_questions(service, "default") == "6"
    monkeypatch.setattr("milecastle.server.pages.inbox._LOOKED_AT", 4)
    assert open_questions(service, "default") == "4+"
    monkeypatch.setattr("milecastle.server.pages.inbox._COUNTED", 3)
    assert open_questions(service, "default") == "3+"
    assert open_questions(service, OTHER) == ""


def test_reader_sees_questions_and_no_forms(api: Api, app: App[Review]) -> None:
    """Fails if forms are shown to those who may not send them."""
    fill(api, app, "a", "b")
    reader = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {"answer"})))
    found = reader.page("/inbox")
    assert names_of(found) == ["a", "b"]
    assert [one.get("action") for one in found.all("form") if one.get("method") == "post"] == [
        "/colours",
        "/logout",
    ]
    assert values_of(found) == []
    assert "needs a token with the scope answer" in found.one("main").text


def test_questions_of_another_tenant_are_out_of_reach(
    api: Api, app: App[Review], browser: Browser
) -> None:
    """Fails if the tenant is not that of the session."""
    fill(api, app, "a")
    fields = form_of(browser, "a")
    other = Browser(api).log_in(token_of(OTHER))
    assert items(other.page("/inbox")) == []
    done = other.post("/inbox", {**fields, "value": "true"})
    assert done.texts("td")[1] == "MC306"
    assert app.state("a").status == "interrupted"


def test_answer_to_a_question_that_has_changed_is_refused(api: Api, browser: Browser) -> None:
    """Tried: the digest not sent, or compared for one question only; a hidden question's sent."""

    def ask(state: Review) -> dict[str, Any]:
        interrupt("sure?", answer=bool)
        return {}

    def shown(browser: Browser) -> list[str]:
        return values_of(browser.page("/inbox"))

    def stale(value: str) -> str:
        return f"{value.rpartition('/')[0]}/{'0' * 32}"

    graph: StateGraph[Review] = StateGraph(Review, name="pair")
    for node in ("left", "right"):
        graph.add_node(node, ask)
        graph.add_edges(START, node, END)
    app = graph.compile(store=api.app.store)
    api.run("one", 42)
    api.serve(api.app, app)
    fill(api, app, "two")
    asked = [*api.app.state("one").interrupts, *app.state("two").interrupts]
    one, left, right = values = shown(browser)
    assert [value.rpartition("/")[2] for value in values] == [each.digest for each in asked]
    kind = browser.page("/inbox").sent("/inbox")["kind"]
    form = {"kind": kind, "field": "", "value": "true"}
    refused = browser.post("/inbox", {**form, "question": [stale(one), left, stale(right)]})
    assert refused.one("main").text.count("has changed since it was shown") == 2
    assert api.app.answers("one") == app.answers("two") == []
    data = {"csrf": browser.csrf, **form, "question": values}
    assert browser.ask("POST", "/inbox", data=data).status_code == 303
    assert (len(api.app.answers("one")), len(app.answers("two"))) == (1, 2)
    api.app.invoke({"n": 42, "log": []}, "three")
    api.serve(api.app, redact=lambda place, value: "-" if place == "question" else value)
    (hidden,) = shown(Browser(api).log_in(token_of("default")))
    assert hidden.endswith("/")
