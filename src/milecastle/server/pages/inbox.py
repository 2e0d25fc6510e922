"""The inbox: all open questions, answered one by one or several at once.

What is answered is looked up again: the question must be open, and ask for the form's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec
import msgspec.structs
from markupsafe import escape
from starlette.responses import RedirectResponse, Response

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.server.documents import HttpDocument, InboxDocument, InboxLine, InboxQuery
from milecastle.server.pages.forms import ThreadOutcome, named, outcome_of
from milecastle.server.pages.rendering import multiline, query_text, segment, shown_size
from milecastle.server.pages.schema_forms import (
    FormField,
    SchemaForm,
    form_fields,
    parsed,
    typed_in,
)
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.redaction import Redact, after_hook
from milecastle.server.request import ApiRequest
from milecastle.server.runs import answer_thread
from milecastle.server.service import Service
from milecastle.server.threads import inbox_document, inbox_line
from milecastle.views.documents import QuestionLine
from milecastle.views.listing import asking_page
from milecastle.views.values import as_json, plain

_ROWS: Final = 50
_BYTES: Final = 180_000
_LONGEST: Final = 2000
"""The bytes that a page may take, and the characters of a text that are shown."""


class InboxPageQuery(HttpDocument, frozen=True):
    graph: str | None = None
    after: str | None = None


class InboxForm(SchemaForm, frozen=True, kw_only=True):
    """An answer to several questions, each ``THREAD/ID``; ``kind`` is the expected type."""

    question: tuple[str, ...] = ()
    kind: str
    graph: str = ""
    after: str = ""


class ShownQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question on the page; ``name`` is ``THREAD/ID``, ``is_cut`` if shortened."""

    name: str
    thread: str
    graph: str
    node: str
    question: str
    show: str
    refused: str | None
    until: str | None
    is_cut: bool


class QuestionKind(msgspec.Struct, kw_only=True):
    """Questions expecting one type. ``fields`` is empty if the form does not fit."""

    id: str
    fields: tuple[FormField, ...]
    asked: list[ShownQuestion]


_COUNTED: Final = 100
_LOOKED_AT: Final = 1000
"""How many threads are counted, and how many are looked at for that."""


def open_questions(service: Service, tenant: str) -> str:
    """Number of open questions; a lower bound if there are many threads."""
    page = asking_page(service.store, tenant, None, None, limit=_COUNTED, most=_LOOKED_AT)
    count = sum(info.questions for info in page.infos)
    return f"{count}{'+' if page.next else ''}" if count else ""


@WebPage("GET", "/inbox", "read", query=InboxPageQuery, label="Inbox", badge=open_questions)
async def show_inbox(request: ApiRequest) -> PageView:
    """Open questions by deadline, then by thread, those that ask for the same type together."""
    return await _inbox(request, request.query.graph or None, request.query.after or None)


async def _inbox(
    request: ApiRequest,
    graph: str | None,
    after: str | None,
    outcomes: Iterable[ThreadOutcome] | None = None,
) -> PageView:
    query = InboxQuery(graph=graph, after=after, limit=_ROWS)
    service, tenant = request.service, request.tenant
    kinds, unreadable, next, left = await request.off_loop(_read, service, tenant, query)
    chosen = {"graph": graph, "after": after}
    return PageView(
        template="inbox.html",
        live="_inbox.html" if outcomes is None else "_answered.html",
        title="Inbox",
        commands=(("ls", *of_tenant(tenant), "--status=interrupted", f"--limit={_ROWS}"),),
        values={
            "kinds": kinds,
            "unreadable": unreadable,
            "left": left,
            "chosen": chosen,
            "here": f"/inbox{query_text(chosen)}",
            "next": {**chosen, "after": next} if next else None,
            "graphs": sorted(service.apps),
            "may_answer": "answer" in request.identity.scopes,
            "outcomes": outcomes,
        },
    )


def _read(
    service: Service, tenant: str, query: InboxQuery
) -> tuple[list[QuestionKind], list[InboxLine], str | None, int]:
    found = inbox_document(service, tenant, query)
    kinds, unreadable, next, left = _room(_without_values(found, service.redact))
    for kind in kinds:
        kind.asked.sort(key=_urgency)
    kinds.sort(key=lambda kind: _urgency(kind.asked[0]))
    return kinds, unreadable, next, left


def _urgency(asked: ShownQuestion) -> tuple[bool, str]:
    """Sorts by deadline; questions without one stay in their order behind the others."""
    return asked.until is None, asked.until or ""


def _without_values(found: InboxDocument, redact: Redact | None) -> InboxDocument:
    if redact is None:
        return found

    def hidden(line: QuestionLine) -> QuestionLine:
        question = redact("question", plain(line.question))
        refused = None if line.refused is None else str(redact("refused", line.refused))
        return msgspec.structs.replace(
            line,
            question=question,
            show=after_hook("show", line.show, redact),
            answer=after_hook("answer", line.answer, redact),
            refused=refused,
        )

    threads = tuple(
        msgspec.structs.replace(line, questions=tuple(map(hidden, line.questions)))
        for line in found.threads
    )
    return msgspec.structs.replace(found, threads=threads)


