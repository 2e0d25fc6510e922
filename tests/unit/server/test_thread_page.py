"""The page of a thread: what it shows at each checkpoint, and what its forms do."""

from __future__ import annotations

import cProfile
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict
from urllib.parse import quote, unquote

import pytest

from milecastle import (
    END,
    START,
    Context,
    ExecutionError,
    ExecutionOptions,
    Keyring,
    Retry,
    Send,
    StateGraph,
    ThreadKey,
    append,
    current,
    interrupt,
)
from milecastle.model.checkpoint import Entry
from milecastle.server.identity import ALL_SCOPES
from milecastle.server.pages.excerpts import Excerpts
from milecastle.server.pages.rendering import segment
from milecastle.server.pages.timeline import branches, folded, intervals, visits
from milecastle.server.service import Service
from milecastle.server.threads import show_thread
from milecastle.stores.memory import MemoryStore
from tests.unit.server.browsing import Browser, Document
from tests.unit.server.calling import OTHER, Api, Trip, build, token_of

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"
UNSAFE = ("<script>alert", "\x1b", "\u202e")


def fact(browser: Browser, place: str, name: str) -> str:
    """What the panel about a checkpoint says."""
    found = browser.page(f"{place}{'&' if '?' in place else '?'}tab=about")
    terms = [one.text for one in found.all("dt")]
    return found.all("dd")[terms.index(name)].text.strip()


def value(found: Document, name: str) -> str:
    """A value in the tree of the state."""
    shown = found.one("div", id="state").text
    return (
        next(one.text.removeprefix(name) for one in found.all("li") if one.text.startswith(name))
        if name in shown
        else ""
    )


def status(found: Document) -> str:
    return found.statuses()[0]


def buttons(found: Document) -> list[str]:
    """What can be done with the thread, or with a question of it."""
    known = ("/colours", "/logout")
    forms = [one for one in found.all("form", method="post") if one.get("action") not in known]
    return [one.text.strip() for one in found.all("button") if one.form in forms]


def test_thread_is_shown_at_its_head(api: Api, browser: Browser) -> None:
    """Fails if the state, the changes, the times or the commands are of another checkpoint."""
    api.run("t", 42)
    found = browser.page("/threads/t")
    assert (status(found), fact(browser, "/threads/t", "Next")) == ("interrupted", "ask")
    assert (value(found, "n"), fact(browser, "/threads/t", "After")) == ("43", "2")
    assert "sure?" in found.one("div", id="questions").text
    rows = [one.text for one in found.all("tr") if one.get("id")]
    assert len(rows) == 3
    assert "ask asks" in rows[0]
    assert "so far" in rows[0]
    assert "begin" in rows[1]
    assert "input" in rows[2]
    lanes = {one.get("id"): one.text for one in found.all("li") if "lane-" in one.get("id")}
    assert len(lanes) == 2
    bars = [one.text for one in found.all("title") if "checkpoint" in one.text]
    assert [bar.split(",")[0] for bar in bars] == ["begin", "ask"]
    assert any("waits for an answer" in one.text for one in found.all("title"))
    assert found.commands() == [
        "milecastle show -- t@3",
        "milecastle history --limit=200 -- t",
        "milecastle diff -- t@2 t@3",
        "milecastle why -- t",
        "milecastle resume -- t",
        "milecastle fork -- t@3",
        "milecastle tag -- t",
    ]


def test_every_checkpoint_has_its_state_and_its_changes(api: Api, browser: Browser) -> None:
    """Fails if a link of the slider leads elsewhere, or the changes are not those to its parent."""
    api.run("t", 42)
    found = browser.page("/threads/t?at=2")
    assert value(found, "n") == "43was 42"
    shown = browser.page("/threads/t?at=2&tab=changes")
    texts = [" ".join(one.text.split()) for one in shown.all("li") if one.text.startswith("$")]
    assert texts == ['$.log[0] added"begin"', "$.n changed4243"]
    links = {one.get("rel"): one.get("href") for one in found.all("a") if one.get("rel")}
    places = {"first": 1, "prev": 1, "next": 3, "last": 3}
    assert links == {name: f"/threads/t?at={seq}" for name, seq in places.items()}
    slider = found.one("input", name="at", type="range")
    assert [slider.get(name) for name in ("min", "max", "value")] == ["1", "3", "2"]
    first = browser.page("/threads/t?at=1&tab=changes")
    assert "first checkpoint" in first.one("main").text
    id = next(iter(api.app.store.history(ThreadKey("default", "t"), before=3, limit=1))).id
    assert "Checkpoint 2 of 3" in browser.page(f"/threads/t?at={id}").one("main").text
    for at in ("99", "0", "-1", "x", "9" * 400):
        browser.page(f"/threads/t?at={at}", 404)


