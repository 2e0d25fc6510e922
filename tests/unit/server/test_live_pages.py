"""Pages that send their live part again when it has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.datastructures import Headers

from milecastle.server import event_stream, events
from milecastle.server.identity import ALL_SCOPES, Identity
from milecastle.server.pages import live, thread
from milecastle.server.pages.table import PAGES
from tests.unit.server.browsing import Browser, Document
from tests.unit.server.calling import ADDRESS, OTHER, Api, token_of

STREAM = "text/event-stream"


def parts(text: str) -> list[str]:
    """The parts of a stream, each of which has the id of the live one."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    found: list[str] = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert all(Document(part).elements[0].get("id") == "live" for part in found)
    return found


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the longest pause, each waited for ten times what the first rendering took."""
    monkeypatch.setattr(live, "PAUSE", 0.01)
    monkeypatch.setattr(live, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(live, "HEARTBEAT", 0.05)


@pytest.mark.parametrize("path", ["/threads", "/threads/a"])
def test_part_is_sent_again_when_it_has_changed(api: Api, path: str) -> None:
    """Fails if a change is missed, or if the same part is sent twice: a comment comes between."""
    api.run("a", 42)
    changes: list[str] = []

    def change(text: str) -> bool:
        if text.count("still here") > len(changes):
            changes.append(text)
            api.app.update_state("a", {"n": len(changes)})
            api.app.submit({"n": 1, "log": []}, f"b{len(changes)}")
        return len(parts(text)) == 3

    found = parts(api.follow(path, accept=STREAM, is_enough=change))
    assert len(found) == len(set(found)) == 3
    assert len(changes) == 2


def count_renderings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that gets longer each time a page of a thread is rendered."""
    rendered: list[Any] = []
    values: Any = vars(thread)["_values"]

    def counted(*args: Any) -> Any:
        rendered.append(args)
        return values(*args)

    monkeypatch.setattr(thread, "_values", counted)
    return rendered


def test_resting_thread_is_not_rendered_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without ``made_of``: every look reads the whole thread."""
    api.run("a", 42)
    api.app.submit({"n": 1, "log": []}, "moves")
    rendered = count_renderings(monkeypatch)
    api.follow("/threads/a", accept=STREAM, is_enough=lambda text: "still" in text)
    assert len(rendered) == 2, "one to see that it is a live page, and one to send"
    api.follow("/threads/moves", accept=STREAM, is_enough=lambda _: len(rendered) > 5)


def test_message_to_a_resting_thread_is_shown_at_once(api: Api) -> None:
    """And gone once discarded. Tried: ``made_of`` without the unread messages."""
    api.run("a", 42)
    changes: list[Callable[[], object]] = [
        lambda: api.app.send("a", "paid"),
        lambda: api.app.discard("a", 1),
    ]

    def change(text: str) -> bool:
        if changes and text.count("still here") > 2 - len(changes):
            changes.pop(0)()
        return len(parts(text)) == 3 or text.count("still here") > 20

    found = parts(api.follow("/threads/a", accept=STREAM, is_enough=change))
    assert ["message-1" in part for part in found] == [False, True, False]


def test_stream_ends_so_that_the_session_is_checked(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a browser that is logged out is sent pages for ever."""
    monkeypatch.setattr(live, "LONGEST", 0.05)
    assert len(parts(api.follow("/threads", accept=STREAM, is_enough=lambda _: False))) == 1


def test_deleted_thread_ends_its_stream(api: Api) -> None:
    """Fails if the stream stays open without anything to send."""
    api.run("a")

    def delete(text: str) -> bool:
        if "event: part" in text:
            api.app.delete("a")
        return False

    assert len(parts(api.follow("/threads/a", accept=STREAM, is_enough=delete))) == 1


@pytest.mark.parametrize("path", ["/threads", "/threads/a", "/v1/threads/a/events"])
def test_session_that_is_logged_out_is_sent_nothing_more(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Fails if the caller is only looked at when the stream begins."""
    monkeypatch.setattr(event_stream, "RECHECK", 0.0)
    monkeypatch.setattr(events, "HEARTBEAT", 0.05)
    api.run("a", 42)
    ((name, session),) = browser.cookies.items()
    cookie = f"{name}={session}"
    seen: list[int] = []

    def end(text: str) -> bool:
        if not seen and "event: " in text:
            access = api.application.access
            access.end_session(Headers({"host": ADDRESS.removeprefix("http://"), "cookie": cookie}))
            api.app.update_state("a", {"n": 7})
            seen.append(len(text))
        return bool(seen) and len(text) > seen[0]

    text = api.follow(path, accept=STREAM, cookie=cookie, is_enough=end)
    assert len(text) == seen[0], text[seen[0] :]


def test_caller_whom_the_proxy_takes_for_another_is_sent_nothing_more(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if who calls is not compared with who called."""
    monkeypatch.setattr(event_stream, "RECHECK", 0.0)
    found = [Identity("default", ALL_SCOPES)]
    api.serve(api.app, identify=lambda _: found[-1])

    def change(text: str) -> bool:
        if "event: part" in text:
            found.append(Identity(OTHER, ALL_SCOPES))
        return "still here" in text

    assert "still here" not in api.follow("/threads", accept=STREAM, is_enough=change)


def test_slow_reader_costs_one_part(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if parts are made while the reader does not take the last one, or it is not dropped."""
    monkeypatch.setattr(event_stream, "SLOW", 0.5)
    api.app.submit({"n": 1, "log": []}, "moves")
    rendered = count_renderings(monkeypatch)
    api.stall("/threads/moves", accept=STREAM, at="event: part")
    assert len(rendered) == 2


def test_form_is_not_handled_again_and_again(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the answer to a form is made a stream: its handler would run at every look."""
    monkeypatch.setattr(live, "LONGEST", 0.05)
    api.run("a", 42)
    found = browser.page("/inbox")
    fields = {one.get("name"): one.get("value") for one in found.all("input", type="hidden")}
    fields |= {"csrf": browser.csrf, "value": "true"}
    headers = {"Accept": STREAM, "HX-Request": "true"}
    answer = browser.ask("POST", "/inbox", data=fields, headers=headers)
    assert answer.headers["content-type"].startswith("text/html"), answer.headers


def test_stream_of_another_tenant_has_nothing(api: Api) -> None:
    """Fails if the stream is not that of the caller."""
    api.run("secret")
    one = api.follow(
        "/threads", accept=STREAM, token=token_of(OTHER), is_enough=lambda text: "part" in text
    )
    assert "secret" not in one
    other = api.follow("/threads/secret", accept=STREAM, token=token_of(OTHER))
    assert "event: part" not in other


@pytest.mark.parametrize(
    "path", [page.path for page in PAGES if page.method == "GET" and "{" not in page.path]
)
def test_page_without_a_live_part_is_answered_as_ever(api: Api, path: str) -> None:
    """Fails if a page that never changes is sent as a stream."""
    text = api.follow(path, accept=STREAM, is_enough=lambda text: "event: part" in text)
    assert ("event: part" in text) is ("<html" not in text)


def test_page_of_a_thread_is_sent_again_when_its_tags_have_changed(api: Api) -> None:
    """Fails if the part is taken for the same: a change of tags moves no head."""
    api.run("a", 42)
    changes: list[str] = []

    def change(text: str) -> bool:
        if not changes and "still here" in text:
            changes.append(text)
            api.app.tag("a", ["eu"])
        return len(parts(text)) == 2

    found = parts(api.follow("/threads/a", accept=STREAM, is_enough=change))
    assert ["tag=eu" in part for part in found] == [False, True]
