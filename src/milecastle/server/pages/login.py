from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from milecastle.server.documents import HttpDocument
from milecastle.server.pages.forms import own_path
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.problems import Refused, problem_document
from milecastle.server.request import ApiRequest
from milecastle.server.sessions import end_session, set_session


class LoginForm(HttpDocument, frozen=True):
    """``next`` is the path to show afterwards."""

    token: str
    next: str = "/"


class LogoutForm(HttpDocument, frozen=True): ...


@WebPage("GET", "/login", None)
async def show_login(request: ApiRequest) -> PageView:
    return _asked("/")


def _asked(next: str, error: Refused | None = None) -> PageView:
    document = problem_document(error)[0] if error else None
    return PageView(
        template="login.html",
        title="Log in",
        status=document.status if document else 200,
        commands=(("serve",),),
        values={"problem": document, "next": next, "was_tried": error is not None},
    )


@WebPage("POST", "/login", None, form=LoginForm)
async def login(request: ApiRequest) -> PageView | Response:
    form: LoginForm = request.body
    place = own_path(form.next)
    try:
        session = request.access.open_session(form.token.strip())
    except Refused as error:
        return _asked(place, error)
    return set_session(RedirectResponse(place, 303), request.http, session)


@WebPage("POST", "/logout", None, form=LogoutForm)
async def logout(request: ApiRequest) -> Response:
    request.access.end_session(request.http.headers)
    return end_session(RedirectResponse("/login", 303), request.http)