def test_live_part_stays_at_its_checkpoint(api: Api, browser: Browser) -> None:
    """Fails if the part is the whole page, or if it follows the head though one is selected."""
    api.run("t", 42)
    for path in ("/threads/t", "/threads/t?at=2"):
        answer = browser.ask("GET", path, headers={"HX-Request": "true"})
        part = Document(answer.text)
        assert part.elements[0].get("id") == "live"
        assert part.elements[0].get("data-live") == path
        assert part.all("html") == []


def test_failure_is_shown_where_it_happened(api: Api, browser: Browser) -> None:
    """Fails if the traceback is missing, or is shown at every checkpoint of the run."""
    api.run("f", 13)
    found = browser.page("/threads/f")
    failure = found.one("section", role="group").text
    assert "RuntimeError at begin" in failure
    assert "no ink" in failure
    assert "calling.py:" in failure
    own = [one.text for one in found.all("li", **{"class": "own"})]
    assert len(own) == 1
    assert "calling.py" in own[0]
    assert ("begin", "bad") in _visited(found)
    assert "Failed" in next(one.text for one in found.all("tr") if one.get("id"))
    assert "no ink" not in browser.page("/threads/f?at=1").one("main").text


def _visited(found: Document) -> list[tuple[str, str]]:
    return [
        (one.get("data-node"), one.get("class")) for one in found.all("a") if one.get("data-node")
    ]


def test_graph_has_the_way_that_was_taken(api: Api, browser: Browser) -> None:
    """Fails if a node is not marked, a way that was not taken is drawn, or a link is lost."""
    api.run("t", 42)
    found = browser.page("/threads/t")
    assert _visited(found) == [("begin", "done"), ("ask", "ask")]
    (link,) = [one for one in found.all("a") if one.get("data-node") == "begin"]
    assert link.get("href") == "/threads/t?at=3&node=begin"
    ways = [one for one in found.all("path") if one.get("class") == "edge way"]
    assert len(ways) == 2, "from the start, and to the node that asks"
    assert len([one for one in found.all("path") if one.get("class").startswith("edge")]) == 4
    filtered = browser.page(link.get("href"))
    assert [one.get("id") for one in filtered.all("tr") if one.get("id")] == ["row-2", "row-1"]
    assert _visited(browser.page("/threads/t?at=1"))[1] == ("ask", "faint")


