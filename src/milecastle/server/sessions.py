"""Session cookies."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from milecastle.server.access import SESSION, cookie_name
from milecastle.server.mounting import mount_point

R = TypeVar("R", bound=Response)


def set_session(response: R, request: Request, session: str) -> R:
    response.set_cookie(
        cookie_name(request.headers.get("host", "")),
        session,
        max_age=SESSION,
        path=mount_point(request.scope) or "/",
        httponly=True,
        samesite="strict",
        secure=_is_secure(request),
    )
    return response


def end_session(response: R, request: Request) -> R:
    response.delete_cookie(
        cookie_name(request.headers.get("host", "")),
        path=mount_point(request.scope) or "/",
        httponly=True,
        samesite="strict",
        secure=_is_secure(request),
    )
    return response


def _is_secure(request: Request) -> bool:
    origin = request.headers.get("origin", "")
    return request.url.scheme == "https" or origin.lower().startswith("https://")
