"""A thread's page at one checkpoint.

Rules:

- The amount read does not grow with the thread (``thread_reading``). Omissions are reported, with
  where to find the rest.
- A value is shown only through ``Excerpts``. A thread that cannot be decrypted here is shown
  without its state; one with a graph not served here, without types and without actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import msgspec

from milecastle.app.threads.answers import answers_in
from milecastle.app.threads.children import children_of, every_thread
from milecastle.app.threads.tagging import tags_at
from milecastle.codec.messages import open_message
from milecastle.draw import notes_of
from milecastle.errors import CodecError
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.children import parent_tag
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import END, START, Manifest
from milecastle.model.run import ThreadInfo
from milecastle.ports.mailbox import StoredMessage, each_message
from milecastle.ports.store import Store
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.drawing import Drawing, NodeLook, draw_page
from milecastle.server.pages.excerpts import Excerpt, Excerpts, short
from milecastle.server.pages.json_tree import Tree
from milecastle.server.pages.lane_looks import LaneLook, lane_look
from milecastle.server.pages.rendering import query_text, segment
from milecastle.server.pages.schema_forms import FormField, form_fields
from milecastle.server.pages.thread_reading import AROUND, COUNTED, Reading, is_last, read_thread
from milecastle.server.pages.timeline import Interval, Visits, branches, folded
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.pages.words import clock, duration
from milecastle.server.problems import Refused
from milecastle.server.redaction import Redact, after_hook, redacted
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.views.lines import checkpoint_line, moment, question_lines
from milecastle.views.listing import looked_at, with_tags
from milecastle.views.reasons import why_document
from milecastle.views.showing import change_line, changes_between, ended_tasks
from milecastle.views.step_times import items_of_times
from milecastle.views.timeline import TimelineMark, timeline_document, worked_by_node
from milecastle.views.values import anything

_VALUES: Final = 130_000
"""Bytes of HTML that all values of a page may take."""
_CHANNELS, _CHANNEL, _RAW = 200, 60_000, 20_000
_CHANGES, _CHANGE = 50, 600
_QUESTIONS, _QUESTION = 10, 4000
_FACTS: Final = 7
_FAILURE: Final = 8000
_FRAMES: Final = 12
_MESSAGES: Final = 20
_BRANCHES, _CHILDREN, _NODES = 40, 20, 100
_WAS: Final = 40
_LABEL: Final = 11.0
"""Percent of the axis that the time at the beginning of a stretch takes."""


class ThreadPageQuery(HttpDocument, frozen=True):
    """``at`` is a checkpoint's seq or id; without it, the head, updated live.

    ``tab`` is the checkpoint's panel, ``node`` filters the timeline and the checkpoints,
    ``branch=this`` leaves out other branches, and ``do`` opens a form.
    """

    at: str | None = None
    tab: Literal["state", "changes", "raw", "about"] = "state"
    axis: Literal["work", "clock"] = "work"
    branch: Literal["all", "this"] = "all"
    node: str | None = None
    do: Literal["fork", "edit", "tags"] | None = None


class FormRefusal(NamedTuple):
    form: str
    message: str
    code: str
    typed: dict[str, str]
    reason: str = ""


class OpenQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """An open question with its form. ``call`` is the id of its shown value, if that has one."""

    id: str
    node: str
    question: Excerpt
    facts: list[tuple[str, str]]
    show: Tree | None
    fields: tuple[FormField, ...]
    refused: str
    until: str | None
    shown: str
    reason: str
    call: str


class UnreadMessage(msgspec.Struct, frozen=True, kw_only=True):
    """``value`` is ``None`` if it cannot be read here."""

    number: int
    topic: str
    by: str
    sent_at: str
    value: Excerpt | None


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in the list. ``kind`` is the activity after it."""

    seq: int
    icon: str
    tone: str
    what: str
    next: str
    time: str
    kind: str
    lasted: str
    note: str
    is_on_path: bool
    failed: bool


class BranchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A branch in the tree: its checkpoints, where it begins, and a piece of the tree."""

    first: int
    last: int
    said: str
    depth: int
    is_current: bool


def made_of(request: ApiRequest) -> str:
    """Version of a stopped thread's page; empty while it runs."""
    service, key = request.service, request.key
    info, head = service.line(key), service.store.head(key)
    if info.status in ("running", "queued") or info.due_at is not None or head is None:
        return ""
    unread = [one.number for one in _unread(service.store, key)]
    return f"{head.id}.{info.status}.{info.run_id}.{tags_at(service.store, key)}.{unread}"


@WebPage("GET", "/threads/{thread}", "read", query=ThreadPageQuery, made_of=made_of)
async def show_thread(request: ApiRequest) -> PageView:
    return await thread_view(request, request.query)


async def thread_view(
    request: ApiRequest, query: ThreadPageQuery, said: FormRefusal | None = None
) -> PageView:
    key = request.key
    values = await request.off_loop(_values, request, key, query, said)
    seq, parent = values["line"].seq, values["parent"]
    tenant = () if key.tenant == "default" else (f"--tenant={key.tenant}",)
    place = f"{key.thread}@{seq}"
    return PageView(
        template="thread.html",
        live="_thread.html",
        title=key.thread,
        commands=(
            ("show", *tenant, "--", place),
            ("history", *tenant, f"--limit={COUNTED}", "--", key.thread),
            *([("diff", *tenant, "--", f"{key.thread}@{parent}", place)] if parent else []),
            ("why", *tenant, "--", key.thread),
            ("resume", *tenant, "--", key.thread),
            ("fork", *tenant, "--", place),
            ("tag", *tenant, "--", key.thread),
        ),
        values={**values, "said": said},
    )


def thread_head(service: Service, read: Reading, tab: str) -> dict[str, Any]:
    store, key = service.store, read.key
    values: Mapping[str, Any] = read.decoded.values if read.decoded else {}
    return {
        "name": key.thread,
        "home": thread_url(key.thread),
        "api": f"/v1/threads/{segment(key.thread)}",
        "thread": with_tags(store, key.tenant, [looked_at(store, read.info)])[0],
        "is_served": read.info.graph in service.apps,
        "page_tab": tab,
        "has_chat": isinstance(values.get("messages"), list),
        "has_items": bool(fan_outs(read)),
        "seq": read.entry.seq,
    }


def fan_outs(read: Reading) -> list[tuple[Entry, str, int]]:
    """The fan-outs in the entries read, oldest first: the entry, the node, and how many items ran.

    One that waits or runs after the entry is last; the others ended with theirs.
    """
    found = [
        (entry, node, count)
        for entry in read.entries
        if (times := read.times.get(entry.seq)) is not None
        for node, count in items_of_times(entry, times).items()
        if count > 1
    ]
    waiting: Mapping[str, int] = read.decoded.tasks if read.decoded else {}
    return found + [(read.entry, node, count) for node, count in waiting.items() if count > 1]


def thread_url(thread: str, **query: Any) -> str:
    """URL for a thread's page, or for the list if a browser cannot request it."""
    if thread in (".", ".."):
        return "/threads"
    return f"/threads/{segment(thread)}{query_text(query)}"


