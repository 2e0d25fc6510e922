from __future__ import annotations

from typing import Any, Final

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.excerpts import Excerpt, Excerpts, short
from milecastle.server.pages.thread_reading import Reading, read_thread
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.pages.words import duration
from milecastle.server.redaction import redacted
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.views.listing import looked_at
from milecastle.views.showing import change_line, changes_between
from milecastle.views.timeline import worked_by_node

_CHANGES, _CHANGE = 100, 600
_VALUES: Final = 100_000
_NODES: Final = 100


class CompareQuery(HttpDocument, frozen=True):
    """Two addresses, ``THREAD@SEQ``; without ``@SEQ``, the newest checkpoint."""

    a: str = ""
    b: str = ""


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    thread: str
    seq: int
    status: str
    worked: str


class ComparedNode(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    a: int
    b: int
    a_took: str
    b_took: str
    a_share: float
    b_share: float


@WebPage("GET", "/compare", "read", query=CompareQuery)
def show_compare(request: ApiRequest) -> PageView:
    query: CompareQuery = request.query
    values: dict[str, Any] = {"query": query, "sides": (), "nodes": (), "changes": None}
    commands = ("diff", *of_tenant(request.tenant), "--", "A@SEQ", "B@SEQ")
    if query.a and query.b:
        values |= _compared(request.service, request.tenant, query)
        commands = (*commands[:-2], *(side.address for side in values["sides"]))
    return PageView(template="compare.html", title="Compare", commands=(commands,), values=values)


def _compared(service: Service, tenant: str, query: CompareQuery) -> dict[str, Any]:
    reads = [_read(service, tenant, address) for address in (query.a, query.b)]
    took = [worked_by_node(read.course(read.way().path)) for read in reads]
    longest = max(sum(side.values()) for side in took) or 1
    names = list(dict.fromkeys(node for side in took for node in side))
    counts = [dict(read.way().counts) for read in reads]
    return {
        "sides": [
            _side(service, read, sum(side.values())) for read, side in zip(reads, took, strict=True)
        ],
        "nodes": [
            ComparedNode(
                node=short(name),
                a=counts[0].get(name, 0),
                b=counts[1].get(name, 0),
                a_took=_said(took[0].get(name)),
                b_took=_said(took[1].get(name)),
                a_share=100 * took[0].get(name, 0) / longest,
                b_share=100 * took[1].get(name, 0) / longest,
            )
            for name in names[:_NODES]
        ],
        **_changes(service, *reads),
    }


def _read(service: Service, tenant: str, address: str) -> Reading:
    thread, at, seq = address.rpartition("@")
    if not (at and seq.isascii() and seq.isdecimal()):
        thread, seq = address, ""
    if not thread:
        raise InvalidRequest("a checkpoint's address is THREAD@SEQ")
    return read_thread(service, service.key(tenant, thread), seq or None)


def _said(took: int | None) -> str:
    return "" if took is None else duration(took / 1_000_000)


def _side(service: Service, read: Reading, worked: int) -> ComparedSide:
    key: ThreadKey = read.key
    line = looked_at(service.store, read.info)
    return ComparedSide(
        address=f"{key.thread}@{read.entry.seq}",
        thread=key.thread,
        seq=read.entry.seq,
        status=line.status if read.is_head else "",
        worked=duration(worked / 1_000_000),
    )


def _changes(service: Service, a: Reading, b: Reading) -> dict[str, Any]:
    if a.decoded is None or b.decoded is None:
        return {"changes": None, "more_changes": 0, "unreadable": a.unreadable or b.unreadable}
    excerpts = Excerpts(_VALUES, service.redact)
    found, _ = changes_between(a.decoded, b.decoded)
    shown: list[tuple[Excerpt, Excerpt | None, Excerpt | None]] = []
    for one in found[:_CHANGES]:
        path = redacted(change_line(one), service.redact).path
        shown.append(
            (
                excerpts.text("path", path, _CHANGE),
                None if one.kind == "added" else excerpts.json(one.path, one.old, _CHANGE),
                None if one.kind == "removed" else excerpts.json(one.path, one.new, _CHANGE),
            )
        )
    return {"changes": shown, "more_changes": len(found) - len(shown), "unreadable": ""}
