"""The page of a thread: what it shows at each checkpoint, and what its forms do."""

from __future__ import annotations

import cProfile
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict
from urllib.parse import quote, unquote

import msgspec
import pytest

from milecastle import (
    END,
    START,
    ExecutionError,
    Keyring,
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
from tests.unit.server.browsing import Browser, Document
from tests.unit.server.calling import OTHER, Api, build, token_of

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"
UNSAFE = ("<script>alert", "\x1b", "\u202e")


def fact(found: Document, name: str) -> str:
    """What a page says of a thread or its checkpoint."""
    policy = [one.text for one in found.all("dt")]
    return found.all("dd")[policy.index(name)].text.strip()


def buttons(found: Document) -> list[str]:
    return [one.text.strip() for one in found.all("button")][1:-1]


def test_thread_is_shown_at_its_head(api: Api, browser: Browser) -> None:
    """Fails if the state, the changes, the times or the commands are of another checkpoint."""
    api.run("t", 42)
    found = browser.page("/threads/t")
    assert (fact(found, "Status"), fact(found, "Next")) == ("interrupted", "ask")
    assert (fact(found, "n"), fact(found, "Parent")) == ("43", "2")
    assert "1 open question" in found.one("section", id="questions").text
    rows = [one.text for one in found.all("tr") if one.get("id")]
    assert len(rows) == 3
    assert "interrupt" in rows[0]
    assert "waiting" in rows[0]
    assert "step begin" in rows[1]
    kinds = {one.get("class") for one in found.all("rect")}
    assert kinds == {"running", "waiting"}
    assert found.one("pre", id="commands").text.split("\n") == [
        "milecastle show -- t@3",
        "milecastle history --limit=200 -- t",
        "milecastle diff -- t@2 t@3",
        "milecastle resume -- t",
        "milecastle fork -- t@3",
        "milecastle tag -- t",
    ]


def test_every_checkpoint_has_its_state_and_its_changes(api: Api, browser: Browser) -> None:
    """Fails if a link of the slider leads elsewhere, or the changes are not those to its parent."""
    api.run("t", 42)
    found = browser.page("/threads/t?at=2")
    assert fact(found, "n") == "43"
    changes = [" ".join(one.text.split()) for one in found.all("li")][:2]
    assert changes == ['$.log[0] added "begin"', "$.n changed 4243"]
    links = {one.get("rel"): one.get("href") for one in found.all("a") if one.get("rel")}
    places = {"first": 1, "prev": 1, "next": 3, "last": 3}
    assert links == {name: f"/threads/t?at={seq}" for name, seq in places.items()}
    slider = found.one("input", name="at", type="range")
    assert [slider.get(name) for name in ("min", "max", "value")] == ["1", "3", "2"]
    assert "first checkpoint" in browser.page("/threads/t?at=1").one("main").text
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
    failure = found.one("div", role="group").text
    assert "RuntimeError in node begin" in failure
    assert "no ink" in failure
    assert "calling.py:" in failure
    assert ("begin", "failed") in _visited(found)
    assert "failed" in next(one.text for one in found.all("tr") if one.get("id"))
    assert "no ink" not in browser.page("/threads/f?at=1").one("main").text


def _visited(found: Document) -> list[tuple[str, str]]:
    spans = [one for one in found.all("span") if one.get("class").startswith("visit ")]
    return [(one.text.split()[0], one.get("class").removeprefix("visit ")) for one in spans]


def test_graph_has_the_way_that_was_taken(api: Api, browser: Browser) -> None:
    """Fails if a node is not marked or counted, or the picture needs a looser policy."""
    api.run("t", 42)
    found = browser.page("/threads/t")
    assert _visited(found) == [("ask", "next"), ("begin", "done")]
    answer = browser.ask("GET", found.one("img").get("src"))
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "begin \u00d71" in answer.text
    assert "mc-next" in answer.text
    assert "mc-next" in browser.ask("GET", "/threads/t/graph.svg?at=1").text
    assert browser.ask("GET", "/threads/none/graph.svg").status_code == 404


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
    assert fact(browser.page("/threads/t"), "Status") == "completed"
    late = browser.post("/threads/t/answers", {**fields, "value": "true"}, 400)
    assert "not open any more" in late.one("p", role="alert").text


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
    assert fact(found, "Note") == "from seq 1 of thread 't'"
    assert "in another thread" in found.one("main").text
    assert send("/threads/t/update", update='{"n": 7}', at=1) == "/threads/t"
    found = browser.page("/threads/t")
    assert fact(found, "n") == "7"
    tree = [" ".join(one.text.split()) for one in found.all("li") if "depth-" in one.get("class")]
    assert tree == ["1 to 3", "4 fork from 2", "5 update from 1"]
    typed = '{"n": "x"}\n\x1b'
    refused = browser.post("/threads/t/update", {"update": typed, "at": 0}, 400)
    assert refused.one("textarea", name="update").text == f"\n{typed}"
    assert "MC" in refused.one("p", role="alert").text
    taken = browser.post("/threads/t/fork", {"at": 1, "as_thread": "a/b"}, 400)
    assert taken.one("input", name="as_thread").get("value") == "a/b"
    wrong = browser.post("/threads/t/update", {"update": '{"n": "sekrit"}', "at": 0}, 400)
    assert "sekrit" not in wrong.one("p", role="alert").text


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
        "run": ["Fork from 3", "Change the tags", "Resume", "Cancel"],
        "answer": ["Yes", "No"],
        "admin": ["Update the state", "Delete"],
        "read": [],
    }
    shown = [
        *("Yes", "No", "Show", "Fork from 3", "Change the tags", "Update the state"),
        *("Resume", "Cancel", "Delete"),
    ]
    if scope == "read":
        found = Browser(api).log_in(token_of("default", "read")).page("/threads/t")
        assert buttons(found) == ["Show"]
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
    for path in ("/threads/t", "/threads/t/graph.svg", "/threads/none", "/threads/t%1Fx"):
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
    assert "not served here" in fact(found, "Graph")
    assert fact(found, "n") == "43"
    assert buttons(found) == ["Show"]
    assert "mc-next" in browser.ask("GET", "/threads/t/graph.svg").text