def _values(
    request: ApiRequest, key: ThreadKey, query: ThreadPageQuery, said: FormRefusal | None
) -> Any:
    service, scopes = request.service, request.identity.scopes
    at = query.at or None
    read = read_thread(service, key, at)
    excerpts = Excerpts(_VALUES, service.redact)
    head = thread_head(service, read, "timeline")
    is_served = head["is_served"]
    kept = {
        "tab": query.tab if query.tab != "state" else None,
        "axis": query.axis if query.axis != "work" else None,
        "branch": query.branch if query.branch != "all" else None,
        "node": query.node or None,
    }
    seq = read.entry.seq
    way, branch = read.way(), read.branch()
    questions = shown_questions(read, excerpts, service.redact, said)
    failure = _failure(read, excerpts)
    mailbox = _mailbox(service, read, excerpts)
    changes = _changes(service, read, excerpts)
    manifest = _manifest(service, read)
    return {
        **head,
        "live_url": thread_url(key.thread, at=seq if at else None, **kept),
        "kept": kept,
        "query": query,
        "follows": at is None,
        "why": () if at else why_document(service.store, key).reasons,
        "worker": read.info.worker,
        "line": checkpoint_line(CheckpointMetadata.of(key, read.entry)),
        "note": short(read.entry.note),
        "what": what_wrote(read, read.entry)[2],
        "next": _next(service, read),
        "head": read.head.seq,
        "first": read.first,
        "is_small": read.is_small,
        "may": {scope: is_served and scope in scopes for scope in ("run", "answer", "admin")},
        "totals": _totals(read),
        **questions,
        **mailbox,
        "failure": failure,
        **changes,
        **_panel(read, excerpts, query.tab, changes["was"], head["api"]),
        "drawing": _drawing(service, manifest, read, way, query.node or ""),
        "is_whole": way.is_whole,
        "counted": len(way.path),
        **_timeline(read, branch, manifest, query),
        **_checkpoints(read, branch, query, manifest, _attribution(service, read, excerpts)),
        "branches": _branches(read, branch),
        "children": _children(service, key),
    }


def _failed(read: Reading) -> set[int]:
    runs = {run.run_id for run in read.runs.values() if run.status == "failed"}
    return {one.seq for one in read.drawn if one.run_id in runs and is_last(one, read.entries)}


def _totals(read: Reading) -> dict[str, str]:
    totals: dict[str, int] = {}
    for one in read.intervals(read.drawn):
        kind = "worked" if one.kind == "running" else "ended" if one.kind == "ended" else "waited"
        totals[kind] = totals.get(kind, 0) + one.stop - one.start
    return {kind: duration(total / 1_000_000) for kind, total in totals.items()}


def _next(service: Service, read: Reading) -> str:
    tasks: Mapping[str, int] = read.decoded.tasks if read.decoded else {}
    if not any(total > 1 for total in tasks.values()):
        return folded(read.next)
    said: list[str] = []
    for node, total in islice(tasks.items(), _NODES):
        said.append(f"{short(node)} x{total}")
        if read.is_head:
            said[-1] += f" ({ended_tasks(service.store, read.key, read.head, node)} done)"
    return ", ".join(said)


def shown_questions(
    read: Reading, excerpts: Excerpts, redact: Redact | None, said: FormRefusal | None
) -> dict[str, Any]:
    lines = question_lines(read.decoded.interrupts) if read.decoded else ()
    listed: list[OpenQuestion] = []
    for line in lines[:_QUESTIONS]:
        typed = said.typed if said is not None and said.form == line.id else {}
        show = None if line.show is None else excerpts.hidden("show", line.show)
        facts = excerpts.facts(show, _FACTS)
        listed.append(
            OpenQuestion(
                id=line.id,
                node=short(line.node),
                question=_spoken(excerpts, "question", line.question),
                facts=facts or [],
                show=None if show is None or facts else shown_tree(excerpts, show, _QUESTION),
                fields=form_fields(after_hook("answer", line.answer, redact), typed),
                refused=excerpts.text("refused", line.refused or "", _QUESTION).text,
                until=line.until,
                shown=redacted(line, redact).digest or "",
                reason=said.reason if typed and said is not None else "",
                call=str(anything(show).get("id", "")) if isinstance(show, Mapping) else "",
            )
        )
    asked_at = moment(read.entry.created_at)
    return {
        "questions": listed,
        "asked": len(lines),
        "asked_at": asked_at,
        "is_head": read.is_head,
    }


