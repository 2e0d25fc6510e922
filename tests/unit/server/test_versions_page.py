"""Versions of a graph: which unfinished threads would resume, why others not, and replays."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from milecastle import END, START, App, StateGraph, flow, interrupt, step
from milecastle.stores.sqlite import SqliteStore
from milecastle.views import versions
from milecastle.views.versions import fits_document, replays_document
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import OTHER, Api, Trip, build, token_of

BAD = "<script>\x1b[1m\u202e"
SHOWN = "<script>\\x1b[1m\\u202e"
WHY = "/graphs/trip/versions"


def other_code(api: Api, *, asks: str = "decide", always: bool = False) -> App[Any]:
    """The graph in another version, with its question in another node, or asked always."""
    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node("begin", lambda state: {"log": ["begin"]}, version="2")
    graph.add_node(asks, lambda state: {"sure": interrupt("sure?", answer=bool)})
    graph.add_edge(START, "begin")
    graph.add_conditional_edges(
        "begin",
        lambda state: "asks" if always or state["n"] == 43 else "ends",
        {"asks": asks, "ends": END},
    )
    graph.add_edge(asks, END)
    return graph.compile(store=api.app.store)


def asking_flow(api: Api, called: Any, name: str = "first") -> App[Any]:
    @flow(name="f")
    def code(order: int) -> str:
        assert step(called, order, name=name) == order
        return str(interrupt("go on?", answer=str))

    return code.compile(store=api.app.store)


def stop(state: Trip) -> dict[str, Any]:
    interrupt("?")
    return {}


def card(browser: Browser, path: str, name: str) -> str:
    return browser.page(path).one("section", **{"aria-labelledby": name}).text


def test_threads_of_older_code_are_counted_by_whether_they_would_resume(
    api: Api, browser: Browser
) -> None:
    """Tried: threads of another tenant or that have ended counted, and all of them as fitting."""
    for name, n in (("asks", 42), ("asks-2", 42), ("fails", 13), ("ends", 1)):
        api.run(name, n)
    new = other_code(api)
    new.invoke({"n": 43, "log": []}, thread="asks-now")
    api.serve(new)
    rows = " ".join(card(browser, "/graphs/trip", "g-v").split())
    assert f"3 unfinished; 0 would resume with {new.fingerprint[:8]}" in rows
    assert "Why not 3?" in rows
    assert f"{new.fingerprint[:8]} served here 1 unfinished" in rows
    said = card(browser, f"{WHY}?version={api.app.fingerprint}", "v-t")
    assert said.count("would not resume") == 3
    assert said.count("node 'ask'") == 3
    assert "asks-now" not in said
    assert "asks-now" in card(browser, WHY, "v-t")
    other = Browser(api).log_in(token_of(OTHER))
    assert "unfinished" not in other.page("/graphs/trip").one("main").text
    assert "No unfinished thread" in other.page(WHY).one("main").text


def test_replays_count_outcomes_by_the_recorded_version(api: Api, browser: Browser) -> None:
    """Tried: outcomes of one version counted under the other, and a replay that writes."""
    api.run("asks", 42)
    api.run("ends", 1)
    new = other_code(api, asks="ask", always=True)
    new.invoke({"n": 1, "log": []}, thread="new")
    api.serve(new)
    before = [api.app.state(name).seq for name in ("asks", "ends", "new")]
    found = browser.page(f"{WHY}?tab=replay")
    rows = {row.text.strip() for row in found.all("tr")}
    assert {f"{new.fingerprint[:8]}100", f"{api.app.fingerprint[:8]}101"} <= rows
    assert "it led to the end, and now leads to 'ask'" in found.one("main").text
    assert [api.app.state(name).seq for name in ("asks", "ends", "new")] == before
    assert found.commands() == ["milecastle replay MODULE:ATTRIBUTE"]


def test_code_of_a_graph_is_called_only_for_those_who_may_run_it(api: Api) -> None:
    """Tried: the scope ``read`` for a replay, and flows judged on the graph's own page."""
    calls: list[int] = []

    def called(order: int) -> int:
        calls.append(order)
        return order

    asking_flow(api, called).invoke({"order": 1}, thread="t")
    ran: list[str] = []

    @flow(name="f")
    def code(order: int) -> str:
        ran.append("flow")
        step(called, order, name="other")
        return ""

    api.serve(code.compile(store=api.app.store))
    reader = Browser(api).log_in(token_of("default", "read"))
    assert reader.page("/graphs/f").one("main").text.count("served here") <= 1
    found = reader.page("/graphs/f/versions")
    assert "it needs the scope run" in found.one("main").text
    assert "Replay" not in found.texts("a")
    assert "MC602" in reader.page("/graphs/f/versions?tab=replay", 403).one("main").text
    assert ran == []
    owner = Browser(api).log_in(token_of("default"))
    why = "in flow 'f' call 1 was step 'first', and the code now makes step 'other'"
    for path in ("/graphs/f/versions", "/graphs/f/versions?tab=replay"):
        assert why in owner.page(path).one("main").text
    assert (len(ran), calls) == (2, [1])


