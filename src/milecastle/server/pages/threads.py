"""Thread list, and actions on selected threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, get_args

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.server import limits
from milecastle.server.documents import HttpDocument, ListedStatus
from milecastle.server.identity import TokenScope
from milecastle.server.pages.forms import ThreadOutcome, named, outcome_of
from milecastle.server.pages.graphs import start_values
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.runs import bulk_values
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.request import ApiRequest
from milecastle.server.runs import retry_thread
from milecastle.server.service import Service
from milecastle.server.threads import cancel_thread, delete_thread
from milecastle.views.documents import ThreadLine
from milecastle.views.listing import ThreadPage, thread_page

_ROWS: Final = 100


class ThreadsPageQuery(HttpDocument, frozen=True):
    status: str | None = None
    graph: str | None = None
    tag: str | None = None
    prefix: str | None = None
    after: str | None = None


class ActionForm(HttpDocument, frozen=True):
    """Selected threads; ``confirmed`` is set by the confirmation page."""

    thread: tuple[str, ...] = ()
    confirmed: str = ""


@WebPage("GET", "/threads", "read", query=ThreadsPageQuery, label="Threads")
def list_threads(request: ApiRequest) -> PageView:
    """Threads by name, by status, graph, tag and beginning of the name."""
    query: ThreadsPageQuery = request.query
    chosen = {name: getattr(query, name) or None for name in query.__struct_fields__}
    if chosen["status"] not in (None, *get_args(ListedStatus)):
        raise InvalidRequest("there is no such status")
    store, most = request.service.store, limits.LOOKED_AT
    found = thread_page(store, request.tenant, **chosen, limit=_ROWS, most=most)
    lines = tuple(fitting(found.lines, _size))
    page = ThreadPage(lines, lines[-1].thread if len(lines) < len(found.lines) else found.next)
    return PageView(
        template="threads.html",
        live="_threads.html",
        title="Threads",
        commands=(_ls(request.tenant, chosen),),
        values={
            "lines": page.lines,
            "next": {**chosen, "after": page.next} if page.next is not None else None,
            "first": {**chosen, "after": None},
            "chosen": chosen,
            "statuses": get_args(ListedStatus),
            "graphs": sorted(request.service.apps),
            "actions": [one for one in ACTIONS if one.scope in request.identity.scopes],
            "looked_at": limits.LOOKED_AT,
            # a job is of a status and a graph: it would change more than a prefix or a tag shows
            **bulk_values(
                request,
                None if chosen["prefix"] or chosen["tag"] else chosen["status"],
                chosen["graph"],
            ),
            "start": None if page.lines or page.next or any(chosen.values()) else _start(request),
        },
    )


def _start(request: ApiRequest) -> dict[str, Any] | None:
    return start_values(request, next(iter(request.service.apps.values())))


def _size(line: ThreadLine) -> int:
    texts = (line.thread, line.graph, line.reason, *line.tags)
    return 400 + 60 * len(line.tags) + sum(map(shown_size, texts))


def _ls(tenant: str, chosen: dict[str, Any]) -> tuple[str, ...]:
    given = [f"--{name}={value}" for name, value in chosen.items() if value]
    return ("ls", *of_tenant(tenant), *given, f"--limit={_ROWS}")


class ThreadAction(msgspec.Struct, frozen=True):
    """An action on threads: verb, scope, meaning and function."""

    verb: str
    scope: TokenScope
    meaning: str
    perform: Callable[[Service, ThreadKey], Awaitable[str]]


async def _retry(service: Service, key: ThreadKey) -> str:
    return f"{(await retry_thread(service, key)).status}"


async def _cancel(service: Service, key: ThreadKey) -> str:
    document = await cancel_thread(service, key)
    return "cancelled" if document.cancelled else "it had no unfinished run"


async def _delete(service: Service, key: ThreadKey) -> str:
    await delete_thread(service, key)
    return "deleted"


ACTIONS: Final = (
    ThreadAction("retry", "run", "Hand these threads over to the workers again", _retry),
    ThreadAction("cancel", "run", "Close the unfinished runs of these threads", _cancel),
    ThreadAction("delete", "admin", "Delete these threads with their runs and subgraphs", _delete),
)


async def act(action: ThreadAction, request: ApiRequest) -> PageView:
    form: ActionForm = request.body
    threads = [named(segment) for segment in form.thread]
    if not threads:
        raise InvalidRequest("no thread is selected: go back and select some")
    keys = [request.service.key(request.tenant, thread) for thread in threads]
    outcomes: list[ThreadOutcome] = []
    if form.confirmed:
        service = request.service
        outcomes = [
            await outcome_of(key.thread, action.perform(service, key), service.redact)
            for key in keys
        ]
    verb = action.verb
    return PageView(
        template="outcomes.html" if outcomes else "confirm.html",
        title=f"{verb.capitalize()} threads",
        commands=tuple((verb, *of_tenant(request.tenant), "--", thread) for thread in threads),
        values={
            "action": action,
            "threads": threads,
            "outcomes": outcomes,
            "back": "/threads",
            "back_to": "Threads",
        },
    )


ACTION_PAGES: Final = tuple(
    WebPage("POST", f"/bulk/{action.verb}", action.scope, form=ActionForm)(partial(act, action))
    for action in ACTIONS
)