def test_question_is_answered_in_place(api: Api, browser: Browser) -> None:
    """Fails if an invalid answer is written, or is refused without saying so beside the form."""
    api.run("t", 42)
    found = browser.page("/threads/t")
    question = found.one("input", name="question").get("value")
    assert [one.get("value") for one in found.all("button", name="value")] == ["true", "false"]
    fields = {"question": question, "field": "", "value": "perhaps"}
    refused = browser.post("/threads/t/answers", fields, 422)
    assert "is not one of its choices" in refused.one("p", role="alert").text
    assert refused.all("div", id="live") == []
    answer = browser.ask(
        "POST", "/threads/t/answers", data={**fields, "value": "true", "csrf": browser.csrf}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/threads/t")
    api.work()
    assert status(browser.page("/threads/t")) == "completed"
    late = browser.post("/threads/t/answers", {**fields, "value": "true"}, 400)
    assert "no longer open" in late.one("p", role="alert").text


def test_fork_and_update(api: Api, browser: Browser) -> None:
    """Fails if a form acts on another checkpoint, or what was typed is lost when it is refused."""
    api.run("t", 42)

    def send(path: str, **fields: Any) -> str:
        answer = browser.ask("POST", path, data={**fields, "csrf": browser.csrf})
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    assert send("/threads/t/fork", at=2) == "/threads/t"
    assert send("/threads/t/fork", at=1, as_thread="a/b") == "/threads/a%2Fb"
    found = browser.page("/threads/a%2Fb")
    assert fact(browser, "/threads/a%2Fb", "Note") == "from seq 1 of thread 't'"
    assert fact(browser, "/threads/a%2Fb", "After") == "another thread"
    assert "in another thread" in browser.page("/threads/a%2Fb?tab=changes").one("main").text
    assert send("/threads/t/update", update='{"n": 7}', at=1) == "/threads/t"
    found = browser.page("/threads/t")
    assert value(found, "n") == "7was 42"
    branches = [one.text for one in found.all("b") if one.text[0].isdigit()]
    assert branches[-3:] == ["1 to 3", "4", "5"]
    assert "fork at 2" in found.one("section", id="branches").text
    assert "update at 1" in found.one("section", id="branches").text
    only = browser.page("/threads/t?branch=this")
    assert [one.get("id") for one in only.all("tr") if one.get("id")] == ["row-5", "row-1"]
    typed = '{"n": "x"}\n\x1b'
    refused = browser.post("/threads/t/update", {"update": typed, "at": 0}, 400)
    assert refused.one("textarea", name="update").text == f"\n{typed}"
    assert "MC" in refused.one("p", role="alert").text
    taken = browser.post("/threads/t/fork", {"at": 1, "as_thread": "a/b"}, 400)
    assert taken.one("input", name="as_thread").get("value") == "a/b"
    wrong = browser.post("/threads/t/update", {"update": '{"n": "sekrit"}', "at": 0}, 400)
    assert "sekrit" not in wrong.one("p", role="alert").text


def test_changes_by_hand_say_what_was_changed(api: Api, browser: Browser, tmp_path: Path) -> None:
    """Tried: "state changed" and "By hand" for every one of them."""
    api.run("t", 42)
    api.app.update_state("t", {"n": 7, "log": ["by ada"]})
    api.app.fork("t", at=2)
    found = browser.page("/threads/t")
    rows = {one.get("id"): " ".join(one.text.split()) for one in found.all("tr") if one.get("id")}
    assert "changed n, log" in rows["row-4"]
    assert "forked from 2" in rows["row-5"]
    titles = found.texts("title")
    assert "By hand: changed n, log, checkpoint 4, on another branch" in titles
    assert "By hand: forked from 2, checkpoint 5" in titles
    folder = tmp_path / "sealed"
    folder.mkdir()
    sealed = Api(folder, encryption=Keyring({"k": b"k" * 32}, store=MemoryStore()))
    sealed.run("t", 42)
    sealed.app.update_state("t", {"n": 7})
    assert "changed n" in Browser(sealed).log_in(token_of("default")).page("/threads/t").texts("td")
    sealed.serve(build().compile(store=sealed.app.store))
    assert "state changed" in (
        Browser(sealed).log_in(token_of("default")).page("/threads/t").one("main").text
    )
    sealed.close()


def test_children_are_listed_with_their_pages(api: Api, browser: Browser) -> None:
    """Nothing on the page led to them. Fails if only subgraphs are listed."""
    child = build("child").compile(store=api.app.store)
    graph: StateGraph[Trip] = StateGraph(Trip, name="parent")

    def send(state: Trip, ctx: Context) -> dict[str, Any]:
        ctx.join(ctx.spawn(child, {"n": 42, "log": []}))
        return {"log": ["sent"]}

    graph.add_node("send", send)
    graph.add_edges(START, "send", END)
    app = graph.compile(store=api.app.store)
    api.serve(app, child)
    app.submit({"n": 1, "log": []}, "p")
    api.work(app, child)
    found = browser.page("/threads/p")
    (card,) = found.all("section", id="subgraphs")
    assert "graph child" in card.text
    assert "Needs answer" in card.text
    (link,) = [one.get("href") for one in found.all("a") if one.text.startswith("child@@p/")]
    assert status(browser.page(link)) == "interrupted"


def tags_shown(found: Document) -> list[str]:
    """The tags that the form offers to remove."""
    return [unquote(one.get("value")) for one in found.all("input", name="remove")]


def test_tags_are_added_and_removed(api: Api, browser: Browser) -> None:
    """Fails if the form changes other tags, if a text in it is changed, or is lost if refused."""
    api.run("t", 42)
    odd = "a,b <i>\n\u202e%2F&"

    def send(**fields: Any) -> None:
        answer = browser.ask("POST", "/threads/t/tags", data={**fields, "csrf": browser.csrf})
        assert (answer.status_code, answer.headers["location"]) == (303, "/threads/t")

    assert tags_shown(browser.page("/threads/t")) == []
    for tag in ("eu", "late", odd, ""):
        send(add=tag)
    found = browser.page("/threads/t")
    assert tags_shown(found) == sorted(["eu", "late", odd])
    assert "a,b <i>" in found.one("fieldset").text
    values = [one.get("value") for one in found.all("input", name="remove")]
    send(add="paid", remove=values[:2])
    assert tags_shown(browser.page("/threads/t")) == ["late", "paid"]
    send()
    assert tags_shown(browser.page("/threads/t")) == ["late", "paid"]
    typed = "x" * 129
    refused = browser.post("/threads/t/tags", {"add": typed}, 400)
    assert refused.one("input", name="add").get("value") == typed
    assert "bytes" in refused.one("p", role="alert").text
    both = browser.post("/threads/t/tags", {"add": "late", "remove": "late"}, 400)
    assert "added and removed" in both.one("p", role="alert").text
    assert tags_shown(both) == ["late", "paid"]


@pytest.mark.parametrize("scope", ["read", "run", "answer", "admin"])
def test_forms_are_those_of_the_scopes(api: Api, scope: Any) -> None:
    """Fails if a caller is offered what is refused."""
    api.run("t", 42)
    known = {
        "run": ["Resume", "Cancel the run", "Fork", "Change the tags"],
        "answer": ["Yes y", "No n"],
        "admin": ["Delete the thread", "Write checkpoint 4"],
        "read": [],
    }
    shown = [
        *("Resume", "Cancel the run", "Delete the thread", "Yes y", "No n"),
        *("Fork", "Change the tags", "Write checkpoint 4"),
    ]
    if scope == "read":
        found = Browser(api).log_in(token_of("default", "read")).page("/threads/t")
        assert buttons(found) == []
        return
    found = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {scope}))).page("/threads/t")
    assert buttons(found) == [one for one in shown if one not in known[scope]]


