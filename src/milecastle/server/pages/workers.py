"""The store's workers, and their queue.

Workers serve every tenant, and so are shown to each. Threads, lanes and limits are those of the
caller's tenant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.request import ApiRequest
from milecastle.views.fleet import queue_document, workers_document
from milecastle.views.values import anything

_PART: Final = 60_000
"""The bytes that each of the tables may take."""


@WebPage("GET", "/workers", "read", label="Workers")
def show_workers(request: ApiRequest) -> PageView:
    """Workers with what they run, the queue, and what limits it."""
    tenant = request.tenant
    return PageView(
        template="workers.html",
        live="_workers.html",
        title="Workers",
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
    found: dict[str, list[Any]] = {
        "workers": list(fleet.workers),
        "threads": [line for line in fleet.threads if line.tenant == tenant],
        "lanes": [line for line in queue.lanes if line.tenant == tenant],
        "limits": [line for line in queue.limits if line.tenant in ("", tenant)],
    }
    shown = {name: list(fitting(lines, _size, _PART)) for name, lines in found.items()}
    left = {name: len(lines) - len(shown[name]) for name, lines in found.items()}
    return {**shown, "left": left}


def _size(line: Any) -> int:
    size = 400
    for name in line.__struct_fields__:
        value: Any = getattr(line, name)
        texts: Iterable[Any] = anything(value) if isinstance(value, tuple) else (value,)
        size += sum(20 + shown_size(one) for one in texts if isinstance(one, str))
    return size
