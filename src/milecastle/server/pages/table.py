"""The table of pages. Their order is that of the navigation."""

from __future__ import annotations

from functools import partial
from typing import Final

from milecastle.server.pages import (
    badges,
    builds,
    graphs,
    inbox,
    login,
    runs,
    static,
    thread,
    thread_forms,
    threads,
    workers,
)
from milecastle.server.pages.view import WebPage
from milecastle.support.prepared import prepared

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
        made_of=thread.made_of,
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
        path="/threads/{thread}/tags",
        handler=thread_forms.tag,
        scope="run",
        form=thread_forms.TagForm,
    ),
    WebPage(
        method="POST",
        path="/threads/{thread}/update",
        handler=thread_forms.update,
        scope="admin",
        form=thread_forms.UpdateForm,
    ),
    WebPage(
        method="GET",
        path="/inbox",
        handler=inbox.show_inbox,
        scope="read",
        query=inbox.InboxPageQuery,
        label="Inbox",
        badge=badges.open_questions,
    ),
    WebPage(
        method="POST",
        path="/inbox",
        handler=inbox.answer,
        scope="answer",
        form=inbox.InboxForm,
    ),
    WebPage(
        method="GET",
        path="/runs",
        handler=runs.list_runs,
        scope="read",
        query=runs.RunsPageQuery,
        label="Runs",
    ),
    *(
        WebPage(
            method="POST",
            path=f"/runs/{action}",
            handler=partial(runs.change_runs, action),
            scope=scope,
            form=runs.BulkForm,
        )
        for action, scope in runs.SCOPES.items()
    ),
    WebPage(method="GET", path="/jobs/{job}", handler=runs.show_job, scope="read"),
    WebPage(
        method="GET",
        path="/workers",
        handler=workers.show_workers,
        scope="read",
        label="Workers",
    ),
    WebPage(method="GET", path="/graphs", handler=graphs.list_graphs, scope="read", label="Graphs"),
    WebPage(method="GET", path="/graphs/{graph}", handler=graphs.show_graph, scope="read"),
    WebPage(
        method="GET", path="/graphs/{graph}/drawing.svg", handler=graphs.draw_graph, scope="read"
    ),
    WebPage(
        method="POST",
        path="/graphs/{graph}/runs",
        handler=graphs.start_run,
        scope="run",
        form=graphs.StartForm,
    ),
    WebPage(
        method="GET",
        path="/builds",
        handler=builds.list_builds,
        scope="read",
        query=builds.BuildsQuery,
        label="Builds",
    ),
    WebPage(
        method="GET",
        path="/builds/{graph}/plan",
        handler=builds.show_plan,
        scope="read",
        query=builds.PlanQuery,
    ),
    WebPage(
        method="GET", path="/builds/{graph}/runs/{run}", handler=builds.show_build, scope="read"
    ),
)

for _page in PAGES:  # requests are read into these by any thread
    prepared(_page.query)
    if _page.form is not None:
        prepared(_page.form)
