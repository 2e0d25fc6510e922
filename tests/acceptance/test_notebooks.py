"""What a notebook shows: a result had no values, and a history nothing at all."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any, TypedDict

import pytest

from milecastle import END, START, App, InvalidRequest, StateGraph, interrupt


class Draft(TypedDict):
    topic: str
    text: str


def _write(state: Draft) -> dict[str, Any]:
    if state["topic"] == "ask":
        interrupt("<b>sure?</b>")
    return {"text": f"about {state['topic']}"}


@pytest.fixture
def app() -> App[Draft]:
    graph = StateGraph(Draft, name="draft <1>")
    graph.add_node("write", _write)
    graph.add_edges(START, "write", END)
    return graph.compile(store="memory://")


def html(found: Any) -> str:
    """What a notebook shows."""
    shown: str = found._repr_html_()
    return shown


def test_a_result_is_shown_with_its_values(app: App[Draft]) -> None:
    result = app.invoke({"topic": "<script>alert(1)</script>"}, "t")
    for shown in (html(result), html(app.state("t"))):
        assert "about &lt;script&gt;" in shown
        assert "<script>" not in shown
        assert 'mc-good">Completed<' in shown
    assert "script" not in repr(result)


def test_questions_are_shown_and_large_values_are_cut(app: App[Draft]) -> None:
    app.invoke({"topic": "ask", "text": "x" * 100_000}, "t")
    shown = html(app.state("t"))
    assert "&lt;b&gt;sure?" in shown
    assert len(shown) < 5000


def test_only_what_asks_needs_an_answer(app: App[Draft]) -> None:
    """An earlier checkpoint was said to need an answer, though nothing had been asked."""
    app.invoke({"topic": "walls"}, "t")
    assert "Stopped here" in html(app.state("t", at=1))
    app.invoke({"topic": "ask"}, "asks")
    assert "Needs answer" in html(app.state("asks"))


def test_a_history_is_shown_and_can_still_be_read(app: App[Draft]) -> None:
    app.invoke({"topic": "walls"}, "t")
    found = app.history("t")
    assert repr(found) == "History('t')"
    shown = html(found)
    assert shown.count("<tr>") == 3
    assert [one.seq for one in found] == [2, 1]


def test_an_app_is_shown_with_its_name_and_its_drawing(app: App[Draft]) -> None:
    shown = html(app)
    assert "draft &lt;1&gt;" in shown
    _, _, drawn = shown.partition('src="data:image/svg+xml;base64,')
    assert b64decode(drawn.partition('"')[0]).startswith(b"<svg")


def test_a_difference_is_shown_escaped_and_cut(app: App[Draft]) -> None:
    app.invoke({"topic": "<i>walls</i>"}, "one")
    app.invoke({"topic": "roads"}, "two")
    found = app.diff("one", "two")
    shown = html(found)
    assert "&lt;i&gt;walls" in shown
    assert "$.topic" in shown
    assert "<i>" not in shown
    assert len(html(type(found)(found * 1000))) < 50_000


def test_notebooks_ask_no_host_and_have_light_and_dark_colours(app: App[Draft]) -> None:
    """Fails with a font, an image or a style sheet of another host, or with a fixed colour."""
    result = app.invoke({"topic": "walls"}, "t")
    for shown in map(html, (app, result, app.state("t"), app.history("t"), app.diff("t", 1))):
        style = shown.partition("<style>")[2].partition("</style>")[0]
        assert "light-dark(" in style
        assert not re.search(r"url\(|@import|src=.(?!data:)|https?://(?!www\.w3\.org)", shown)


def test_two_threads_are_compared(app: App[Draft]) -> None:
    """``diff`` could only compare two checkpoints of one thread."""
    app.invoke({"topic": "walls"}, "one")
    app.invoke({"topic": "roads"}, "two")
    changes = {change.path: (change.old, change.new) for change in app.diff("one", "two")}
    assert changes["$.topic"] == ("walls", "roads")
    assert app.diff("one", app.state("two").key) == app.diff("one", "two")
    first = next(iter(app.history("one", 1))).id
    assert app.diff("one", first) == []
    assert [change.path for change in app.diff("one", 1)] == ["$.text"]
    with pytest.raises(InvalidRequest):
        app.diff("one", "nope")
