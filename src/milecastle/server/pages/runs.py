from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any, Final, get_args

import msgspec
from starlette.responses import RedirectResponse, Response

from milecastle.errors import InvalidRequest
from milecastle.fleet.bulk import CHANGEABLE, BulkAction, job_key
from milecastle.ports.claims import ClaimStore
from milecastle.ports.reading import StoreReader
from milecastle.ports.store import Store
from milecastle.server import limits
from milecastle.server.documents import BulkRequest, CurrentStatus, HttpDocument, RunsQuery
from milecastle.server.identity import TokenScope
from milecastle.server.jobs import job_document, submit_job
from milecastle.server.pages.forms import named
from milecastle.server.pages.rendering import fitting, segment, shown_size
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.request import ApiRequest
from milecastle.server.runs import runs_document
from milecastle.views.documents import RunLine, RunsDocument
from milecastle.views.listing import found_threads
from milecastle.views.replicas import source_of

_ROWS: Final = 100
_COUNTED: Final = 1000
"""Up to how many runs are counted before a job is confirmed."""

ANY: Final = "any"
STATUSES: Final = ("failed", *(one for one in get_args(CurrentStatus) if one != "failed"), ANY)
SCOPES: Final[dict[BulkAction, TokenScope]] = {"retry": "run", "cancel": "run", "delete": "admin"}
"""What can be done to all runs of a status, and with which scope."""


class RunsPageQuery(HttpDocument, frozen=True):
    status: str = "failed"
    graph: str | None = None
    after: str | None = None


class BulkForm(HttpDocument, frozen=True):
    """Runs to change; ``confirmed`` is set by the confirmation page."""

    status: str
    graph: str
    limit: str = ""
    confirmed: str = ""


@WebPage("GET", "/runs", "read", query=RunsPageQuery)
def list_runs(request: ApiRequest) -> PageView:
    query: RunsPageQuery = request.query
    status, graph = query.status or "failed", query.graph or None
    if status not in STATUSES:
        raise InvalidRequest("there is no such status")
    chosen = {"status": status, "graph": graph, "after": query.after or None}
    store, behind = source_of(request.service.store)
    document = _document(store, request.tenant, chosen, _ROWS)
    return PageView(
        template="runs.html",
        live="_runs.html",
        behind=behind,
        title="Runs",
        commands=(_command(request.tenant, chosen),),
        values={
            "lines": document.runs,
            "next": {**chosen, "after": document.next} if document.next else None,
            "first": {**chosen, "after": None},
            "chosen": chosen,
            "statuses": STATUSES,
            "graphs": sorted(request.service.apps),
            "looked_at": limits.LOOKED_AT,
            **bulk_values(request, status, graph),
        },
    )


def _document(store: StoreReader, tenant: str, chosen: dict[str, Any], rows: int) -> RunsDocument:
    status, graph, after = chosen["status"], chosen["graph"], chosen["after"]
    query = RunsQuery(
        status=None if status == ANY else status, graph=graph, after=after, limit=rows
    )
    found = runs_document(store, tenant, query)
    wanted = [line for line in found.runs if graph in (None, line.graph)]
    if len(wanted) > 1 and len(tuple(fitting(wanted, _size))) < len(wanted):
        return _document(store, tenant, chosen, (len(wanted) + 1) // 2)
    return msgspec.structs.replace(found, runs=tuple(wanted))


def _size(line: RunLine) -> int:
    failure = line.failure
    why = shown_size(failure.error_type) + shown_size(failure.node or "") if failure else 0
    return 500 + shown_size(line.thread) + shown_size(line.graph) + why


def _command(tenant: str, chosen: dict[str, Any]) -> tuple[str, ...]:
    if chosen["status"] == ANY:
        return ("runs", *of_tenant(tenant), f"--limit={_ROWS}")
    graph = [f"--graph={chosen['graph']}"] if chosen["graph"] else []
    status = f"--status={chosen['status']}"
    return ("runs", *of_tenant(tenant), status, *graph, f"--limit={_ROWS}")


def bulk_values(request: ApiRequest, status: str | None, graph: str | None) -> dict[str, Any]:
    scopes, can = request.identity.scopes, isinstance(request.service.store, ClaimStore)
    apps = request.service.apps
    return {
        "bulk_actions": [
            action
            for action, scope in SCOPES.items()
            if can and scope in scopes and status in CHANGEABLE[action]
        ],
        "bulk_graph": graph or (next(iter(apps)) if len(apps) == 1 else None),
    }


async def change_runs(action: BulkAction, request: ApiRequest) -> PageView | Response:
    form: BulkForm = request.body
    asked = _asked(action, form)
    if form.confirmed:
        job = await submit_job(request, action, asked)
        return RedirectResponse(f"/jobs/{segment(job.job)}", 303)
    request.service.named(named(form.graph))
    count = await request.off_loop(_count, request.service.store, request.tenant, asked)
    limit = [f"--limit={asked.limit}"] if asked.limit else []
    chosen = (f"--status={form.status}", f"--graph={asked.graph}", *limit)
    return PageView(
        template="confirm_runs.html",
        title=_title(action),
        commands=(("runs", *of_tenant(request.tenant), *chosen, f"--{action}-all"),),
        values={"action": action, "asked": asked, "most": _COUNTED, "count": count},
    )


BULK_PAGES: Final = tuple(
    WebPage("POST", f"/runs/{action}", scope, form=BulkForm)(partial(change_runs, action))
    for action, scope in SCOPES.items()
)


def _title(action: BulkAction) -> str:
    return f"{action.capitalize()} {'threads' if action == 'delete' else 'runs'}"


def _count(store: Store, tenant: str, asked: BulkRequest) -> int:
    found = found_threads(store, tenant, asked.status, asked.graph)
    return sum(1 for _ in islice(found, min(asked.limit or _COUNTED, _COUNTED)))


def _asked(action: BulkAction, form: BulkForm) -> BulkRequest:
    if form.status not in CHANGEABLE[action]:
        raise InvalidRequest(f"runs with this status cannot be changed: {action}")
    try:
        limit = int(form.limit) if form.limit.strip() else None
        given = {"status": form.status, "graph": named(form.graph), "limit": limit}
        return msgspec.convert(given, BulkRequest)
    except ValueError:
        raise InvalidRequest("how many runs at most is a number above 0, or empty") from None


@WebPage("GET", "/jobs/{job}", "read")
def show_job(request: ApiRequest) -> PageView:
    job = job_document(request)
    return PageView(
        template="job.html",
        live="_job.html",
        title=_title(job.action),
        commands=(
            ("show", *of_tenant(request.tenant), "--", job_key(request.tenant, job.job).thread),
        ),
        values={"job": job},
    )
