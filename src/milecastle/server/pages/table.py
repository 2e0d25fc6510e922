"""The table of pages. Their order is that of the navigation."""

from __future__ import annotations

from functools import partial
from typing import Final

from milecastle.model.prepared import prepared
from milecastle.server.pages import login, static, thread, thread_forms, threads
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
    WebPage(
        method="GET",
        path="/threads/{thread}",
        handler=thread.show_thread,
        scope="read",
        query=thread.ThreadPageQuery,
    ),
    WebPage(
        method="GET",
        path="/threads/{thread}/graph.svg",
        handler=thread.show_drawing,
        scope="read",
        query=thread.ThreadPageQuery,
    ),
    WebPage(
        method="POST",
        path="/threads/{thread}/answers",
        handler=thread_forms.answer,
        scope="answer",
        form=thread_forms.AnswerForm,
    ),
    WebPage(
        method="POST",
        path="/threads/{thread}/fork",
        handler=thread_forms.fork,
        scope="run",
        form=thread_forms.ForkForm,
    ),
    WebPage(
        method="POST",
        path="/threads/{thread}/update",
        handler=thread_forms.update,
        scope="admin",
        form=thread_forms.UpdateForm,
    ),
)

for _page in PAGES:  # requests are read into these by any thread
    prepared(_page.query)
    if _page.form is not None:
        prepared(_page.form)