def shown_tree(excerpts: Excerpts, value: Any, most: int) -> Tree:
    """A question's shown value as a tree: an object's members, or one value."""
    if isinstance(value, Mapping):
        members = [(str(name), member, "") for name, member in anything(value).items()]
        return excerpts.tree(members, most)
    return excerpts.tree([("shown", value, "")], most)


def _spoken(excerpts: Excerpts, place: str, value: Any) -> Excerpt:
    if isinstance(value, str):
        return excerpts.text(place, value, _QUESTION)
    return excerpts.json(place, value, _QUESTION)


def _unread(store: Store, key: ThreadKey) -> Sequence[StoredMessage]:
    return tuple(islice(each_message(store.mailbox, key), _MESSAGES + 1))


def _mailbox(service: Service, read: Reading, excerpts: Excerpts) -> dict[str, Any]:
    app = service.apps.get(read.info.graph)
    if app is None or not read.is_head:
        return {"messages": (), "more_messages": False}
    found, (threads, key) = _unread(service.store, read.key), app.runner.stored(read.key)
    listed: list[UnreadMessage] = []
    for one in found[:_MESSAGES]:
        by, value = "", None
        try:
            message = open_message(threads.codec.for_thread(key), one)
            by, value = message.by or "", excerpts.json("value", message.value, _CHANGE)
        except CodecError:  # of an app with another key, or none
            pass
        listed.append(
            UnreadMessage(
                number=one.number,
                topic=short(one.topic),
                by=short(by),
                sent_at=moment(one.sent_at) or "",
                value=value,
            )
        )
    return {"messages": listed, "more_messages": len(found) > _MESSAGES}


def _attribution(service: Service, read: Reading, excerpts: Excerpts) -> dict[int, str]:
    app = service.apps.get(read.info.graph)
    if app is None or read.decoded is None:
        return {}
    said: dict[int, list[str]] = {}
    try:
        for one in answers_in(*app.runner.stored(read.key), read.shown):
            text = "timed out" if one.timed_out else ""
            if one.by is not None:
                text = f"by {short(one.by.id)}, {one.by.how}"
                if one.by.on_behalf_of:
                    text += f", on behalf of {short(one.by.on_behalf_of)}"
                if one.by.reason:
                    text += f": {excerpts.text('reason', one.by.reason, _CHANGE).text}"
            said.setdefault(one.seq, []).append(text)
    except CodecError:  # an older checkpoint that cannot be read here
        return {}
    return {seq: "; ".join(filter(None, texts)) for seq, texts in said.items()}


def _failure(read: Reading, excerpts: Excerpts) -> dict[str, Any] | None:
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
        "frames": frames_of(
            excerpts.text("traceback", "\n".join(failure.traceback), _FAILURE).text
        ),
        "resumable": failure.resumable,
    }


class Frame(NamedTuple):
    place: str
    function: str
    is_own: bool


def frames_of(traceback: str) -> list[Frame]:
    """A traceback's frames, the innermost last; libraries' frames are not the user's own."""
    found: list[Frame] = []
    for line in traceback.split("\n")[-_FRAMES:] if traceback else ():
        place, _, function = line.partition(" in ")
        parts = place.replace("\\", "/").split("/")
        is_own = not ({"site-packages", "milecastle"} & set(parts) or "lib/python" in place)
        found.append(Frame("/".join(parts[-3:]), function, is_own))
    return found


