"""How much of stored values an answer contains, and how the rest is read."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from milecastle import END, START, StateGraph
from milecastle.server import budget
from milecastle.server.budget import NO_STATE, WHOLE
from tests.unit.server.calling import Api, token_of

TEXT = "\x80" * 1000


class Texts(TypedDict, total=False):
    n: int
    small: str
    large: str


@pytest.fixture
def texts(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Two threads with a large channel, on a server whose answers have little room."""
    graph: StateGraph[Texts] = StateGraph(Texts, name="texts")
    graph.add_node("count", lambda state: {"n": state.get("n", 0) + 1})
    graph.add_edges(START, "count", END)
    app = graph.compile(store=api.app.store)
    for thread in ("one", "two"):
        app.invoke({"n": 0, "small": "s", "large": TEXT}, thread)
    api.serve(app)
    monkeypatch.setattr(budget, "MOST_VALUES", 5000)
    return api


def mark(size: int) -> dict[str, Any]:
    return {"$omitted": {"bytes": size, "get": WHOLE}}


def test_channel_without_room_is_a_mark(texts: Api) -> None:
    """Failed when an answer had all of a state: one of 12 MB stopped the server."""
    shown = texts.ask("GET", "/v1/threads/one").json()["state"]
    assert shown == {"n": 1, "small": "s", "large": mark(6002)}
    events = texts.follow("/v1/threads/one/events")
    assert events.count('"$omitted"') == 2
    assert len(events) < 5000


def test_state_and_channel_are_read_whole(texts: Api) -> None:
    """Fails if what an answer leaves out cannot be read at all."""
    path = "/v1/threads/one/state"
    assert texts.ask("GET", path).json() == {"n": 1, "small": "s", "large": TEXT}
    assert texts.ask("GET", f"{path}?at=1&channel=n").json() == 0
    assert texts.ask("GET", f"{path}?channel=large").json() == TEXT
    assert texts.ask("GET", f"{path}?channel=none").status_code == 404


def test_whole_state_passes_the_hook(texts: Api) -> None:
    """Fails if the download is a way around ``redact``."""
    texts.serve(
        *texts.application.service.apps.values(),
        redact=lambda place, value: "hidden" if place == "$.large" else value,
    )
    for query in ("", "?channel=large"):
        answer = texts.ask("GET", f"/v1/threads/one/state{query}")
        assert "hidden" in answer.text
        assert "\\u0080" not in answer.text


def test_states_of_one_answer_share_the_room(texts: Api) -> None:
    """Failed when every state of a history or a search was in memory at once."""
    history = texts.ask("POST", "/langgraph/threads/one/history", json={"limit": 10}).json()
    assert [state["values"] for state in history] == [
        {"n": 1, "small": "s", "large": mark(6002)},
        NO_STATE,
    ]
    assert all(state["checkpoint"]["checkpoint_id"] for state in history)
    found = texts.ask("POST", "/langgraph/threads/search", json={}).json()
    assert [thread["values"] for thread in found][1] == NO_STATE
    assert {thread["status"] for thread in found} == {"idle"}


def test_long_answer_is_the_same_document(texts: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if pieces are lost, repeated or cut within a character."""
    app = next(iter(texts.application.service.apps.values()))
    value = {"n": 1, "small": "é\u2028\ud800"[:2] * 70_000, "large": "\U0001f600\x1b" * 90_000}
    app.invoke(value, "long")
    monkeypatch.setattr(budget, "MOST_VALUES", 10**9)
    answer = texts.ask("GET", "/v1/threads/long", token=token_of("default", "read"))
    assert "content-length" not in answer.headers
    assert answer.json()["state"] == {**value, "n": 2}
