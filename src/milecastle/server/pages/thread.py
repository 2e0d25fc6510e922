"""A thread's page at one of its checkpoints.

Rules:

- The amount read does not grow with the thread: the checkpoint, its parent, and a page of the
  history around it. Omissions are reported, with where to find the rest.
- A value is shown only through ``Excerpts``. A thread that cannot be decrypted here is shown
  without its state; one whose graph is not served here, without types and without actions.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from milecastle.app.threads.children import children_of
from milecastle.app.threads.reading import running_now
from milecastle.app.threads.tagging import tags_at
from milecastle.draw import draw_svg, notes_of
from milecastle.draw.style import STYLE
from milecastle.errors import CodecError
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import Manifest
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.excerpts import Excerpt, Excerpts, short
from milecastle.server.pages.rendering import segment
from milecastle.server.pages.schema_forms import FormField, form_fields
from milecastle.server.pages.timeline import Interval, Visits, branches, folded, intervals, visits
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.redaction import Redact, after_hook, redacted
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.views.decoding import Decoded
from milecastle.views.lines import checkpoint_line, moment, question_lines
from milecastle.views.listing import looked_at, with_tags
from milecastle.views.reasons import why_document
from milecastle.views.showing import change_line, changes_between, ended_tasks

_VALUES: Final = 130_000
"""Bytes of HTML that all values of a page may take."""
_CHANNELS, _CHANNEL = 200, 20_000
_CHANGES, _CHANGE = 50, 600
_QUESTIONS, _QUESTION = 10, 4000
_FAILURE: Final = 8000
_AROUND, _COUNTED = 20, 200
"""Checkpoints listed before and after the one that is shown, and those counted before it."""
_BRANCHES, _CHILDREN, _NODES = 40, 20, 100
_LOOKS: Final = 10


class ThreadPageQuery(HttpDocument, frozen=True):
    """``at`` is a checkpoint's seq or id; without it, the head, updated live."""

    at: str | None = None


class FormRefusal(NamedTuple):
    """A refused form: its name, the message, its code, and the typed text."""

    form: str
    message: str
    code: str
    typed: dict[str, str]


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    node: str
    question: Excerpt
    show: Excerpt | None
    fields: tuple[FormField, ...]
    refused: str


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in the timeline. ``kind`` is the activity after it."""

    seq: int
    source: str
    nodes: str
    next: str
    timestamp: str
    kind: str
    lasted: str
    note: str
    is_on_path: bool
    failed: bool


class TimelineBar(msgspec.Struct, frozen=True):
    """A piece of the time bar, in thousandths of its width."""

    kind: str
    x: int
    width: int


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A page's data. ``decoded`` is ``None`` if ``unreadable`` says why.

    ``next`` are the nodes to run after ``entry``, or those a worker runs now. ``entries`` are
    the history's page, oldest first; ``failure`` happened at this checkpoint.
    """

    key: ThreadKey
    info: ThreadInfo
    head: Entry
    entry: Entry
    next: tuple[str, ...]
    first: int
    decoded: Decoded | None
    unreadable: str
    entries: tuple[Entry, ...]
    runs: dict[str, RunRecord]
    failure: Failure | None

    @property
    def is_head(self) -> bool:
        return self.entry.seq == self.head.seq


def made_of(request: ApiRequest) -> str:
    """Version of a stopped thread's page; ``None`` while it runs."""
    service, key = request.service, request.key
    info, head = service.line(key), service.store.head(key)
    if info.status in ("running", "queued") or info.due_at is not None or head is None:
        return ""
    return f"{head.id}.{info.status}.{info.run_id}.{tags_at(service.store, key)}"


@WebPage("GET", "/threads/{thread}", "read", query=ThreadPageQuery, made_of=made_of)
async def show_thread(request: ApiRequest) -> PageView:
    """A thread at its head, or at a checkpoint."""
    return await thread_view(request, request.query.at or None)


async def thread_view(
    request: ApiRequest, at: str | None, said: FormRefusal | None = None
) -> PageView:
    """The page for the thread in the path; ``said`` is shown beside its form."""
    key = request.key
    values = await request.off_loop(_values, request, key, at, said)
    seq, parent = values["line"].seq, values["parent"]
    tenant = () if key.tenant == "default" else (f"--tenant={key.tenant}",)
    place = f"{key.thread}@{seq}"
    return PageView(
        template="thread.html",
        live="_thread.html",
        title=key.thread,
        commands=(
            ("show", *tenant, "--", place),
            ("history", *tenant, f"--limit={_COUNTED}", "--", key.thread),
            *([("diff", *tenant, "--", f"{key.thread}@{parent}", place)] if parent else []),
            ("resume", *tenant, "--", key.thread),
            ("fork", *tenant, "--", place),
            ("tag", *tenant, "--", key.thread),
        ),
        values={**values, "said": said},
    )


