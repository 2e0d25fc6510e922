from __future__ import annotations

from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from milecastle.server.access import SESSION, cookie_name
from milecastle.server.mounting import mount_point
from milecastle.server.oidc.login_answer import UNFINISHED

R = TypeVar("R", bound=Response)


LOGIN_PATH: Final = "/login/oidc"


def set_session(
    response: R, request: Request, session: str, lasts: int = SESSION, is_secure: bool = False
) -> R:
    response.set_cookie(
        cookie_name(request.headers.get("host", "")),
        session,
        max_age=lasts,
        path=mount_point(request.scope) or "/",
        httponly=True,
        samesite="strict",
        secure=is_secure or _is_secure(request),
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


def login_cookie_name(request: Request) -> str:
    return f"{cookie_name(request.headers.get('host', ''))}-login"


def set_login(response: R, request: Request, cookie: str, is_secure: bool) -> R:
    """Set a login's cookie: the issuer's pages lead back with it, so it is lax."""
    response.set_cookie(
        login_cookie_name(request),
        cookie,
        max_age=UNFINISHED,
        path=mount_point(request.scope) + LOGIN_PATH,
        httponly=True,
        samesite="lax",
        secure=is_secure,
    )
    return response


def end_login(response: R, request: Request) -> R:
    path = mount_point(request.scope) + LOGIN_PATH
    response.delete_cookie(login_cookie_name(request), path=path, httponly=True, samesite="lax")
    return response


def _is_secure(request: Request) -> bool:
    origin = request.headers.get("origin", "")
    return request.url.scheme == "https" or origin.lower().startswith("https://")
