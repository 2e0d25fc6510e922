"""Logging in at an OpenID Connect issuer.

The session's cookie is not sent along a redirect that began on the issuer's pages, so the last
answer is a page that leads on: its own links come from this server.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response

from milecastle.server.documents import HttpDocument
from milecastle.server.mounting import mount_point
from milecastle.server.oidc.login_answer import PERSON_SESSION, LoginAnswer
from milecastle.server.pages.forms import own_path
from milecastle.server.pages.rendering import HEADERS
from milecastle.server.pages.view import WebPage
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest
from milecastle.server.sessions import end_login, login_cookie_name, set_login, set_session

if TYPE_CHECKING:
    from milecastle.server.oidc.signing_in import SigningIn


class BeginQuery(HttpDocument, frozen=True):
    """``next`` is the path to show afterwards."""

    next: str = "/"


def _signing_in(request: ApiRequest) -> SigningIn:
    found = request.access.signing_in
    if found is None:
        raise Refused(NOT_FOUND, 404, "this server has no issuer at which people log in")
    return found


@WebPage("GET", "/login/oidc", None, query=BeginQuery)
async def begin(request: ApiRequest) -> Response:
    signing_in = _signing_in(request)
    begun = await signing_in.begin(own_path(request.query.next))
    is_secure = signing_in.settings.is_secure
    return set_login(RedirectResponse(begun.url, 303), request.http, begun.cookie, is_secure)


@WebPage("GET", "/login/oidc/callback", None, query=LoginAnswer)
async def finish(request: ApiRequest) -> Response:
    signing_in, http = _signing_in(request), request.http
    cookies = cookie_parser(http.headers.get("cookie", ""))
    finished = await signing_in.finish(cookies.get(login_cookie_name(http), ""), request.query)
    place = escape(mount_point(http.scope) + finished.next)
    response = HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Logged in</title>'
        f'<meta http-equiv="refresh" content="0; url={place}">'
        f'<p>Logged in. <a href="{place}">Continue</a></p></html>',
        headers=HEADERS,
    )
    session = request.access.session_of(finished.identity)
    set_session(response, http, session, PERSON_SESSION, signing_in.settings.is_secure)
    return end_login(response, http)
