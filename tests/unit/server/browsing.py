"""A browser without a screen: it keeps cookies, reads HTML, and sends forms as they are."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import httpx

from milecastle.server.limits import MOST_BODY
from tests.unit.server.calling import ADDRESS, Api

LARGEST = 300_000
"""Bytes of a page."""
VOID = {"br", "hr", "img", "input", "link", "meta"}
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Element:
    """An element that was read: its name, its attributes, and the text inside.

    ``own`` is the text without that of small lines below it.
    """

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name, self.attributes, self.text, self.own = name, attributes, "", ""
        self.form: Element | None = None

    def get(self, name: str) -> str:
        return self.attributes.get(name, "")


class Document(HTMLParser):
    """The elements of a page, in order; what is not closed or not ours is refused."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()
        assert self._open == [], [one.name for one in self._open]
        self._check()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        assert len(element.attributes) == len(attrs), f"an attribute of {tag} is given twice"
        element.form = next((one for one in self._open if one.name == "form"), None)
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().name == tag

    def handle_data(self, data: str) -> None:
        is_small = False
        for element in reversed(self._open):
            element.text += data
            element.own += "" if is_small else data
            is_small = is_small or element.get("class").split(" ")[0] == "sub"

    def all(self, tag: str, /, **wanted: str) -> list[Element]:
        return [
            one
            for one in self.elements
            if one.name == tag and all(one.get(key) == value for key, value in wanted.items())
        ]

    def one(self, tag: str, /, **wanted: str) -> Element:
        (found,) = self.all(tag, **wanted)
        return found

    def texts(self, name: str) -> list[str]:
        return [one.own.strip() for one in self.all(name)]

    def sent(self, action: str) -> dict[str, str]:
        """The hidden fields of the form, or of the one with a button, that is sent there."""
        (form,) = {
            *self.all("form", action=action),
            *(one.form for one in self.all("button", formaction=action)),
        }
        hidden = [one for one in self.all("input", type="hidden") if one.form is form]
        return {one.get("name"): one.get("value") for one in hidden}

    def commands(self) -> list[str]:
        """The commands of the page, the main one first."""
        others = self.all("pre", id="commands")
        return (
            [self.one("code", id="command").text, *others[0].text.split("\n")]
            if others
            else [self.one("code", id="command").text]
        )

    def statuses(self) -> list[str]:
        """The statuses that are shown as pills."""
        return [one.get("data-status") for one in self.all("span") if one.get("data-status")]

    def _check(self) -> None:
        """Nothing inline, unique ids, every field with a label."""
        ids = [one.get("id") for one in self.elements if one.get("id")]
        assert len(ids) == len(set(ids))
        labels = "".join(one.text for one in self.all("label"))
        for one in self.elements:
            assert one.name not in {"style", "iframe", "object", "embed", "base"}
            assert not [name for name in one.attributes if name.startswith("on") or name == "style"]
            assert one.name != "script" or ("/static/" in one.get("src") and not one.text)
            for name in ("href", "src", "action", "formaction", "data-live"):
                assert one.get(name)[:1] in ("", "/", "#"), one.get(name)
                assert not one.get(name).startswith("//")
            if one.name == "input" and one.get("type") != "hidden":
                assert one.get("aria-label") or labels


class Browser:
    """Asks for pages as a browser does, with the cookies that it was given."""

    def __init__(self, api: Api) -> None:
        self._api, self.cookies = api, dict[str, str]()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request; the answer must be safe to show."""
        headers = {**HTML, **more.pop("headers", {})}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={text}" for name, text in self.cookies.items())
        if method == "POST":
            headers.setdefault("Origin", ADDRESS)
        response = self._api.send(method, path, headers, **more)
        for name, text in response.cookies.items():
            self.cookies[name] = text
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'")
        return response

    def page(self, path: str, status: int = 200, **more: Any) -> Document:
        """A page, which must have this status."""
        response = self.ask("GET", path, **more)
        assert response.status_code == status, response.text
        return read(response)

    def post(self, path: str, fields: Any, status: int = 200, **more: Any) -> Document:
        """Send a form with these fields, and its token."""
        data = {"csrf": self.csrf, **fields}
        response = self.ask("POST", path, data=data, **more)
        assert response.status_code == status, response.text
        return read(response)

    @property
    def csrf(self) -> str:
        return self.page("/login").all("input", name="csrf")[0].get("value")

    def log_in(self, token: str) -> Browser:
        self.cookies.clear()
        response = self.ask("POST", "/login", data={"csrf": self.csrf, "token": token})
        assert response.status_code == 303, response.text
        return self


def read(response: httpx.Response) -> Document:
    """The HTML of an answer, which is not too large."""
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in response.headers["content-security-policy"]
    assert len(response.content) < LARGEST < MOST_BODY
    return Document(response.text)