def test_refused_form_shows_no_state_without_the_scope_read(api: Api) -> None:
    """Fails if a caller who may answer, but not read, gets the page with the state."""
    api.run("t", 42)
    browser = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {"read"})))
    answer = browser.ask(
        "POST", "/threads/t/answers", data={"csrf": browser.csrf, "question": "none"}
    )
    assert answer.status_code == 400
    assert "begin" not in answer.text


def test_other_tenant_finds_nothing(api: Api) -> None:
    """Fails if a thread is looked for in every tenant."""
    api.run("t", 42)
    other = Browser(api).log_in(token_of(OTHER))
    for path in ("/threads/t", "/threads/none", "/threads/t%1Fx"):
        assert other.ask("GET", path).status_code in (400, 404)
    for path, fields in (
        ("fork", {"at": 1}),
        ("update", {"update": "{}"}),
        ("tags", {"add": "x"}),
    ):
        assert (
            other.ask("POST", f"/threads/t/{path}", data={**fields, "csrf": other.csrf}).status_code
            == 404
        )


def test_thread_of_another_graph_has_no_actions(api: Api, browser: Browser) -> None:
    """Fails if it needs the code, or offers what is refused."""
    api.run("t", 42)
    api.serve(build("other").compile(store=api.app.store))
    found = browser.page("/threads/t")
    assert "not served here" in found.one("main").text
    assert value(found, "n") == "43"
    assert buttons(found) == []
    assert ("ask", "ask") in _visited(found), "it is drawn as it was saved"


def test_encrypted_thread_without_its_key_has_metadata_only(tmp_path: Path) -> None:
    """Fails if it is an error, or if a form is offered that cannot work."""
    ring = Keyring({"k": b"k" * 32}, store=MemoryStore())
    api = Api(tmp_path, encryption=ring)
    api.run("t", 42)
    api.serve(build().compile(store=api.app.store))
    found = Browser(api).log_in(token_of("default")).page("/threads/t")
    assert "cannot be read here" in found.one("main").text
    assert status(found) == "stopped" or status(found) == "interrupted"
    assert found.all("div", id="questions") == []
    for tab in ("raw", "changes"):
        shown = Browser(api).log_in(token_of("default")).page(f"/threads/t?tab={tab}")
        assert '"begin"' not in shown.one("main").text
    api.close()