def _panel(
    read: Reading, excerpts: Excerpts, tab: str, was: Mapping[str, str], api: str
) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "state": None,
        "raw": None,
        "unreadable": "",
        "undecoded": {},
        "omitted": 0,
    }
    if read.decoded is None:
        return {**nothing, "unreadable": read.unreadable}
    values = read.decoded.values
    if tab == "raw":
        shown = dict(islice(values.items(), _CHANNELS))
        raw = {name: excerpts.hidden(f"$.{name}", value) for name, value in shown.items()}
        return {**nothing, "raw": excerpts.shown(raw, _RAW)}
    if tab != "state":
        return nothing
    members = [
        (name, excerpts.hidden(f"$.{name}", value), f"$.{name}")
        for name, value in islice(values.items(), _CHANNELS)
    ]
    undecoded = {short(name): why for name, why in islice(read.decoded.undecoded.items(), _NODES)}
    more = f"{api}/state?at={read.entry.seq}"
    return {
        **nothing,
        "state": excerpts.tree(members, _CHANNEL, was=was, more=more),
        "undecoded": undecoded,
        "omitted": len(values) - len(members),
    }


def _changes(service: Service, read: Reading, excerpts: Excerpts) -> dict[str, Any]:
    key, entry = read.key, read.entry
    parent = service.store.locate(key, entry.parent_id) if entry.parent_id else None
    nothing: dict[str, Any] = {"parent": parent, "changes": None, "more_changes": 0, "was": {}}
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
    was = {
        one.path: "added" if old is None else f"was {old.text.strip(chr(34))[:_WAS]}"
        for one, (_, kind, old, _) in zip(found, shown, strict=False)
        if kind != "removed"
    }
    return {
        **nothing,
        "changes": shown,
        "more_changes": len(found) - len(shown),
        "was": was if service.redact is None else dict.fromkeys(was, "changed"),
    }


def _manifest(service: Service, read: Reading) -> Manifest | None:
    app, fingerprint = service.apps.get(read.info.graph), read.entry.fingerprint
    if app is not None and app.graph.fingerprint == fingerprint:
        return app.graph.manifest
    stored = service.store.manifest(read.key, fingerprint)  # as it was saved with it
    return None if stored is None else Manifest.from_bytes(stored)


def _drawing(
    service: Service,
    manifest: Manifest | None,
    read: Reading,
    way: Visits,
    node: str,
) -> Drawing | None:
    if manifest is None:
        return None
    app = service.apps.get(read.info.graph)
    is_same = app is not None and app.graph.fingerprint == read.entry.fingerprint
    took = worked_by_node(read.course(way.path))
    looks = {
        name: NodeLook("done", _meta(count, took.get(name))) for name, count in way.counts.items()
    }
    for name in read.next:
        kind, meta = _now(read)
        looks[name] = NodeLook(kind, meta if read.is_head else "next")
    if read.failure is not None and read.failure.node:
        looks[read.failure.node] = NodeLook("bad", read.failure.error_type)
    current = node or next(iter(read.entry.nodes), "") if read.entry.source == "step" else node
    return draw_page(
        manifest,
        looks,
        lambda name: thread_url(read.key.thread, at=read.entry.seq, node=name),
        notes=notes_of(app.graph) if app is not None and is_same else None,
        taken=_taken(read, way),
        current=current,
    )


def _meta(count: int, took: int | None) -> str:
    times = f"\u00d7{count}" if count > 1 else ""
    return ", ".join(filter(None, [times, "" if took is None else duration(took / 1_000_000)]))


def _now(read: Reading) -> tuple[str, str]:
    if not read.is_head:
        return "plain", ""
    since = duration(max(0, read.now - read.head.created_at) / 1_000_000)
    match read.info.status:
        case "running":
            return "run", f"runs, {since}"
        case "interrupted":
            return "ask", f"asks, {since}" if read.info.questions else f"stopped, {since}"
        case "sleeping":
            return "plain", "sleeps"
        case "queued":
            return "plain", f"queued, {since}"
        case _:
            return "plain", "next"


def _taken(read: Reading, way: Visits) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    before: tuple[str, ...] = (START,)
    for one in read.entries:
        if one.seq not in way.path or one.source != "step":
            continue
        found |= {(source, target) for source in set(before) for target in set(one.nodes)}
        before = one.nodes
    return found | {
        (source, target) for source in set(before) for target in {*read.entry.next} or {END}
    }


