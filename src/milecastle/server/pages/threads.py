from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.ports.reading import StoreReader
from milecastle.server import limits
from milecastle.server.documents import HttpDocument, ListedStatus
from milecastle.server.identity import TokenScope
from milecastle.server.pages.forms import ThreadOutcome, named, outcome_of
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.runs import bulk_values
from milecastle.server.pages.saved_views import saved_views
from milecastle.server.pages.thread import thread_url
from milecastle.server.pages.view import PagePlace, PageView, WebPage, of_tenant
from milecastle.server.request import ApiRequest
from milecastle.server.runs import retry_thread
from milecastle.server.service import Service
from milecastle.server.threads import cancel_thread, delete_thread
from milecastle.views.documents import ThreadLine
from milecastle.views.listing import recent_page, status_counts, thread_page
from milecastle.views.replicas import source_of

_ROWS: Final = 50
_COUNTED: Final = 500
_WORD: Final = re.compile(r'(status|graph|tag|name):("[^"]*"|\S*)')
_TABS: Final = (None, "running", "interrupted", "failed", "sleeping")


class ThreadsPageQuery(HttpDocument, frozen=True):
    """``q`` is a part of the name; words as ``status:failed`` in it become filters.

    ``prefix`` is the beginning of the name. ``sort`` is ``recent`` or ``name``. Jobs and schedules
    are listed if one of the two has their ``@@``.
    """

    q: str | None = None
    status: str | None = None
    graph: str | None = None
    tag: str | None = None
    prefix: str | None = None
    sort: str | None = None
    after: str | None = None
    do: Literal["save"] | None = None


class ActionForm(HttpDocument, frozen=True):
    """Selected threads; ``confirmed`` is set by the confirmation page.

    ``opens`` is set if the one thread is to be opened then.
    """

    thread: tuple[str, ...] = ()
    confirmed: str = ""
    opens: str = ""


class _Found(NamedTuple):
    lines: tuple[ThreadLine, ...]
    next: str | None
    seen: int | None
    """How many threads were looked through, if those that match are not found by an index."""


@WebPage("GET", "/threads", "read", query=ThreadsPageQuery, label="Threads")
def list_threads(request: ApiRequest) -> PageView:
    chosen, tenant = _chosen(request.query), request.tenant
    store, behind = source_of(request.service.store)
    listed = _by_name if chosen["sort"] == "name" else _by_change
    found = listed(store, tenant, chosen)
    filters = {name: chosen[name] for name in ("status", "graph", "tag", "prefix", "q")}
    return PageView(
        template="threads.html",
        live="_threads.html",
        behind=behind,
        title="Threads",
        commands=(_ls(tenant, chosen),),
        values={
            "lines": found.lines,
            "seen": found.seen,
            "next": {**_sent(chosen), "after": found.next} if found.next is not None else None,
            "first": {**_sent(chosen), "after": None},
            "chosen": chosen,
            "filters": {name: value for name, value in filters.items() if value},
            "sent": _sent(chosen),
            "tabs": _TABS,
            "saved": saved_views(request.http),
            "saving": request.query.do == "save",
            "counts": status_counts(store, tenant, _COUNTED),
            "counted": _COUNTED,
            "statuses": get_args(ListedStatus),
            "graphs": sorted(request.service.apps),
            "actions": [one for one in ACTIONS if one.scope in request.identity.scopes],
            "looked_at": limits.LOOKED_AT,
            # a job is of a status and a graph: it would change more than other filters show
            **bulk_values(
                request,
                None if chosen["prefix"] or chosen["tag"] or chosen["q"] else chosen["status"],
                chosen["graph"],
            ),
        },
    )


def _chosen(query: ThreadsPageQuery) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        name: getattr(query, name) or None for name in query.__struct_fields__ if name != "do"
    }
    for word, value in _WORD.findall(chosen["q"] or ""):
        chosen["prefix" if word == "name" else word] = value.strip('"') or None
    chosen["q"] = _WORD.sub("", chosen["q"] or "").strip() or None
    if chosen["status"] not in (None, *get_args(ListedStatus)):
        raise InvalidRequest("there is no such status")
    if chosen["tag"] or chosen["prefix"]:  # their index is by name
        chosen["sort"] = "name"
    elif chosen["sort"] not in (None, "recent", "name"):
        raise InvalidRequest("threads are sorted by change or by name")
    return chosen


def _sent(chosen: dict[str, Any]) -> dict[str, Any]:
    implied = chosen["tag"] or chosen["prefix"] or chosen["sort"] != "name"
    return {**chosen, "sort": None if implied else "name", "after": None}