class Hostile(TypedDict):
    text: str
    values: Annotated[list[Any], append]
    x: NotRequired[int]


def _hostile_graph() -> StateGraph[Hostile]:
    def begin(state: Hostile) -> dict[str, Any]:
        return {"values": [{HOSTILE: HOSTILE}]}

    def ask(state: Hostile) -> dict[str, Any]:
        interrupt(HOSTILE, show={HOSTILE: [HOSTILE]}, answer=str)
        raise RuntimeError(HOSTILE)

    graph: StateGraph[Hostile] = StateGraph(Hostile, name="<script>alert")
    graph.add_node("<script>alert(1)</script>", begin)
    graph.add_node("ask", ask)
    graph.add_edge(START, "<script>alert(1)</script>")
    graph.add_edge("<script>alert(1)</script>", "ask")
    graph.add_edge("ask", END)
    return graph


def test_stored_text_is_escaped(api: Api, browser: Browser) -> None:
    """In names, keys, values, questions and failures. Fails if any reaches the page as it is."""
    app = _hostile_graph().compile(store=api.app.store)
    api.serve(app)
    app.invoke({"text": HOSTILE, "values": []}, HOSTILE)
    path = f"/threads/{quote(HOSTILE, safe='')}"
    tabs = [f"{path}?tab={tab}" for tab in ("changes", "raw", "about")]
    for place in (path, f"{path}?at=1", f"{path}?at=2", *tabs):
        text = browser.ask("GET", place).text
        assert not [one for one in UNSAFE if one in text], place
        assert "alert(1)" in text
    with pytest.raises(ExecutionError):
        app.resume(HOSTILE, answer=HOSTILE)
    found = browser.ask("GET", path)
    assert not [one for one in UNSAFE if one in found.text]
    assert "RuntimeError" in Document(found.text).one("section", role="group").text


class Many(TypedDict):
    n: int
    item: NotRequired[int]
    done: Annotated[list[int], append]


def many(size: int) -> StateGraph[Many]:
    """A graph with a fan-out of this size, that sleeps and then asks in each item."""
    graph: StateGraph[Many] = StateGraph(Many, name="many")
    graph.add_node("begin", lambda state: {"n": state["n"]})
    graph.add_node("work", lambda state: {"done": [state.get("item", 0)]})
    graph.add_node("rest", _rest)
    graph.add_edge(START, "begin")
    graph.add_conditional_edges(
        "begin", lambda state: [Send("work", {"item": n}) for n in range(size)], ["work"]
    )
    graph.add_edge("work", "rest")
    graph.add_edge("rest", END)
    return graph


def _rest(state: Many) -> dict[str, Any]:
    context = current()
    assert context is not None
    context.sleep(3600)
    return {}


def test_items_of_a_fan_out_are_a_number(api: Api, browser: Browser) -> None:
    """Fails if each of the items is listed, or changes are cut without saying so."""
    app = many(1000).compile(store=api.app.store)
    api.serve(app)
    app.invoke({"n": 1, "done": []}, "t")
    assert fact(browser, "/threads/t?at=2", "Next") == "work x1000"
    found = browser.page("/threads/t?at=3&tab=changes")
    assert "950 more changes" in found.one("main").text
    assert "/v1/threads/t/diff?a=2&b=3" in [one.get("href") for one in found.all("a")]
    found = browser.page("/threads/t")
    assert status(found) == "sleeping"
    assert "Wakes in 59 min" in found.one("main").text
    assert "f-sleep" in {one.get("class") for one in found.all("rect")}


