from __future__ import annotations

from typing import Final

from milecastle.server.documents import HttpDocument, ThreadRunsQuery
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.thread import made_of, thread_head
from milecastle.server.pages.thread_reading import read_thread
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.redaction import redacted
from milecastle.server.request import ApiRequest
from milecastle.server.runs import runs_of_thread
from milecastle.views.documents import RunLine

_ROWS: Final = 50


class ThreadRunsPageQuery(HttpDocument, frozen=True):
    after: str | None = None


@WebPage("GET", "/threads/{thread}/runs", "read", query=ThreadRunsPageQuery, made_of=made_of)
def show_thread_runs(request: ApiRequest) -> PageView:
    service, key = request.service, request.key
    after = request.query.after or None
    found = runs_of_thread(service.store, key, ThreadRunsQuery(limit=_ROWS, after=after))
    lines = [redacted(line, service.redact) for line in fitting(found.runs, _size)]
    is_cut = found.next is not None or len(lines) < len(found.runs)
    return PageView(
        template="thread_runs.html",
        live="_thread_runs.html",
        title=key.thread,
        commands=(("runs", *of_tenant(key.tenant), "--", key.thread),),
        values={
            **thread_head(service, read_thread(service, key, None), "runs"),
            "lines": lines,
            "after": after,
            "next": {"after": lines[-1].run_id} if is_cut else None,
        },
    )


def _size(line: RunLine) -> int:
    failure = line.failure
    said = (failure.error_type, failure.message[:200], failure.node or "") if failure else ()
    return 900 + sum(map(shown_size, said))
