"""The table of pages. Their order is that of the navigation."""

from __future__ import annotations

from functools import partial
from typing import Final

from milecastle.model.prepared import prepared
from milecastle.server.pages import login, static, threads
from milecastle.server.pages.view import WebPage

__all__ = ["PAGES"]

PAGES: Final[tuple[WebPage, ...]] = (
    WebPage(method="GET", path="/static/{file}", handler=static.static, scope=None),
    WebPage(method="GET", path="/login", handler=login.show_login, scope=None),
    WebPage(method="POST", path="/login", handler=login.login, scope=None, form=login.LoginForm),
    WebPage(method="POST", path="/logout", handler=login.logout, scope=None, form=login.LogoutForm),
    WebPage(
        method="GET",
        path="/threads",
        handler=threads.list_threads,
        scope="read",
        query=threads.ThreadsPageQuery,
        label="Threads",
    ),
    *(
        WebPage(
            method="POST",
            path=f"/bulk/{action.verb}",
            handler=partial(threads.act, action),
            scope=action.scope,
            form=threads.ActionForm,
        )
        for action in threads.ACTIONS
    ),
)

for _page in PAGES:  # requests are read into these by any thread
    prepared(_page.query)
    if _page.form is not None:
        prepared(_page.form)