def test_timeline_has_failed_attempts_pauses_and_the_stairs_of_a_fan_out(
    api: Api, browser: Browser
) -> None:
    """Fails with one bar from checkpoint to checkpoint: if the page does not read task times."""
    failures = iter([ConnectionError("sekrit"), ConnectionError("sekrit")])

    def begin(state: Many) -> dict[str, Any]:
        for error in failures:
            raise error
        return {"n": state["n"]}

    graph: StateGraph[Many] = StateGraph(Many, name="retries")
    graph.add_node("begin", begin, retry=Retry(attempts=3, delay=0.01))
    graph.add_node("work", lambda state: {"done": [state.get("item", 0)]})
    graph.add_node("last", lambda _: {})
    graph.add_edge(START, "begin")
    graph.add_conditional_edges(
        "begin", lambda state: [Send("work", {"item": n}) for n in range(8)], ["work"]
    )
    graph.add_edges("work", "last", END)
    app = graph.compile(store=api.app.store)
    api.serve(app)
    app.invoke({"n": 1, "done": []}, "t")
    found = browser.page("/threads/t?axis=clock")
    (timeline,) = [one for one in found.all("section") if one.get("id") == "timeline"]
    assert "sekrit" not in timeline.text
    said = [one.text for one in found.all("title")]
    assert [one.rpartition(": ")[2] for one in said if "failed after" in one] == [
        "ConnectionError",
        "ConnectionError",
    ]
    assert [one.split(",")[1] for one in said if "checkpoint 2" in one] == [" attempt 3"]
    assert len([one for one in found.all("line") if one.get("class") == "back"]) >= 2
    crosses = [one.text for one in found.all("text") if one.get("class") == "in"]
    assert crosses == ["\u00d7", "\u00d7"]
    assert [one for one in said if one.startswith("8 items of work, at most ")]
    counts = [one.text for one in found.all("small")]
    assert "3 tries" in counts
    assert "8 items" in counts
    only = browser.page("/threads/t?node=work")
    lanes = [one for one in only.all("li") if "lane-" in one.get("id")]
    assert [one.text.startswith("work") for one in lanes] == [True]


def asking(size: int) -> StateGraph[Many]:
    """A graph with a fan-out of this size, beside another node; the first item asks."""

    def work(state: Many) -> dict[str, Any]:
        return {"done": [interrupt("go on?") if state.get("item") == 0 else 1]}

    graph: StateGraph[Many] = StateGraph(Many, name="asking")
    graph.add_node("begin", lambda state: {"n": state["n"]})
    graph.add_node("work", work)
    graph.add_node("work 2", lambda _: {})
    graph.add_edge(START, "begin")
    graph.add_conditional_edges(
        "begin",
        lambda state: [
            *(Send("work", {"item": n}) for n in range(size)),
            *(["work 2"] if state["n"] else []),
        ],
        ["work", "work 2"],
    )
    graph.add_edge("work", END)
    graph.add_edge("work 2", END)
    return graph


def test_ended_items_are_counted_by_node(api: Api, browser: Browser) -> None:
    """Fails if another node counts as an item of the fan-out, or an open item as ended."""
    app = asking(7).compile(store=api.app.store)
    api.serve(app)
    for thread, n in (("alone", 0), ("beside", 1)):
        app.invoke({"n": n, "done": []}, thread)
    assert fact(browser, "/threads/alone", "Next") == "work x7 (6 done)"
    assert fact(browser, "/threads/beside", "Next") == "work x7 (6 done), work 2 x1 (1 done)"
    found = api.ask("GET", "/v1/threads/beside").json()["tasks"]
    assert found == [
        {"node": "work", "done": 6, "total": 7},
        {"node": "work 2", "done": 1, "total": 1},
    ]


def test_a_wide_fan_out_is_shown_in_as_many_calls_as_a_narrow_one(api: Api) -> None:
    """Fails if the result of each item is read, or the items are decoded one by one."""
    calls: dict[int, int] = {}
    for size in (20, 2000):
        app = asking(size).compile(store=api.app.store)
        app.invoke({"n": 0, "done": []}, f"t{size}")
        service, key = Service([app], worker=False), ThreadKey("default", f"t{size}")
        profile = cProfile.Profile()
        shown = profile.runcall(show_thread, service, key)
        assert [(line.done, line.total) for line in shown.tasks] == [(size - 1, size)]
        calls[size] = sum(one.callcount for one in profile.getstats())
    assert calls[2000] < 1.2 * calls[20], calls


