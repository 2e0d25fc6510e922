"""The store's workers, and their queue.

Workers serve every tenant, and so are shown to each. Threads, lanes and limits are those of the
caller's tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
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


@WebPage("GET", "/workers", "read", label="Workers")
def show_workers(request: ApiRequest) -> PageView:
    """Workers with what they run, the queue, and what limits it."""
    tenant = request.tenant
    return PageView(
        template="workers.html",
        live="_workers.html",
        title="Workers and queue",
        commands=(("workers", "--threads"), ("queue", *of_tenant(tenant))),
        values={
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
        "workers": troubled,
        "threads": [line for line in slowest if line.tenant == tenant],
        "lanes": [line for line in queue.lanes if line.tenant == tenant],
        "limits": [line for line in queue.limits if line.tenant in ("", tenant)],
    }
    shown = {name: list(fitting(lines, _size, _PART)) for name, lines in found.items()}
    left = {name: len(lines) - len(shown[name]) for name, lines in found.items()}
    return {**shown, "left": left, **_numbers(fleet.workers, found["lanes"])}


def _numbers(
    workers: Sequence[WorkerLine], lanes: Sequence[LaneLine]
) -> dict[str, int | float | list[LaneLine]]:
    """Totals of workers, and a tenant's queue; ``unserved`` lanes have no worker."""
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
