"""Views and problems as HTML.

Rules:

- Every value is escaped: first for terminals and line readers, by ``printable``, then for HTML. A
  template needs no filter for that, and none uses ``safe``. Text with several lines goes through
  ``multiline``, which escapes each line.
- There is no script and no style in a page, only links to ours: the policy below refuses others.
- Links lead only to pages in the table.
- Text is made off the event loop.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from milecastle.server.mounting import mount_point, mounted_html
from milecastle.server.pages.colours import colours_of
from milecastle.server.pages.forms import csrf_token
from milecastle.server.pages.static import static_url
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.pages.words import (
    ago,
    clock,
    duration,
    exact,
    number,
    plural,
    since,
    soon,
    status_word,
)
from milecastle.server.problems import problem_document
from milecastle.server.request import ApiRequest
from milecastle.support.printable import is_unsafe, printable
from milecastle.views.replicas import behind_words
from milecastle.views.values import as_json

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    # Not no-referrer: with it, browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
}
_FOLDER: Final = Path(__file__).resolve().parent.parent / "templates"
_DOTS: Final = (".", "..")
"""Names that browsers take out of a path, also if they are encoded."""


def prefers_html(http: Request) -> bool:
    is_api = http.url.path.startswith("/v1/")
    return not is_api and "text/html" in http.headers.get("accept", "")


class Renderer:
    """Renders views with navigation, without the ``hidden`` labels, and links to these graphs.

    ``issuer`` is the host at which people log in, if there is one.
    """

    def __init__(
        self,
        pages: Sequence[WebPage],
        graphs: Collection[str] = (),
        hidden: Collection[str] = (),
        issuer: str = "",
    ) -> None:
        self._linked = [page for page in pages if page.label and page.label not in hidden]
        paths = {page.path for page in pages if page.method == "GET"}

        def href(path: str, **names: str) -> str | None:
            if path not in paths or any(name in _DOTS for name in names.values()):
                return None
            if names.get("graph", "") not in ("", *graphs):
                return None
            return path.format(**{key: segment(name) for key, name in names.items()})

        self._href = href
        self.environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalized,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        names: dict[str, Any] = self.environment.globals
        names.update(
            href=href,
            static=static_url,
            plural=plural,
            since=since,
            status_word=status_word,
            issuer=issuer,
        )
        self.environment.filters.update(
            ago=ago,
            clock=clock,
            command_line=command_line,
            digest=_digest,
            duration=duration,
            exact=exact,
            json=_json,
            multiline=multiline,
            number=number,
            query=query_text,
            segment=segment,
            soon=soon,
        )

    async def response(self, view: PageView, request: ApiRequest) -> Response:
        http, place = request.http, view.place
        if place is not None and (url := self._href(place.path, **place.names)) is not None:
            return RedirectResponse(url, 303)
        if view.live is not None and http.headers.get("hx-request") == "true":
            text = await request.off_loop(self.part, view, view.live, request)
        else:
            text = await request.off_loop(self._whole, view, request)
        return HTMLResponse(text, view.status, HEADERS)

    def _whole(self, view: PageView, request: ApiRequest) -> str:
        return self.part(view, view.template, request, self._badges(request))

    def part(
        self,
        view: PageView,
        template: str,
        request: ApiRequest,
        badges: Mapping[str, str] | None = None,
    ) -> str:
        own = {
            "tenant": request.tenant,
            "scopes": request.identity.scopes,
            "badges": badges,
            "behind": behind_words(view.behind),
        }
        values = {**view.values, **own}
        return self._text(template, request.http, view.title, view.commands, values)

    def problem(self, error: Exception, http: Request) -> Response:
        """A page with the problem and its remedy; for 401, the login form."""
        document, headers = problem_document(error)
        code = document.code
        values = {"problem": document, "next": _url(http), "was_tried": False}
        text = self._text(
            "login.html" if document.status == 401 else "problem.html",
            http,
            "Log in" if document.status == 401 else document.title,
            (("explain", code),) if code else (),
            {"tenant": "", "scopes": (), "badges": {}, **values},
        )
        return HTMLResponse(text, document.status, {**HEADERS, **headers})

    def _badges(self, request: ApiRequest) -> dict[str, str]:
        found = ((page, page.badge) for page in self._linked)
        return {
            page.path: badge(request.service, request.tenant)
            for page, badge in found
            if badge is not None and "read" in request.identity.scopes
        }

    def _text(
        self,
        template: str,
        http: Request,
        title: str,
        commands: Iterable[Sequence[str]],
        values: Mapping[str, Any],
    ) -> str:
        text = self.environment.get_template(template).render(
            title=title,
            commands=[command_line(one) for one in commands],
            csrf=csrf_token(http.headers),
            path=http.url.path,
            url=_url(http),
            navigation=self._linked,
            colours=colours_of(http),
            **values,
        )
        return mounted_html(text, mount_point(http.scope))


def _url(http: Request) -> str:
    if http.method != "GET":
        return "/"
    query = http.scope["query_string"].decode("ascii", "replace")
    return f"{http.scope['path']}?{query}" if query else http.scope["path"]


def _finalized(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def multiline(text: str) -> Markup:
    return escape("\n".join(map(printable, text.split("\n"))))


def _json(value: Any) -> Markup:
    return escape(as_json(value, indent=2))


def segment(name: str) -> str:
    return quote(name, safe="")


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def query_text(values: Mapping[str, Any]) -> str:
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def shown_size(name: str) -> int:
    shown, typed = (len(escape(text).encode()) for text in (printable(name), _argument(name)))
    return 2 * shown + 2 * len(segment(name)) + typed


def command_line(arguments: Sequence[str]) -> str:
    """Our command for a POSIX shell, or bash if a name is not printable."""
    return " ".join(["milecastle", *map(_argument, arguments)])


def _argument(text: str) -> str:
    if not any(map(is_unsafe, text)):
        return shlex.quote(text)
    return "$'" + "".join(_escaped(char) for char in text) + "'"


def _escaped(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    return f"\\U{ord(char):08x}" if is_unsafe(char) else char


T = TypeVar("T")

BYTES: Final = 200_000
"""The bytes that the rows of a page may take."""


def fitting(items: Iterable[T], size: Callable[[T], int], most: int = BYTES) -> Iterator[T]:
    taken = 0
    for item in items:
        taken += size(item)
        if taken > most:
            return
        yield item