def test_large_state_is_cut_and_says_so(api: Api, browser: Browser) -> None:
    """``page`` refuses 300 kB. Fails if a value is not cut, or is cut without saying so."""
    app = many(1).compile(store=api.app.store)
    api.serve(app)
    key = ThreadKey("default", "t")
    app.invoke({"n": 1, "done": list(range(300_000))}, key)
    found = browser.page("/threads/t?at=1")
    assert "299,992 more" in found.one("main").text
    assert "/v1/threads/t/state?at=1" in [one.get("href") for one in found.all("a")]
    assert value(found, "n") == "1"
    raw = browser.page("/threads/t?at=1&tab=raw")
    assert "Cut at 20 kB" in raw.one("main").text
    assert len(raw.one("pre", id="raw").text) < 21_000


def test_excerpts_are_bounded_together_and_pass_the_hook() -> None:
    """Fails if escaping makes them larger than they may be, or a value misses the hook."""
    excerpts = Excerpts(1000)
    first = excerpts.json("$.a", '"' * 5000, 600)
    assert first.is_cut
    assert excerpts.left >= 400
    assert excerpts.text("message", "<" * 5000, 5000).is_cut
    assert excerpts.left < 10
    assert excerpts.json("$.b", [1], 10).is_cut
    assert not Excerpts(100).json("$", {"a": [1, None]}, 100).is_cut
    seen: list[str] = []

    def hide(place: str, value: Any) -> Any:
        seen.append(place)
        return "hidden"

    hidden = Excerpts(1000, hide)
    assert hidden.json("$.a", {"x": 1}, 100).text == '"hidden"'
    assert hidden.text("message", "sekrit", 100).text == "hidden"
    assert seen == ["$.a", "message"]


def entry(seq: int, source: Any = "step", *, parent: int | None = -1, at: int = 0) -> Entry:
    return Entry(
        seq=seq,
        id=f"e{seq}",
        parent_id=None if parent is None else f"e{seq - 1 if parent == -1 else parent}",
        step=seq,
        source=source,
        nodes=("work",),
        next=("work",),
        run_id="r",
        fingerprint="",
        created_at=at or seq,
        kind=2,
        base_seq=seq,
        roll_seq=seq,
        payload=b"",
    )


def test_courses_of_branches() -> None:
    """Fails if a way goes through a branch that was left, or a part is taken for the whole."""
    entries = [entry(1, parent=None), entry(2), entry(3), entry(4, "fork", parent=1), entry(5)]
    way = visits(entries, 5)
    assert (way.path, way.counts, way.is_whole) == (frozenset({1, 4, 5}), {"work": 2}, True)
    assert not visits(entries[1:], 3).is_whole
    found = [(one.first, one.last, one.parent, one.depth) for one in branches(entries)]
    assert found == [(1, 3, None, 0), (4, 5, 1, 1)]
    assert folded(["a", "b", "a"]) == "a x2, b"
    assert folded(str(n) for n in range(9)) == "0, 1, 2, 3, and 5 more"


def test_what_a_thread_did_between_checkpoints() -> None:
    """Fails if waiting, sleeping and running are not told apart."""
    sources = ["input", "takeover", "interrupt", "answer", "step", "sleep", "step"]
    entries = [entry(seq, source) for seq, source in enumerate(sources, 1)]
    found = [one.kind for one in intervals(entries, {}, None, 100)]
    assert found == ["waiting", "running", "waiting", "running", "running", "sleeping"]