def test_encrypted_thread_without_its_key_has_metadata_only(tmp_path: Path) -> None:
    """Fails if it is an error, or if a form is offered that cannot work."""
    from milecastle.stores.memory import MemoryStore

    ring = Keyring({"k": b"k" * 32}, store=MemoryStore())
    api = Api(tmp_path, encryption=ring)
    api.run("t", 42)
    api.serve(build().compile(store=api.app.store))
    found = Browser(api).log_in(token_of("default")).page("/threads/t")
    assert "cannot be read here" in found.one("main").text
    assert fact(found, "Status") == "interrupted"
    assert found.all("form", id="questions") == []
    assert "begin" not in [one.text for one in found.all("pre")]
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
    for place in (path, f"{path}?at=1", f"{path}?at=2", f"{path}/graph.svg"):
        text = browser.ask("GET", place).text
        assert not [one for one in UNSAFE if one in text], place
        assert "alert(1)" in text
    with pytest.raises(ExecutionError):
        app.resume(HOSTILE, answer=HOSTILE)
    found = browser.ask("GET", path)
    assert not [one for one in UNSAFE if one in found.text]
    assert "RuntimeError" in Document(found.text).one("div", role="group").text


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
    assert fact(browser.page("/threads/t?at=2"), "Next") == "work x1000"
    found = browser.page("/threads/t?at=3")
    assert "950 more changes" in found.one("main").text
    assert "/v1/threads/t/diff?a=2&b=3" in [one.get("href") for one in found.all("a")]
    found = browser.page("/threads/t")
    assert fact(found, "Status") == "sleeping"
    assert fact(found, "Wakes") != "-"
    assert "sleeping" in {one.get("class") for one in found.all("rect")}


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
    assert fact(browser.page("/threads/alone"), "Next") == "work x7 (6 done)"
    assert fact(browser.page("/threads/beside"), "Next") == "work x7 (6 done), work 2 x1 (1 done)"
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
    assert "Shortened." in found.one("main").text
    assert "/v1/threads/t?at=1" in [one.get("href") for one in found.all("a")]
    assert fact(found, "n") == "1"


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


def test_long_names_keep_the_page_small(api: Api, browser: Browser) -> None:
    """A name is part of every link. Fails if all checkpoints are listed, however many."""
    name = "\u00fc" * 250
    api.app.submit({"n": 1, "log": []}, name)
    for _ in range(60):
        api.app.update_state(name, {"n": 1})
    found = browser.page(f"/threads/{segment(name)}")
    assert "21 of 61 checkpoints are listed" in found.one("main").text
    assert msgspec.json.decode(fact(found, "n")) == 1


def test_the_page_says_why_a_thread_does_not_run(api: Api, browser: Browser) -> None:
    """Nothing on the page explained a queued thread."""
    api.app.submit({"n": 1, "log": []}, "t")
    shown = browser.page("/threads/t")
    assert "no worker serves graph 'trip'" in shown.one("dd", **{"class": "why"}).text
