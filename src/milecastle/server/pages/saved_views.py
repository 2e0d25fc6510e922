"""Saved views: names for the thread list's queries. They are in a cookie, not in a store."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from milecastle.errors import InvalidRequest
from milecastle.server.documents import HttpDocument
from milecastle.server.mounting import mount_point
from milecastle.server.pages.view import WebPage
from milecastle.server.request import ApiRequest

VIEWS: Final = "milecastle-views"
_MOST: Final = 12
_NAME, _QUERY = 40, 200
_YEAR: Final = 365 * 86400
_OWN: Final = re.compile(r"\?[\x21-\x7e]*")


class SavedView(NamedTuple):
    name: str
    query: str


class ViewForm(HttpDocument, frozen=True):
    """A view to save under a name, or to ``remove``."""

    name: str = ""
    query: str = "?"
    remove: str = ""


def saved_views(http: Request) -> list[SavedView]:
    try:
        pairs = parse_qsl(unquote(http.cookies.get(VIEWS, "")), max_num_fields=_MOST)
    except ValueError:
        return []
    return [SavedView(name, query) for name, query in pairs if name and _OWN.fullmatch(query)]


@WebPage("POST", "/views", None, form=ViewForm)
async def save_view(request: ApiRequest) -> Response:
    form: ViewForm = request.body
    name, kept = form.name.strip(), [*saved_views(request.http)]
    if form.remove:
        kept = [one for one in kept if one.name != form.remove]
    else:
        if not 0 < len(name) <= _NAME or len(form.query) > _QUERY or not _OWN.fullmatch(form.query):
            raise InvalidRequest(f"a view has a name of at most {_NAME} characters, and a query")
        kept = [*(one for one in kept if one.name != name), SavedView(name, form.query)]
        if len(kept) > _MOST:
            raise InvalidRequest(f"at most {_MOST} views can be saved: remove one first")
    response = RedirectResponse("/threads" if form.remove else f"/threads{form.query}", 303)
    path = mount_point(request.http.scope) or "/"
    text = quote(urlencode(kept), safe="")
    response.set_cookie(VIEWS, text, max_age=_YEAR, path=path, httponly=True, samesite="strict")
    return response