def test_every_checkpoint_of_10_000_can_be_shown(api: Api, browser: Browser) -> None:
    """``page`` refuses more than 300 kB. Fails if the list or the drawing follows the whole log."""
    graph: StateGraph[Any] = StateGraph(Trip, name="long")
    graph.add_node("up", lambda state: {"n": state["n"] + 1})
    graph.add_edge(START, "up")
    graph.add_conditional_edges(
        "up", lambda state: "up" if state["n"] < 10_000 else "end", {"up": "up", "end": END}
    )
    app = graph.compile(store=api.app.store)
    api.serve(app)
    app.invoke({"n": 0, "log": []}, "t", options=ExecutionOptions(max_steps="unlimited"))
    head = len(list(app.history("t")))
    assert head == 10_001

    for at in (1, 2, head // 2, head):
        for tab in ("state", "changes", "raw", "about"):
            text = browser.page(f"/threads/t?at={at}&tab={tab}").one("main").text
            assert f"{at:,}" in text
    found = browser.page(f"/threads/t?at={head // 2}")
    near = {one.get("href").partition("at=")[2].partition("&")[0] for one in found.all("a")}
    assert {str(head // 2 - 1), str(head // 2 + 1)} <= near
    assert "not over the whole thread" in found.one("main").text
    said = browser.page("/threads/t?at=20000", 404).one("main").text
    assert "checkpoint" in said


def test_long_names_keep_the_page_small(api: Api, browser: Browser) -> None:
    """A name is part of every link. Fails if all checkpoints are listed, however many."""
    name = "\u00fc" * 250
    api.app.submit({"n": 1, "log": []}, name)
    for _ in range(60):
        api.app.update_state(name, {"n": 1})
    found = browser.page(f"/threads/{segment(name)}")
    assert "21 of 61, newest first" in found.one("main").text
    assert value(found, "n") == "1"


def test_the_page_says_why_a_thread_does_not_run(api: Api, browser: Browser) -> None:
    """Nothing on the page explained a queued thread."""
    api.app.submit({"n": 1, "log": []}, "t")
    shown = browser.page("/threads/t")
    assert "No worker serves graph 'trip'" in shown.one("p", **{"class": "why"}).text


def test_unread_messages_are_shown_and_discarded(api: Api, browser: Browser) -> None:
    """Tried: a message's value past the hook; the mailbox beside an older checkpoint."""
    api.run("t", 42)
    assert "mailbox" not in [one.get("id") for one in browser.page("/threads/t").all("section")]
    api.app.send("t", {"card": HOSTILE}, "pay", by="bank")
    row = browser.page("/threads/t").one("tr", id="message-1").text
    assert "pay" in row
    assert "bank" in row
    assert not any(text in row for text in UNSAFE[1:])
    for name in ("mailbox", "timeline"):  # an older checkpoint has no mailbox
        is_there = name in [one.get("id") for one in browser.page("/threads/t?at=1").all("section")]
        assert is_there == (name == "timeline")
    assert (
        browser.ask(
            "POST", "/threads/t/discard", data={"csrf": browser.csrf} | {"number": 1}
        ).status_code
        == 303
    )
    assert api.app.mailbox("t") == []
    api.app.send("t", "secret", "pay")
    api.serve(api.app, redact=lambda place, value: f"hidden {place}")
    row = Browser(api).log_in(token_of("default")).page("/threads/t").one("tr", id="message-2").text
    assert "secret" not in row
    assert "hidden value" in row


def test_message_that_cannot_be_read_here_can_be_discarded(api: Api, browser: Browser) -> None:
    """Tried: an error page for the whole thread."""
    api.run("t", 42)
    mailbox = api.app.store.mailbox
    assert mailbox is not None
    mailbox.send(ThreadKey("default", "t"), "pay", "m", b"not a payload")
    row = browser.page("/threads/t").one("tr", id="message-1").text
    assert "cannot be read here" in row
    assert (
        browser.ask(
            "POST", "/threads/t/discard", data={"csrf": browser.csrf} | {"number": 1}
        ).status_code
        == 303
    )
    assert not mailbox.unread(ThreadKey("default", "t"))


def test_timeline_says_who_answered_and_why(api: Api, browser: Browser) -> None:
    """Tried: the reason past the hook; no reason sent by the form."""
    api.run("t", 42)
    page = browser.page("/threads/t")
    asked = page.one("input", name="question").get("value")
    shown = page.one("input", name="shown").get("value")
    form = {"question": asked, "field": "", "value": "true", "reason": "stock <checked>"}
    changed = browser.post("/threads/t/answers", {**form, "shown": "0" * 32}, 400)
    assert "changed since it was shown" in changed.one("main").text
    assert changed.one("textarea", name="reason").text.strip() == "stock <checked>"
    assert (
        browser.ask(
            "POST", "/threads/t/answers", data={"csrf": browser.csrf} | {**form, "shown": shown}
        ).status_code
        == 303
    )
    (record,) = api.app.answers("t")
    (row,) = [one.text for one in browser.page("/threads/t").all("tr") if one.get("id") == "row-4"]
    assert record.by is not None
    assert f"by {record.by.id}, authenticated: stock <checked>" in row
    api.serve(api.app, redact=lambda place, value: f"hidden {place}")
    found = Browser(api).log_in(token_of("default")).page("/threads/t").one("main").text
    assert "stock" not in found
    assert "authenticated: hidden reason" in found
