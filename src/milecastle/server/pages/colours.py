"""The choice of colours: light, dark, or the system's. It is in a cookie, not in a store."""

from __future__ import annotations

from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from milecastle.server.documents import HttpDocument
from milecastle.server.mounting import mount_point
from milecastle.server.pages.forms import own_path
from milecastle.server.pages.view import WebPage
from milecastle.server.request import ApiRequest

COLOURS: Final = "milecastle-colours"
_YEAR: Final = 365 * 86400


class ColoursForm(HttpDocument, frozen=True):
    """``next`` is the page to return to; no ``colours`` means the system's."""

    colours: Literal["", "light", "dark"] = ""
    next: str = "/"


def colours_of(http: Request) -> str:
    found = http.cookies.get(COLOURS, "")
    return found if found in ("light", "dark") else ""


@WebPage("POST", "/colours", None, form=ColoursForm)
async def choose_colours(request: ApiRequest) -> Response:
    form: ColoursForm = request.body
    response = RedirectResponse(own_path(form.next), 303)
    path = mount_point(request.http.scope) or "/"
    response.set_cookie(
        COLOURS, form.colours, max_age=_YEAR, path=path, httponly=True, samesite="strict"
    )
    return response