def thread_url(thread: str, **query: Any) -> str:
    """URL for a thread's page, or for the list if a browser cannot request it."""
    if thread in (".", ".."):
        return "/threads"
    given = "&".join(f"{name}={value}" for name, value in query.items())
    return f"/threads/{segment(thread)}" + (f"?{given}" if given else "")


def _read(service: Service, key: ThreadKey, at: str | None) -> _Reading:
    store = service.store
    head, info, chain = store.head(key), service.line(key), service.chain(key, at)
    for _ in range(_LOOKS):
        if at is not None or (head is not None and head.id == chain.entries[-1].id):
            break
        # it went on between the reads
        head, info, chain = store.head(key), service.line(key), service.chain(key, at)
    entry = chain.entries[-1]
    if head is None:
        raise Refused(NOT_FOUND, 404, "there is no such thread")
    decoded, unreadable = None, ""
    try:
        decoded = service.decoded(key, chain)
    except CodecError as error:
        unreadable = error.message
    page = store.history(key, before=entry.seq + _AROUND + 1, limit=_COUNTED + _AROUND)
    entries = tuple(reversed(list(page)))
    shown = [one for one in entries if abs(one.seq - entry.seq) <= _AROUND]
    found = (store.run(key, run_id) for run_id in {one.run_id for one in shown})
    return _Reading(
        key=key,
        info=info,
        head=head,
        entry=entry,
        next=running_now(store, key, entry, info.status)[1],
        first=_first(service, key),
        decoded=decoded,
        unreadable=unreadable,
        entries=entries,
        runs={run.run_id: run for run in found if run is not None},
        failure=store.failure(key, entry.run_id) if _is_last(entry, entries) else None,
    )


def _first(service: Service, key: ThreadKey) -> int:
    found = list(service.store.history(key, before=2, limit=1))
    oldest = found or service.store.entries(key, limit=1)
    return oldest[0].seq if oldest else 1


def _is_last(entry: Entry, entries: tuple[Entry, ...]) -> bool:
    after = next((one for one in entries if one.seq > entry.seq), None)
    return after is None or after.run_id != entry.run_id


def _values(request: ApiRequest, key: ThreadKey, at: str | None, said: FormRefusal | None) -> Any:
    service, scopes = request.service, request.identity.scopes
    read = _read(service, key, at)
    excerpts = Excerpts(_VALUES, service.redact)
    way = visits(read.entries, read.entry.seq)
    is_served = read.info.graph in service.apps
    return {
        "name": key.thread,
        "home": thread_url(key.thread),
        "api": f"/v1/threads/{segment(key.thread)}",
        "live_url": thread_url(key.thread, **({"at": read.entry.seq} if at else {})),
        "follows": at is None,
        "thread": with_tags(service.store, key.tenant, [looked_at(service.store, read.info)])[0],
        "why": () if at else why_document(service.store, key).reasons,
        "line": checkpoint_line(CheckpointMetadata.of(key, read.entry)),
        "note": short(read.entry.note),
        "nodes": folded(read.entry.nodes),
        "next": _next(service, read),
        "head": read.head.seq,
        "first": read.first,
        "is_served": is_served,
        "may": {scope: is_served and scope in scopes for scope in ("run", "answer", "admin")},
        **_questions(read, excerpts, service.redact, said),
        "failure": _failure(read, excerpts),
        **_state(read, excerpts),
        **_changes(service, read, excerpts),
        "drawing": f"{thread_url(key.thread)}/graph.svg?at={read.entry.seq}",
        "visited": _visited(way, read),
        "is_whole": way.is_whole,
        "counted": len(way.path),
        **_timeline(read, way),
        "children": _children(service, key),
    }


def _next(service: Service, read: _Reading) -> str:
    tasks: Mapping[str, int] = read.decoded.tasks if read.decoded else {}
    if not any(total > 1 for total in tasks.values()):
        return folded(read.next)
    said: list[str] = []
    for node, total in islice(tasks.items(), _NODES):
        said.append(f"{short(node)} x{total}")
        if read.is_head:
            said[-1] += f" ({ended_tasks(service.store, read.key, read.head, node)} done)"
    return ", ".join(said)


