"""The conversation of a thread: messages, calls with their results, and a field to continue."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle import App
from milecastle.agents import agent, tool
from milecastle.server.identity import ALL_SCOPES
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import Api, token_of

BAD = "<script>alert(1)</script>\x1b[31m\u202e"
Message = dict[str, Any]


def find(order: str) -> Message:
    """Look up an order."""
    return {"order": order, "price": 40}


def fails(order: str) -> str:
    """Fail."""
    raise ValueError("no such order")


def refund(order: str) -> str:
    """Pay back."""
    return f"paid for {order}"


def scripted(messages: list[Message], tools: list[Message]) -> Message:
    """Call one tool after the other, then repeat what was said."""
    calls = [("find", "7"), ("fails", "8"), ("refund", "9")]
    asked = next(one["content"] for one in reversed(messages) if one["role"] == "user")
    results = [one for one in messages if one["role"] == "tool"]
    if asked == "call" and len(results) < len(calls):
        name, order = calls[len(results)]
        return {"content": "", "tool_calls": [{"name": name, "args": {"order": order}}]}
    return {"content": f"You said:\n\n- {asked}\n- twice\n\nEnd."}


@pytest.fixture
def app(api: Api) -> App[Any]:
    """An agent, which the server serves."""
    found = agent(scripted, [find, fails, tool(refund, approve=True)], name="desk")
    app: App[Any] = found.compile(store=api.app.store)
    api.serve(api.app, app)
    return app


def say(app: App[Any], api: Api, text: str, thread: str = "t") -> None:
    app.submit({"messages": [{"role": "user", "content": text}]}, thread)
    api.work(app)


def test_messages_are_shown_with_their_checkpoints(
    api: Api, app: App[Any], browser: Browser
) -> None:
    """Tried: a list as one line; the checkpoint of a message looked up in another thread."""
    say(app, api, "hello")
    say(app, api, "again")
    found = browser.page("/threads/t/chat")
    said = [one.get("aria-label") for one in found.all("article")]
    assert said == ["User", "Model"] * 2
    links = [one.get("href") for one in found.all("a") if one.text[:1] == "#"]
    seqs = [int(link.rpartition("=")[2]) for link in links if "?at=" in link]
    entries = {one.seq: one for one in app.history("t")}
    assert [entries[seq].source for seq in seqs] == ["input", "step"] * 2
    assert [one.text[:5] for one in found.all("p", **{"class": "since"})] == ["Run 1", "Run 2"]
    lines = [one.text for one in found.all("li") if not one.attributes]
    assert lines[:2] == ["hello", "twice"]
    assert "+1 message" in found.one("section", **{"aria-labelledby": "c-steps"}).text
    assert "Chat" in browser.page("/threads/t").texts("a")
    assert "It starts a run." in found.one("textarea", name="message").get("placeholder")


def test_calls_are_joined_with_their_results(api: Api, app: App[Any], browser: Browser) -> None:
    """Fails if a result is shown with another call, or the question about a call is elsewhere."""
    say(app, api, "call")
    found = browser.page("/threads/t/chat")
    calls = found.all("details", **{"class": "call"})
    assert [" ".join(one.text.split())[:12] for one in calls] == [
        'find"7" Argu',
        'fails"8" Arg',
        'refund"9"nee',
    ]
    assert "40" in calls[0].text
    assert "no such order" in calls[1].text
    assert "Call refund?" in calls[2].text
    assert "It closes the open question." in found.one("textarea", name="message").get(
        "placeholder"
    )
    fields = found.sent("/threads/t/answers")
    answer = browser.ask(
        "POST",
        "/threads/t/answers",
        data={**fields, "field": ["approve", "args", "reason"], "value": ["true", "", ""]},
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/threads/t/chat")
    api.work(app)
    assert "paid for 9" in browser.page("/threads/t/chat").one("main").text


def test_conversation_is_continued(api: Api, app: App[Any], browser: Browser) -> None:
    """Fails if the message is lost, changed on its way, or closes no question."""
    say(app, api, "call")
    sent = {"csrf": browser.csrf, "message": "one\r\ntwo"}
    answer = browser.ask("POST", "/threads/t/chat", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/threads/t/chat")
    api.work(app)
    assert app.state("t").status == "completed"
    said = [one["content"] for one in app.state("t").state["messages"] if one["role"] == "user"]
    assert said == ["call", "one\ntwo"]
    sent["message"] = "  "
    assert browser.ask("POST", "/threads/t/chat", data=sent).status_code == 400


def test_hostile_messages_are_text(api: Api, app: App[Any], browser: Browser) -> None:
    """``Document`` refuses scripts. Fails if a text of a message is not escaped."""
    say(app, api, f"{BAD}\n\n- {BAD}")
    assert browser.ask("GET", "/threads/t/chat").text.replace("\n", "").isprintable()
    assert "<script>alert(1)</script>" in browser.page("/threads/t/chat").one("main").text


def test_hook_hides_messages(api: Api, app: App[Any]) -> None:
    say(app, api, "hello")
    api.serve(app, redact=lambda place, value: "[hidden]")
    shown = Browser(api).log_in(token_of("default")).page("/threads/t/chat").one("main").text
    assert "hello" not in shown


def test_long_conversation_is_cut(api: Api, app: App[Any], browser: Browser) -> None:
    """``page`` refuses more than 300 kB. Fails if all messages are shown."""
    messages = [{"role": "user", "content": f"{number} " + "<" * 2000} for number in range(300)]
    app.submit({"messages": messages}, "t")
    api.work(app)
    shown = browser.page("/threads/t/chat").one("main").text
    assert "201 earlier messages are not shown here" in shown


def test_thread_without_messages_has_an_empty_conversation(api: Api, browser: Browser) -> None:
    api.run("t")
    assert "No messages" in browser.page("/threads/t/chat").one("main").text
    assert "Chat" not in browser.page("/threads/t").texts("a")
    reader = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {"run"})))
    assert reader.page("/threads/t/chat").all("form", id="say") == []