def _timeline(
    read: Reading, branch: frozenset[int], manifest: Manifest | None, query: ThreadPageQuery
) -> dict[str, Any]:
    last = read.drawn[-1]
    working = read.next if read.is_head else last.next or last.route
    if START in working:
        working = manifest.first if manifest is not None else ()
    found = timeline_document(
        read.course(branch, working),
        selected=read.entry.seq,
        axis=query.axis,
        nodes=[one.name for one in manifest.nodes] if manifest is not None else (),
        only=query.node or None,
        others=query.branch == "all",
    )
    hand = {
        one.seq: what_wrote(read, one)[2] for one in read.drawn if one.source in ("update", "fork")
    }
    lanes = [lane_look(lane, hand) for lane in found.lanes]
    return {
        "lanes": lanes,
        "more_lanes": found.more,
        "bands": found.bands,
        "marks": _axis_marks(found.marks[:-1]),
        "cursor": found.cursor,
        "kinds": _kinds(lanes),
    }


def _kinds(lanes: Sequence[LaneLook]) -> set[str]:
    bars = [bar for lane in lanes for bar in lane.bars]
    return {bar.kind for bar in bars} | {"left" for bar in bars if bar.is_left}


class AxisMark(NamedTuple):
    x: float
    text: str
    anchor: str


def _axis_marks(marks: Sequence[TimelineMark]) -> list[AxisMark]:
    shown: list[AxisMark] = []
    room = 0.0
    for mark in marks:
        is_late = mark.x > 100 - _LABEL
        if mark.x - is_late * _LABEL < room:
            continue
        text = clock(moment(mark.time) or "").rpartition(" ")[2]
        shown.append(AxisMark(mark.x, text, "end" if is_late else "start"))
        room = mark.x + _LABEL
    return shown


_SOURCES: Final[Mapping[str, tuple[str, str, str]]] = {
    "input": ("play", "soft", "input"),
    "step": ("done", "good", ""),
    "interrupt": ("ask", "ask", "asks"),
    "sleep": ("sleep", "sleep", "sleeps"),
    "answer": ("person", "soft", "answered"),
    "takeover": ("play", "soft", "taken by a worker"),
    "fork": ("fork", "soft", "forked"),
    "update": ("edit", "soft", "state changed"),
}


def what_wrote(read: Reading, entry: Entry) -> tuple[str, str, str]:
    icon, tone, word = _SOURCES[entry.source]
    if entry.source == "step":
        times = read.times.get(entry.seq)
        items = items_of_times(entry, times) if times is not None else {}
        nodes = [
            f"{short(node)} \u00d7{items[node]:,}" if items.get(node, 0) > 1 else node
            for node in entry.nodes
        ]
        return icon, tone, folded(nodes)
    if entry.source in ("interrupt", "sleep"):
        return icon, tone, f"{folded(entry.next)} {word}".strip()
    if entry.source == "update" and (channels := read.edited.get(entry.seq)):
        return icon, tone, f"changed {folded(channels)}"
    if entry.source == "fork":
        parent = next((one.seq for one in read.entries if one.id == entry.parent_id), None)
        return icon, tone, word if parent is None else f"forked from {parent}"
    return icon, tone, word