def _questions(
    read: _Reading, excerpts: Excerpts, redact: Redact | None, said: FormRefusal | None
) -> dict[str, Any]:
    lines = question_lines(read.decoded.interrupts) if read.decoded else ()
    listed: list[OpenQuestion] = []
    for line in lines[:_QUESTIONS]:
        typed = said.typed if said is not None and said.form == line.id else {}
        listed.append(
            OpenQuestion(
                id=line.id,
                node=short(line.node),
                question=_spoken(excerpts, "question", line.question),
                show=None if line.show is None else excerpts.json("show", line.show, _QUESTION),
                fields=form_fields(after_hook("answer", line.answer, redact), typed),
                refused=excerpts.text("refused", line.refused or "", _QUESTION).text,
            )
        )
    return {"questions": listed, "asked": len(lines), "is_head": read.is_head}


def _spoken(excerpts: Excerpts, place: str, value: Any) -> Excerpt:
    if isinstance(value, str):
        return excerpts.text(place, value, _QUESTION)
    return excerpts.json(place, value, _QUESTION)


def _failure(read: _Reading, excerpts: Excerpts) -> dict[str, Any] | None:
    failure = read.failure
    if failure is None:
        return None
    return {
        "type": short(failure.error_type),
        "node": short(failure.node or ""),
        "class": failure.failure_class,
        "attempt": failure.attempt,
        "time": moment(failure.time),
        "message": excerpts.text("message", failure.message, _FAILURE),
        "causes": excerpts.text("causes", "\n".join(failure.causes), _FAILURE),
        "tasks": excerpts.text(
            "tasks",
            "\n".join(f"{one.task}: {one.error_type}: {one.message}" for one in failure.tasks),
            _FAILURE,
        ),
        "traceback": excerpts.text("traceback", "\n".join(failure.traceback), _FAILURE),
    }


def _state(read: _Reading, excerpts: Excerpts) -> dict[str, Any]:
    if read.decoded is None:
        return {"state": None, "unreadable": read.unreadable, "undecoded": {}, "omitted": 0}
    values = read.decoded.values
    shown = [
        (short(name), excerpts.json(f"$.{name}", value, _CHANNEL))
        for name, value in islice(values.items(), _CHANNELS)
    ]
    undecoded = {short(name): why for name, why in islice(read.decoded.undecoded.items(), _NODES)}
    return {
        "state": shown,
        "unreadable": "",
        "undecoded": undecoded,
        "omitted": len(values) - len(shown),
    }


def _changes(service: Service, read: _Reading, excerpts: Excerpts) -> dict[str, Any]:
    """Differences from the parent; none if it is in another thread or unreadable."""
    key, entry = read.key, read.entry
    parent = service.store.locate(key, entry.parent_id) if entry.parent_id else None
    nothing: dict[str, Any] = {"parent": parent, "changes": None, "more_changes": 0}
    if parent is None or read.decoded is None:
        return nothing
    try:
        before = service.decoded(key, service.chain(key, parent))
    except (CodecError, Refused):
        return nothing
    found, _ = changes_between(before, read.decoded)
    shown = [
        (
            excerpts.text("path", redacted(change_line(one), service.redact).path, _CHANGE),
            one.kind,
            None if one.kind == "added" else excerpts.json(one.path, one.old, _CHANGE),
            None if one.kind == "removed" else excerpts.json(one.path, one.new, _CHANGE),
        )
        for one in found[:_CHANGES]
    ]
    return {**nothing, "changes": shown, "more_changes": len(found) - len(shown)}


def _visited(way: Visits, read: _Reading) -> list[tuple[str, int, str]]:
    marks = _marks(way, read)
    names = [*(name for name in marks if marks[name] != "done"), *way.counts]
    return [
        (name, way.counts.get(name, 0), marks[name]) for name in list(dict.fromkeys(names))[:_NODES]
    ]


def _marks(way: Visits, read: _Reading) -> dict[str, str]:
    marks = dict.fromkeys(way.counts, "done")
    runs = read.is_head and read.info.status == "running"
    marks.update(dict.fromkeys(read.next, "active" if runs else "next"))
    if read.failure is not None and read.failure.node:
        marks[read.failure.node] = "failed"
    return marks


