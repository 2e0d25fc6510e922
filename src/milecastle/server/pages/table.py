"""All pages, in the order of the navigation. Each is declared at its handler."""

from __future__ import annotations

from typing import Final

from milecastle.server.pages import (
    builds,
    chat,
    colours,
    compare,
    failures,
    graphs,
    inbox,
    items,
    login,
    oidc,
    overview,
    runs,
    saved_views,
    schedules,
    static,
    thread,
    thread_forms,
    thread_runs,
    threads,
    versions,
    workers,
)
from milecastle.server.pages.view import WebPage
from milecastle.support.prepared import prepared

PAGES: Final[tuple[WebPage, ...]] = (
    static.static,
    login.show_login,
    login.login,
    login.logout,
    oidc.begin,
    oidc.finish,
    colours.choose_colours,
    saved_views.save_view,
    overview.show_overview,
    threads.list_threads,
    *threads.ACTION_PAGES,
    thread.show_thread,
    chat.show_chat,
    chat.say,
    items.show_items,
    thread_runs.show_thread_runs,
    thread_forms.answer,
    thread_forms.discard,
    thread_forms.fork,
    thread_forms.tag,
    thread_forms.update,
    compare.show_compare,
    inbox.show_inbox,
    inbox.answer,
    failures.show_failures,
    runs.list_runs,
    *runs.BULK_PAGES,
    runs.show_job,
    graphs.list_graphs,
    graphs.show_graph,
    graphs.draw_graph,
    graphs.start_run,
    versions.show_versions,
    schedules.show_schedules,
    schedules.change_schedule,
    schedules.plan_backfill,
    workers.show_workers,
    workers.change_limit,
    builds.list_builds,
    builds.show_plan,
    builds.show_build,
)

for _page in PAGES:  # requests are read into these by any thread
    prepared(_page.query)
    if _page.form is not None:
        prepared(_page.form)