def _checkpoints(
    read: Reading,
    branch: frozenset[int],
    query: ThreadPageQuery,
    manifest: Manifest | None,
    said: Mapping[int, str],
) -> dict[str, Any]:
    shown, node = read.shown, query.node
    spans: dict[int, Interval] = {}
    for one in read.intervals(shown):
        spans.setdefault(one.seq, one)
    rows = [
        _row(read, one, spans.get(one.seq), branch, _nexts(one, manifest), said.get(one.seq, ""))
        for one in reversed(shown)
        if (not node or node in (*_wrote(one), *_nexts(one, manifest)))
        and (query.branch == "all" or one.seq in branch)
    ]
    is_newest = shown[-1].seq == read.head.seq
    drawn = read.drawn
    failed = _failed(read)
    return {
        "rows": rows,
        "earlier": max(read.first, shown[0].seq - AROUND) if shown[0].seq > read.first else None,
        "later": None if is_newest else min(read.head.seq, shown[-1].seq + AROUND),
        "listed": len(shown),
        "ticks": [
            (
                round(100 * index / (len(drawn) - 1), 2) if len(drawn) > 1 else 0.0,
                one.seq,
                "left" if one.seq not in branch else "bad" if one.seq in failed else _tick(one),
                what_wrote(read, one)[2],
            )
            for index, one in enumerate(drawn)
        ],
    }


def _wrote(entry: Entry) -> tuple[str, ...]:
    return entry.nodes if entry.source == "step" else ()


def _nexts(entry: Entry, manifest: Manifest | None) -> Sequence[str]:
    found = entry.next or entry.route
    first = manifest.first if manifest is not None and START in found else ()
    return first or [node for node in found if node != START]


def _tick(entry: Entry) -> str:
    return {"interrupt": "ask", "sleep": "sleep", "fork": "off", "update": "off"}.get(
        entry.source, "work"
    )


def _row(
    read: Reading,
    entry: Entry,
    span: Interval | None,
    branch: frozenset[int],
    next: Sequence[str],
    said: str,
) -> CheckpointRow:
    run = read.runs.get(entry.run_id)
    failed = run is not None and run.status == "failed" and is_last(entry, read.entries)
    icon, tone, what = what_wrote(read, entry)
    is_shown = span is not None and span.kind != "ended"
    lasted = duration((span.stop - span.start) / 1_000_000) if span and is_shown else ""
    if lasted and span is not None and span.kind in ("waiting", "sleeping", "stopped"):
        lasted += " so far" if entry.seq == read.head.seq else ""
    return CheckpointRow(
        seq=entry.seq,
        icon=icon,
        tone=tone,
        what=what,
        next=folded(next),
        time=moment(entry.created_at) or "",
        kind=span.kind if span and is_shown else "",
        lasted=lasted,
        note=said
        or (short(entry.note) if entry.source != "fork" or "thread" in entry.note else ""),
        is_on_path=entry.seq in branch,
        failed=failed,
    )


def _branches(read: Reading, branch: frozenset[int]) -> list[BranchRow]:
    found = branches(read.entries)
    if len(found) < 2:
        return []
    rows: list[BranchRow] = []
    by_seq = {one.seq: one for one in read.entries}
    for one in found[-_BRANCHES:]:
        ends = what_wrote(read, by_seq[one.last])[2]
        said = f"{one.source} at {one.parent}" if one.parent else f"{one.source} to {ends}"
        rows.append(
            BranchRow(
                first=one.first,
                last=one.last,
                said=said,
                depth=min(one.depth, 1) if one.last in branch else min(one.depth + 1, 2),
                is_current=one.first <= read.entry.seq <= one.last,
            )
        )
    return rows


class ChildLine(NamedTuple):
    name: str
    graph: str
    status: str
    href: str


def _children(service: Service, key: ThreadKey) -> list[ChildLine]:
    store = service.store
    nested = islice(children_of(store, key), _CHILDREN + 1)
    spawned: Iterable[ThreadInfo] = ()
    if store.tags is not None:
        found = every_thread(store, key.tenant, tag=parent_tag(key.thread), page=_CHILDREN + 1)
        spawned = islice(found, _CHILDREN + 1)
    return [
        *(
            ChildLine(short(one.key.thread.rpartition("\x1f")[2]), short(one.graph), one.status, "")
            for one in nested
        ),
        *(
            ChildLine(
                short(one.key.thread),
                short(one.graph),
                one.status,
                thread_url(one.key.thread),
            )
            for one in spawned
        ),
    ]