def _by_name(store: StoreReader, tenant: str, chosen: dict[str, Any]) -> _Found:
    wanted = {name: chosen[name] for name in ("status", "graph", "tag", "prefix", "after")}
    most, upkeep = limits.LOOKED_AT, _with_upkeep(chosen)
    page = thread_page(store, tenant, **wanted, limit=_ROWS, most=most, upkeep=upkeep)
    lines = tuple(fitting(page.lines, _size))
    is_cut = len(lines) < len(page.lines)
    is_scan = bool(chosen["graph"] or (chosen["tag"] and chosen["status"]))
    return _Found(lines, lines[-1].thread if is_cut else page.next, most if is_scan else None)


def _by_change(
    store: StoreReader, tenant: str, chosen: dict[str, Any], rows: int | None = None
) -> _Found:
    """Threads whose names begin with the text come first: an index finds them."""
    text = chosen["q"]
    rows = _ROWS if rows is None else rows
    wanted = {name: chosen[name] for name in ("status", "graph")}
    named = (
        thread_page(
            store,
            tenant,
            **wanted,
            prefix=text,
            limit=rows,
            most=limits.LOOKED_AT,
            upkeep=_with_upkeep(chosen),
        ).lines
        if text and not chosen["after"]
        else ()
    )
    page = recent_page(
        store,
        tenant,
        **wanted,
        text=text,
        after=chosen["after"],
        limit=rows,
        most=limits.LOOKED_AT,
        upkeep=_with_upkeep(chosen),
    )
    known = {line.thread for line in named}
    lines = (*named, *(line for line in page.lines if line.thread not in known))
    if len(lines) > 1 and len(tuple(fitting(lines, _size))) < len(lines):
        return _by_change(store, tenant, chosen, max(1, rows // 2))
    is_scan = bool(text or chosen["graph"])
    return _Found(lines, page.next, page.seen if is_scan else None)


def _with_upkeep(chosen: dict[str, Any]) -> bool:
    return "@@" in f"{chosen['prefix']} {chosen['q']}"


def _size(line: ThreadLine) -> int:
    texts = (line.thread, line.graph, line.reason, *line.tags, *line.tags)
    return 900 + 90 * len(line.tags) + sum(map(shown_size, texts)) + shown_size(line.thread)


def _ls(tenant: str, chosen: dict[str, Any]) -> tuple[str, ...]:
    names = ("status", "graph", "tag", "prefix", "after" if chosen["sort"] == "name" else "")
    given = [f"--{name}={chosen[name]}" for name in names if name and chosen[name]]
    return ("ls", *of_tenant(tenant), *given, f"--limit={_ROWS}")


class ThreadAction(msgspec.Struct, frozen=True):
    """An action on threads; ``keep`` is the text of the button that cancels it."""

    verb: str
    scope: TokenScope
    icon: str
    meaning: str
    keep: str
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
    ThreadAction(
        "retry",
        "run",
        "retry",
        "Workers run them again from their last checkpoint. What has completed is not repeated.",
        "Keep as they are",
        _retry,
    ),
    ThreadAction(
        "cancel",
        "run",
        "stop",
        "Their runs end after the current step. The threads and their checkpoints stay, and can "
        "be forked or retried later.",
        "Let them run",
        _cancel,
    ),
    ThreadAction(
        "delete",
        "admin",
        "trash",
        "All their checkpoints, runs and subgraphs are deleted. It cannot be undone.",
        "Keep them",
        _delete,
    ),
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
    verb, place = action.verb, None
    opens = threads[0] if form.opens and len(threads) == 1 else ""
    if opens and outcomes and not outcomes[0][2] and "read" in request.identity.scopes:
        is_left = verb != "delete"
        path = "/threads/{thread}" if is_left else "/threads"
        place = PagePlace(path, {"thread": opens} if is_left else {})
    return PageView(
        template="outcomes.html" if outcomes else "confirm.html",
        title=f"{verb.capitalize()} threads",
        commands=tuple((verb, *of_tenant(request.tenant), "--", thread) for thread in threads),
        values={
            "action": action,
            "threads": threads,
            "outcomes": outcomes,
            "opens": form.opens,
            "back": thread_url(opens) if opens else "/threads",
            "back_to": "The thread" if opens else "Threads",
        },
        place=place,
    )


ACTION_PAGES: Final = tuple(
    WebPage("POST", f"/bulk/{action.verb}", action.scope, form=ActionForm)(partial(act, action))
    for action in ACTIONS
)
