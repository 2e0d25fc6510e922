"""A thread's fan-out: progress, durations, failed items, and one input.

Bounded, whatever the number of items: a large step stores a summary.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from milecastle.errors import CodecError
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.charts import Bar, Chart, drawn
from milecastle.server.pages.excerpts import Excerpts, short
from milecastle.server.pages.json_tree import Tree
from milecastle.server.pages.thread import fan_outs, made_of, shown_tree, thread_head
from milecastle.server.pages.thread_reading import Reading, read_thread
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.pages.words import duration, plural
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.views.decoding import item_input
from milecastle.views.fan_outs import FanOutDocument, ItemLine, failed_items, fan_out_document
from milecastle.views.showing import ended_tasks

_VALUES: Final = 60_000
_INPUT: Final = 20_000
_MESSAGE: Final = 160


class ItemsPageQuery(HttpDocument, frozen=True):
    """``at`` is the checkpoint a fan-out ended with, or begins after; without it, the newest.

    ``item`` is an item's place in the list sent: its input is shown.
    """

    at: str | None = None
    node: str | None = None
    item: int | None = None


class _FanOut(NamedTuple):
    """``is_open``: its step begins after the checkpoint read, and did not end with it."""

    read: Reading
    node: str
    total: int
    is_open: bool


@WebPage("GET", "/threads/{thread}/items", "read", query=ItemsPageQuery, made_of=made_of)
def show_items(request: ApiRequest) -> PageView:
    query: ItemsPageQuery = request.query
    service, key = request.service, request.key
    newest = read_thread(service, key, query.at or None)
    found = _fan_out(service, newest, query)
    return PageView(
        template="items.html",
        live="_items.html",
        title=key.thread,
        commands=(("show", *of_tenant(key.tenant), "--", key.thread),),
        values={
            **thread_head(service, newest, "items"),
            "query": query,
            "fan_out": None,
            **({} if found is None else _values(request, found, query)),
        },
    )


def _fan_out(service: Service, read: Reading, query: ItemsPageQuery) -> _FanOut | None:
    for entry, node, count in reversed(fan_outs(read)):
        is_open = read.decoded is not None and read.decoded.tasks.get(node) == count
        is_open = is_open and entry.seq == read.entry.seq
        if query.node not in (None, node) or (query.at and entry.seq != read.entry.seq):
            continue
        near = (
            read if entry.seq == read.entry.seq else read_thread(service, read.key, str(entry.seq))
        )
        return _FanOut(near, node, count, is_open)
    return None


def _values(request: ApiRequest, found: _FanOut, query: ItemsPageQuery) -> dict[str, Any]:
    service, read, node = request.service, found.read, found.node
    excerpts = Excerpts(_VALUES, service.redact)
    times = read.times.get(read.entry.seq)
    document = None
    if times is not None and not found.is_open:
        document = fan_out_document(read.entry, times, node)
    failed = failed_items(read.failure, node) if read.failure and found.is_open else ()
    done = found.total
    if found.is_open:
        done = ended_tasks(service.store, read.key, read.entry, node) if read.is_head else 0
    status = read.info.status
    shown = [_shown(one, excerpts) for one in (failed or (document.items if document else ()))]
    failure = read.failure if found.is_open else None
    if failure is not None and failure.node == node and not failed:  # of one, the place is unknown
        said = excerpts.text("message", failure.message, _MESSAGE).text
        error = f"{short(failure.error_type)}: {said}"
        attempt = failure.attempt
        shown = [_row(None, f"one of {short(node)}", "failed", "", attempt, error)]
    count = len(failed) or len(shown) * found.is_open
    return {
        "fan_out": document,
        "node": node,
        "total": found.total,
        "at": read.entry.seq,
        "done": done,
        "failed": count,
        "left": max(0, found.total - done - count),
        "is_running": found.is_open and read.is_head and status == "running",
        "items": shown,
        "is_cut": document.is_cut if document else False,
        "chart": _chart(document) if document else None,
        "item": query.item,
        "input": _input(service, found, query.item, excerpts),
        "may_retry": found.is_open
        and read.is_head
        and status == "failed"
        and "run" in request.identity.scopes,
    }


def _shown(one: ItemLine, excerpts: Excerpts) -> dict[str, Any]:
    said = excerpts.text("message", one.message, _MESSAGE).text
    return _row(
        one.index,
        short(one.task),
        {"done": "completed", "asks": "interrupted"}.get(one.status, one.status),
        "" if one.took is None else duration(one.took / 1_000_000),
        one.attempt,
        ": ".join(filter(None, [short(one.error), said])),
    )


def _row(
    index: int | None, task: str, status: str, took: str, attempt: int, error: str
) -> dict[str, Any]:
    return {
        "index": index,
        "task": task,
        "status": status,
        "took": took,
        "attempt": attempt,
        "error": error,
    }


def _chart(document: FanOutDocument) -> Chart:
    return drawn(
        [
            Bar(
                one.count,
                0,
                f"{duration(one.start / 1_000_000)} to {duration(one.stop / 1_000_000)}: "
                f"{plural(one.count, 'attempt')}",
                duration(one.start / 1_000_000),
            )
            for one in document.durations
        ],
        130,
    )


def _input(service: Service, found: _FanOut, item: int | None, excerpts: Excerpts) -> Tree | None:
    read = found.read
    before = read.entry.seq if found.is_open else None
    if not found.is_open and read.entry.parent_id:
        before = service.store.locate(read.key, read.entry.parent_id)
    if item is None or before is None:
        return None
    app = service.apps.get(read.info.graph)
    graph, keyring = (None, None) if app is None else (app.graph, app.encryption)
    chain = service.chain(read.key, before)
    try:
        given = item_input(read.key, chain, graph, lambda: keyring, found.node, item)
    except CodecError:
        return None
    return None if given is None else shown_tree(excerpts, excerpts.hidden("input", given), _INPUT)