def test_hostile_names_of_threads_and_nodes_are_text(api: Api, browser: Browser) -> None:
    """``Document`` refuses scripts and handlers. Fails if a name or a reason is not escaped."""
    for new in (False, True):
        state: Any = Trip
        graph: StateGraph[Any] = StateGraph(state, name=BAD)
        graph.add_node("new" if new else BAD, stop)
        graph.add_edges(START, "new" if new else BAD, END)
        app = graph.compile(store=api.app.store)
        if not new:
            app.invoke({"n": 1, "log": []}, thread=BAD)
        api.serve(app)
    place = f"/graphs/{quote(BAD, safe='')}"
    for path in (place, f"{place}/versions", f"{place}/versions?tab=replay&version={quote(BAD)}"):
        response = browser.ask("GET", path)
        assert response.text.replace("\n", "").isprintable(), path
        assert len(browser.page(path).all("script")) == 3
    assert f"node '{SHOWN}' would run next" in card(browser, f"{place}/versions", "v-t")


def test_reasons_pass_the_hook(api: Api, browser: Browser) -> None:
    """They name types, which may list values. Tried: without the hook."""
    api.run("asks", 42)
    api.serve(other_code(api), redact=lambda place, value: "[hidden]")
    for path in (WHY, f"{WHY}?tab=replay"):
        said = card(browser, path, "v-t")
        assert "[hidden]" in said
        assert "'ask'" not in said


def test_versions_are_as_quick_with_many_threads(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads are counted. Tried: every thread judged, and comparing the graph for each of them."""
    for number in range(3):
        api.app.invoke({"n": 42, "log": []}, thread=f"{number}")
    new = other_code(api)
    few = _reads(new, monkeypatch)
    for number in range(3, 150):
        api.app.invoke({"n": 42, "log": []}, thread=f"{number}-{'<' * 200}")
    many = _reads(new, monkeypatch)
    assert many["manifest"] == few["manifest"]
    assert many["recent_threads"] == few["recent_threads"]
    assert (few["head"], many["head"]) == (3 + 1, versions.EACH + 1)
    assert "read" not in many, "a state"
    found = fits_document(new, "default")
    assert (len(found.threads), found.is_cut, found.skipped) == (versions.EACH, True, 0)
    api.serve(new)
    assert "Of the newest 20" in card(browser, WHY, "v-h")
    assert "Why not 20?" in card(browser, "/graphs/trip", "g-v")


def _reads(app: App[Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Calls of the store by name while the fits of its threads are made."""
    counts: dict[str, int] = {}

    def counting(name: str) -> Any:
        real = getattr(SqliteStore, name)

        def count(*args: Any, **more: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return real(*args, **more)

        return count

    with monkeypatch.context() as patch:
        for name in ("recent_threads", "head", "manifest", "read", "read_state", "history"):
            patch.setattr(SqliteStore, name, counting(name))
        fits_document(app, "default")
    return counts


def test_long_threads_and_many_are_left_to_the_command_line(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried: replays without the limit of checkpoints, and without that of time."""
    for number in range(4):
        api.app.invoke({"n": 1, "log": []}, thread=f"short-{number}")
    api.app.invoke({"n": 42, "log": []}, thread="long")
    for number in range(versions.LONGEST):
        api.app.update_state("long", {"n": number})
    found = replays_document(api.app, "default")
    assert {one.thread for one in found.threads} == {f"short-{number}" for number in range(4)}
    assert found.skipped == 1
    assert "1 more thread is too long" in card(browser, f"{WHY}?tab=replay", "v-t")
    monkeypatch.setattr(versions, "_SECONDS", -1.0)
    assert replays_document(api.app, "default").skipped == 5


def test_thread_that_cannot_be_judged_does_not_end_the_page(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried: without the suppression, for a thread deleted after it was listed."""
    api.run("asks", 42)
    new = build().compile(store=api.app.store)
    real: Any = vars(App)["compatibility"]

    def compatibility(app: Any, thread: Any) -> Any:
        api.app.delete(thread)
        return real(app, thread)

    monkeypatch.setattr(App, "compatibility", compatibility)
    api.serve(new)
    found = fits_document(new, "default")
    assert (found.threads, found.skipped) == ((), 1)
