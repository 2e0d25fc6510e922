"""The store's workers, their queue, and its limits.

Workers serve every tenant, and so are shown to each. Threads, lanes and limits are the caller's
tenant's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec.structs
from starlette.responses import RedirectResponse, Response

from milecastle.errors import InvalidRequest
from milecastle.model.keys import is_upkeep
from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit
from milecastle.ports.store import Store
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.forms import named
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.request import ApiRequest
from milecastle.views.documents import LaneLine, WorkerLine
from milecastle.views.fleet import queue_document, workers_document
from milecastle.views.values import anything

_PART: Final = 50_000
"""The bytes that each of the tables may take."""
_UNSERVED: Final = 3
"""How many versions without a worker are named above the queue."""


class LimitForm(HttpDocument, frozen=True):
    """A change to a graph's limit for the caller's tenant; ``concurrency`` is empty for none.

    An empty ``graph`` means every graph.
    """

    action: Literal["pause", "resume", "limit"]
    graph: str = ""
    concurrency: str = ""


@WebPage("GET", "/workers", "read", label="Workers")
def show_workers(request: ApiRequest) -> PageView:
    tenant = request.tenant
    return PageView(
        template="workers.html",
        live="_workers.html",
        title="Workers and queue",
        commands=(("workers", "--threads"), ("queue", *of_tenant(tenant))),
        values={
            "may_change": "admin" in request.identity.scopes,
            "has_worker": request.service.worker is not None,
            "fleet": _fleet(request.service.store, tenant),
        },
    )


def _fleet(store: Store, tenant: str) -> dict[str, Any] | None:
    """Rows by table, with the number omitted; ``None`` if workers cannot share the store."""
    if not isinstance(store, ClaimStore):
        return None
    fleet, queue = workers_document(store), queue_document(store)
    troubled = sorted(fleet.workers, key=lambda line: line.silent <= line.silent_after)
    slowest = sorted(fleet.threads, key=lambda line: -line.seconds)
    found: dict[str, list[Any]] = {
        "workers": [_served(line) for line in troubled],
        "threads": [line for line in slowest if line.tenant == tenant],
        "lanes": [line for line in queue.lanes if line.tenant == tenant and not _idle(line)],
        "limits": [line for line in queue.limits if line.tenant in ("", tenant)],
        "buckets": [line for line in queue.buckets if line.tenant in ("", tenant)],
    }
    shown = {name: list(fitting(lines, _size, _PART)) for name, lines in found.items()}
    left = {name: len(lines) - len(shown[name]) for name, lines in found.items()}
    own = {one.graph: one for one in queue.limits if one.tenant == tenant and not one.key}
    return {**shown, "left": left, "own": own, **_numbers(fleet.workers, found["lanes"])}


def _served(line: WorkerLine) -> WorkerLine:
    """A worker without the lanes of jobs and schedules, which it has for each of its graphs."""
    lanes = tuple(lane for lane in line.lanes if not is_upkeep(lane))
    return msgspec.structs.replace(line, lanes=lanes)


def _idle(line: LaneLine) -> bool:
    """True for a lane of jobs, or of a schedule, in which nothing waits or runs now."""
    return is_upkeep(line.graph) and not line.due and not line.running


def _numbers(
    workers: Sequence[WorkerLine], lanes: Sequence[LaneLine]
) -> dict[str, int | float | list[LaneLine]]:
    silent = [line for line in workers if line.silent > line.silent_after]
    alive = [line for line in workers if line not in silent]
    return {
        "known": len(workers),
        "alive": len(alive),
        "silent": len(silent),
        "silent_for": max((line.silent for line in silent), default=0.0),
        "running": sum(line.running for line in alive),
        "places": sum(line.capacity for line in alive),
        "due": sum(line.due for line in lanes),
        "most": max((line.due for line in lanes), default=0),
        "oldest": max((line.oldest for line in lanes), default=0.0),
        "later": sum(line.later for line in lanes),
        "unserved": [line for line in lanes if line.due and not line.workers][:_UNSERVED],
    }


def _size(line: Any) -> int:
    size = 400
    for name in line.__struct_fields__:
        value: Any = getattr(line, name)
        texts: Iterable[Any] = anything(value) if isinstance(value, tuple) else (value,)
        size += sum(20 + shown_size(one) for one in texts if isinstance(one, str))
    return size


@WebPage("POST", "/workers", "admin", form=LimitForm)
async def change_limit(request: ApiRequest) -> Response:
    form: LimitForm = request.body
    store = request.service.store
    if not isinstance(store, ClaimStore):
        raise InvalidRequest("the store of this server has no queue that workers share")
    await request.off_loop(_change, store, request.tenant, named(form.graph), form)
    return RedirectResponse("/workers", 303)


def _change(store: ClaimStore, tenant: str, graph: str, form: LimitForm) -> None:
    known = {(limit.graph, limit.tenant): limit for limit in store.limits() if not limit.key}
    limit = known.get((graph, tenant), Limit(graph=graph, tenant=tenant))
    if form.action == "limit":
        try:
            most = int(form.concurrency) if form.concurrency.strip() else None
        except ValueError:
            raise InvalidRequest("how many run at once is a number, or empty") from None
        store.set_limit(msgspec.structs.replace(limit, concurrency=most))
    else:
        store.set_limit(msgspec.structs.replace(limit, paused=form.action == "pause"))