def _timeline(read: _Reading, way: Visits) -> dict[str, Any]:
    shown = [one for one in read.entries if abs(one.seq - read.entry.seq) <= _AROUND]
    is_newest = shown[-1].seq == read.head.seq
    now = time.time_ns() // 1000
    info = read.info if is_newest else None
    found = intervals(shown, read.runs, info, now)
    spans: dict[int, list[Interval]] = {}
    for one in found:
        spans.setdefault(one.seq, []).append(one)
    forks = branches(read.entries)
    return {
        "rows": [_row(read, one, spans.get(one.seq, []), way) for one in reversed(shown)],
        "bars": _bars(found),
        "totals": _totals(found),
        "earlier": max(read.first, shown[0].seq - _AROUND) if shown[0].seq > read.first else None,
        "later": None if is_newest else min(read.head.seq, shown[-1].seq + _AROUND),
        "branches": forks[-_BRANCHES:] if len(forks) > 1 else [],
        "more_branches": max(0, len(forks) - _BRANCHES),
        "looked_at": len(read.entries),
        "listed": len(shown),
    }


def _row(read: _Reading, entry: Entry, spans: list[Interval], way: Visits) -> TimelineRow:
    run = read.runs.get(entry.run_id)
    failed = run is not None and run.status == "failed" and _is_last(entry, read.entries)
    span = spans[0] if spans else None
    return TimelineRow(
        seq=entry.seq,
        source=entry.source,
        nodes=folded(entry.nodes) if entry.source == "step" else "",
        next=folded(entry.next or entry.route),
        timestamp=moment(entry.created_at),
        kind=span.kind if span and span.kind != "ended" else "",
        lasted=_lasted(span.stop - span.start) if span and span.kind != "ended" else "",
        note=short(entry.note),
        is_on_path=entry.seq in way.path,
        failed=failed,
    )


def _totals(found: list[Interval]) -> list[tuple[str, str]]:
    totals: dict[str, int] = {}
    for one in found:
        totals[one.kind] = totals.get(one.kind, 0) + one.stop - one.start
    return [(kind, _lasted(total)) for kind, total in totals.items() if kind != "ended"]


def _bars(found: list[Interval]) -> list[TimelineBar]:
    spans: list[tuple[str, int]] = []
    for one in found:
        if one.kind == "ended":
            continue
        if spans and spans[-1][0] == one.kind:
            spans[-1] = (one.kind, spans[-1][1] + one.stop - one.start)
        else:
            spans.append((one.kind, one.stop - one.start))
    total = sum(length for _, length in spans) or 1
    room = 1000 - 4 * len(spans)
    bars: list[TimelineBar] = []
    for kind, length in spans:
        x = bars[-1].x + bars[-1].width if bars else 0
        bars.append(TimelineBar(kind, x, 4 + length * room // total))
    return bars


def _lasted(microseconds: int) -> str:
    seconds = microseconds / 1_000_000
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _children(service: Service, key: ThreadKey) -> list[tuple[str, str, str]]:
    found = islice(children_of(service.store, key), _CHILDREN + 1)
    return [
        (short(info.key.thread.rpartition("\x1f")[2]), short(info.graph), info.status)
        for info in found
    ]


_HASH: Final = b64encode(sha256(STYLE.encode()).digest()).decode()
_DRAWN: Final = {"Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'"}


@WebPage("GET", "/threads/{thread}/graph.svg", "read", query=ThreadPageQuery)
def show_drawing(request: ApiRequest) -> Response:
    """The graph of a thread as SVG, with the way to a checkpoint."""
    service, key = request.service, request.key
    read = _read(service, key, request.query.at or None)
    app, fingerprint = service.apps.get(read.info.graph), read.entry.fingerprint
    way = visits(read.entries, read.entry.seq)
    if app is not None and app.graph.fingerprint == fingerprint:  # else as it was saved with it
        manifest, notes = app.graph.manifest, notes_of(app.graph)
    else:
        stored = service.store.manifest(key, fingerprint)
        if stored is None:
            raise Refused(NOT_FOUND, 404, "no graph is recorded for this checkpoint")
        manifest, notes = Manifest.from_bytes(stored), None
    drawn = draw_svg(manifest, marks=_marks(way, read), visits=way.counts, notes=notes)
    return Response(drawn, headers=_DRAWN, media_type="image/svg+xml")