def _room(found: InboxDocument) -> tuple[list[QuestionKind], list[InboxLine], str | None, int]:
    """As many threads as have room; of a thread with many questions, as many of them.

    The questions by kind, the threads that cannot be read here, where the next page begins, and how
    many questions of the last thread are not shown.
    """
    kinds: dict[str, QuestionKind] = {}
    unreadable: list[InboxLine] = []
    size, last = 0, None
    for line in found.threads:
        size += 300 + shown_size(line.thread)
        for count, question in enumerate(line.questions):
            kind = kinds.get(_kind_id(question.answer)) or _kind(question.answer)
            asked = _asked(line, question)
            size += _size(asked, kind)
            if size > _BYTES and count:
                return list(kinds.values()), unreadable, line.thread, len(line.questions) - count
            if size > _BYTES and last is not None:
                return list(kinds.values()), unreadable, last, 0
            kinds.setdefault(kind.id, kind).asked.append(asked)
        unreadable += [] if line.questions else [line]
        if size > _BYTES:
            return list(kinds.values()), unreadable, line.thread, 0
        last = line.thread
    return list(kinds.values()), unreadable, found.next, 0


def _kind_id(schema: Any) -> str:
    return sha256(as_json(schema).encode()).hexdigest()[:16]


def _kind(schema: Any) -> QuestionKind:
    fields = form_fields(schema)
    fits = sum(map(_field_size, fields)) < _BYTES // 20
    return QuestionKind(id=_kind_id(schema), fields=fields if fits else (), asked=[])


def _field_size(field: FormField) -> int:
    texts = (*field.choices, field.label, field.hint, field.text, field.name * 3)
    return 700 + sum(60 + 2 * len(escape(text).encode()) for text in texts)


def _asked(line: InboxLine, question: QuestionLine) -> ShownQuestion:
    texts = [_text(question.question), "" if question.show is None else _text(question.show)]
    return ShownQuestion(
        name=f"{segment(line.thread)}/{segment(question.id)}",
        thread=line.thread,
        graph=line.graph,
        node=question.node,
        question=texts[0][:_LONGEST],
        show=texts[1][:_LONGEST],
        refused=question.refused and question.refused[:_LONGEST],
        until=question.until,
        is_cut=any(len(text) > _LONGEST for text in texts),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value, indent=2)


def _size(asked: ShownQuestion, kind: QuestionKind) -> int:
    """Bytes for a question; the first of its kind includes the shared form."""
    names = shown_size(asked.thread) + shown_size(asked.graph) + shown_size(asked.node)
    texts = (asked.question, asked.show, asked.refused or "")
    shown = (
        1500 + names + 3 * len(asked.name) + sum(len(multiline(text).encode()) for text in texts)
    )
    return shown + sum(map(_field_size, kind.fields)) * (1 if kind.asked else 2)


@WebPage("POST", "/inbox", "answer", form=InboxForm)
async def answer(request: ApiRequest) -> PageView | Response:
    """Answer some questions, and show the inbox again to those who may read it."""
    form: InboxForm = request.body
    if not form.question:
        raise InvalidRequest("no question is selected: go back and select some")
    by_thread: dict[str, list[str]] = {}
    for name in form.question:
        thread, _, id = name.partition("/")
        by_thread.setdefault(named(thread), []).append(named(id))
    typed = typed_in(form)
    outcomes = [
        await outcome_of(
            thread, _answered(request, thread, ids, form.kind, typed), request.service.redact
        )
        for thread, ids in by_thread.items()
    ]
    graph, after = named(form.graph) or None, named(form.after) or None
    may_read = "read" in request.identity.scopes
    if may_read and request.http.headers.get("hx-request") == "true":
        return await _inbox(request, graph, after, outcomes)
    if may_read and not any(code for _, _, code in outcomes):
        return RedirectResponse(f"/inbox{query_text({'graph': graph, 'after': after})}", 303)
    return PageView(
        template="outcomes.html",
        title="Answers",
        commands=(("ls", *of_tenant(request.tenant), "--status=interrupted"),),
        values={"outcomes": outcomes, "back": "/inbox", "back_to": "Inbox"},
    )


async def _answered(
    request: ApiRequest, thread: str, ids: list[str], kind: str, typed: Mapping[str, str]
) -> str:
    service = request.service
    key = service.key(request.tenant, thread)
    answers = await request.off_loop(_typed, service, key, ids, kind, typed)
    await answer_thread(service, key, answers, request.actor())
    return "answered"


def _typed(
    service: Service, key: ThreadKey, ids: list[str], kind: str, typed: Mapping[str, str]
) -> dict[str, Any]:
    asked = _open(service, key)
    return {id: _parsed(asked.get(id), kind, typed, service.redact) for id in ids}


def _open(service: Service, key: ThreadKey) -> dict[str, QuestionLine]:
    info = service.line(key)
    asked = inbox_line(service, info).questions if info.status == "interrupted" else ()
    return {one.id: one for one in asked}


def _parsed(
    question: QuestionLine | None, kind: str, typed: Mapping[str, str], redact: Redact | None
) -> Any:
    if question is None:
        raise InvalidRequest("the question is not open any more")
    form = after_hook("answer", question.answer, redact)
    if _kind_id(form) != kind:
        raise InvalidRequest("the question asks for another type: load the page again")
    return parsed(question.answer, typed, form)
