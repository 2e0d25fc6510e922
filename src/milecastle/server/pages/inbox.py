"""The inbox: all open questions, one shown in full, answered alone or with others like it.

Rules:

- An answered question is looked up again: it must be open, and ask for the form's type.
- A question is never replaced by another while it is read: the live part names the open question,
  and says so when it has been answered elsewhere. Only a valid answer moves on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
from markupsafe import escape
from starlette.responses import RedirectResponse, Response

from milecastle.errors import CodecError, InvalidAnswer, InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.server.documents import HttpDocument, InboxDocument, InboxLine, InboxQuery
from milecastle.server.pages.excerpts import Excerpt, Excerpts
from milecastle.server.pages.forms import ThreadOutcome, named, outcome_of
from milecastle.server.pages.json_tree import Tree
from milecastle.server.pages.rendering import query_text, segment, shown_size
from milecastle.server.pages.schema_forms import (
    FormField,
    SchemaForm,
    form_fields,
    parsed,
    typed_in,
)
from milecastle.server.pages.thread import shown_tree
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.problems import Refused
from milecastle.server.redaction import Redact, after_hook, redacted
from milecastle.server.request import ApiRequest
from milecastle.server.runs import answer_thread
from milecastle.server.service import Service
from milecastle.server.threads import inbox_document, inbox_line
from milecastle.views.documents import QuestionLine
from milecastle.views.listing import asking_page
from milecastle.views.values import as_json

_ROWS: Final = 50
_BYTES: Final = 120_000
"""The bytes that the list may take."""
_TITLE: Final = 160
_VALUES: Final = 60_000
_QUESTION, _SHOW, _STATE = 4000, 12_000, 12_000
_FACTS: Final = 12
_FORM: Final = 30_000


class InboxPageQuery(HttpDocument, frozen=True):
    """``q`` is the question to open, as ``THREAD/ID``; without it, the first."""

    q: str | None = None
    graph: str | None = None
    sort: Literal["", "kind"] = ""
    after: str | None = None


class InboxForm(SchemaForm, frozen=True, kw_only=True):
    """An answer to questions, each ``THREAD/ID/DIGEST``; ``kind`` is the expected type.

    ``also`` are the selected ones: they get the answer if ``others`` is set and they ask for the
    same type. ``next`` is the question to open then.
    """

    question: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    others: str = ""
    kind: str
    reason: str = ""
    next: str = ""
    graph: str = ""
    sort: Literal["", "kind"] = ""
    after: str = ""


class ListedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question in the list; ``name`` is ``THREAD/ID``.

    ``value`` is sent with an answer: the name, and the shown question's digest.
    """

    name: str
    value: str
    thread: str
    graph: str
    title: str
    expects: str
    kind: str
    asked_at: str | None
    until: str | None


class OpenedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The open question, with its form. ``fields`` is empty if the form does not fit."""

    listed: ListedQuestion
    node: str
    question: Excerpt
    facts: list[tuple[str, str]]
    show: Tree | None
    refused: Excerpt | None
    fields: tuple[FormField, ...]
    state: Tree | None
    channels: int
    place: int
    next: str
    alike: int


_COUNTED: Final = 100
_LOOKED_AT: Final = 1000
"""How many threads are counted, and how many are looked at for that."""


def open_questions(service: Service, tenant: str) -> str:
    """Number of open questions; a lower bound if there are many threads."""
    page = asking_page(service.store, tenant, None, None, limit=_COUNTED, most=_LOOKED_AT)
    count = sum(info.questions for info in page.infos)
    return f"{count}{'+' if page.next else ''}" if count else ""


@WebPage(
    "GET",
    "/inbox",
    "read",
    query=InboxPageQuery,
    label="Inbox",
    badge=open_questions,
    tone="ask",
    counts="open questions",
)
async def show_inbox(request: ApiRequest) -> PageView:
    return await _inbox(request, request.query)


async def _inbox(
    request: ApiRequest, query: InboxPageQuery, outcomes: Sequence[ThreadOutcome] | None = None
) -> PageView:
    service, tenant = request.service, request.tenant
    found = await request.off_loop(_read, service, tenant, query, outcomes is not None)
    chosen = {"graph": query.graph or None, "sort": query.sort, "after": query.after or None}
    opened: OpenedQuestion | None = found["opened"]
    answer = (
        [("answer", *of_tenant(tenant), "--", opened.listed.thread, "ANSWER")] if opened else []
    )
    next, name = found.pop("next"), opened.listed.name if opened else query.q
    return PageView(
        template="inbox.html",
        live="_inbox.html" if outcomes is None else "_answered.html",
        title="Inbox",
        commands=(
            ("ls", *of_tenant(tenant), "--status=interrupted", f"--limit={_ROWS}"),
            *answer,
        ),
        values={
            **found,
            "chosen": chosen,
            "here": f"/inbox{query_text({**chosen, 'q': name})}",
            "next": {**chosen, "after": next} if next else None,
            "graphs": sorted(service.apps),
            "may_answer": "answer" in request.identity.scopes,
            "outcomes": outcomes,
            "closed": named((query.q or "").partition("/")[0]),
        },
    )


def _read(service: Service, tenant: str, query: InboxPageQuery, moves_on: bool) -> dict[str, Any]:
    """The list, and the question to open: none if it is no longer open, unless one ``moves_on``."""
    asked = InboxQuery(graph=query.graph or None, after=query.after or None, limit=_ROWS)
    document = redacted(inbox_document(service, tenant, asked), service.redact)
    listed, unreadable, next, left = _room(document)
    pairs = sorted(listed, key=lambda pair: _urgency(pair[0], by_kind=query.sort == "kind"))
    questions = [one for one, _ in pairs]
    names = [one.name for one in questions]
    place = names.index(query.q) if query.q in names else 0
    opened = None
    if pairs and (moves_on or not query.q or query.q in names):
        alike = sum(one.kind == questions[place].kind for one in questions) - 1
        following = names[place + 1 : place + 2] or names[place - 1 : place]
        opened = _opened(service, tenant, *pairs[place], place, "".join(following), alike)
    return {
        "questions": questions,
        "opened": opened,
        "unreadable": unreadable,
        "next": next,
        "left": left,
    }


def _urgency(one: ListedQuestion, *, by_kind: bool) -> tuple[str, bool, str]:
    kind = one.kind if by_kind else ""
    return kind, one.until is None, one.until or one.asked_at or ""


def _room(
    found: InboxDocument,
) -> tuple[list[tuple[ListedQuestion, QuestionLine]], list[InboxLine], str | None, int]:
    """As many threads as have room; for a thread with many questions, as many as fit.

    The questions, the threads that cannot be read here, where the next page begins, and how many
    questions of the last thread are not shown.
    """
    listed: list[tuple[ListedQuestion, QuestionLine]] = []
    unreadable: list[InboxLine] = []
    size, last = 0, None
    for line in found.threads:
        for count, question in enumerate(line.questions):
            one = _listed(line, question)
            size += _size(one)
            if (size > _BYTES or count == _ROWS) and count:
                return listed, unreadable, line.thread, len(line.questions) - count
            if size > _BYTES and last is not None:
                return listed, unreadable, last, 0
            listed.append((one, question))
        unreadable += [] if line.questions else [line]
        size += 0 if line.questions else 300 + shown_size(line.thread)
        if size > _BYTES:
            return listed, unreadable, line.thread, 0
        last = line.thread
    return listed, unreadable, found.next, 0


def _kind_id(schema: Any) -> str:
    return sha256(as_json(schema).encode()).hexdigest()[:16]


def _listed(line: InboxLine, question: QuestionLine) -> ListedQuestion:
    name = f"{segment(line.thread)}/{segment(question.id)}"
    text = question.question if isinstance(question.question, str) else as_json(question.question)
    return ListedQuestion(
        name=name,
        value=f"{name}/{question.digest or ''}",
        thread=line.thread,
        graph=line.graph,
        title=text[:_TITLE].partition("\n")[0],
        expects=_expects(form_fields(question.answer)),
        kind=_kind_id(question.answer),
        asked_at=line.asked_at,
        until=question.until,
    )


def _expects(fields: tuple[FormField, ...]) -> str:
    first, *others = fields
    if others or first.name:
        return f"form of {1 + len(others)} field{'s' if others else ''}"
    words = {"buttons": "yes or no", "choice": "choose one", "number": "number", "json": "JSON"}
    return words.get(first.control, "text")


def _size(one: ListedQuestion) -> int:
    texts = sum(map(shown_size, (one.thread, one.title, one.title)))
    return 800 + texts + 4 * len(one.name)


def _opened(
    service: Service,
    tenant: str,
    listed: ListedQuestion,
    line: QuestionLine,
    place: int,
    following: str,
    alike: int,
) -> OpenedQuestion:
    excerpts = Excerpts(_VALUES)
    question = line.question
    text = (
        excerpts.text("question", question, _QUESTION)
        if isinstance(question, str)
        else excerpts.shown(question, _QUESTION)
    )
    facts = excerpts.facts(line.show, _FACTS)
    has_tree = line.show is not None and facts is None
    fields = form_fields(line.answer)
    channels, state = _state(service, tenant, listed.thread)
    return OpenedQuestion(
        listed=listed,
        node=line.node,
        question=text,
        facts=facts or [],
        show=shown_tree(excerpts, line.show, _SHOW) if has_tree else None,
        refused=excerpts.text("refused", line.refused, _QUESTION) if line.refused else None,
        fields=fields if sum(map(_field_size, fields)) < _FORM else (),
        state=state,
        channels=channels,
        place=place + 1,
        next=following,
        alike=alike,
    )


def _state(service: Service, tenant: str, thread: str) -> tuple[int, Tree | None]:
    key = service.key(tenant, thread)
    try:
        values = service.decoded(key, service.chain(key, None)).values
    except (CodecError, Refused):
        return 0, None
    excerpts = Excerpts(_STATE, service.redact)
    members = [
        (name, excerpts.hidden(f"$.{name}", value), f"$.{name}") for name, value in values.items()
    ]
    more = f"/v1/threads/{segment(thread)}/state"
    return len(members), excerpts.tree(members, _STATE, more=more)


def _field_size(field: FormField) -> int:
    texts = (*field.choices, field.label, field.hint, field.text, field.name * 3)
    return 500 + sum(60 + 2 * len(escape(text).encode()) for text in texts)


@WebPage("POST", "/inbox", "answer", form=InboxForm)
async def answer(request: ApiRequest) -> PageView | Response:
    form: InboxForm = request.body
    if not form.question:
        raise InvalidRequest("no question is selected: go back and select some")
    by_thread: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys((*form.question, *(form.also if form.others else ()))):
        thread, id, digest, *_ = *name.split("/"), "", ""
        by_thread.setdefault(named(thread), {})[named(id)] = digest
    typed = typed_in(form)
    reason = form.reason.strip()
    outcomes = [
        await outcome_of(
            thread,
            _answered(request, thread, ids, form.kind, typed, reason),
            request.service.redact,
        )
        for thread, ids in by_thread.items()
    ]
    is_invalid = outcomes[0][2] == InvalidAnswer.code
    query = InboxPageQuery(
        q=form.question[0].rpartition("/")[0] if is_invalid else form.next or None,
        graph=named(form.graph) or None,
        sort=form.sort,
        after=named(form.after) or None,
    )
    may_read = "read" in request.identity.scopes
    if may_read and request.http.headers.get("hx-request") == "true":
        return await _inbox(request, query, outcomes)
    if may_read and not any(code for _, _, code in outcomes):
        return RedirectResponse(f"/inbox{query_text(msgspec.structs.asdict(query))}", 303)
    return PageView(
        template="outcomes.html",
        title="Answers",
        commands=(("ls", *of_tenant(request.tenant), "--status=interrupted"),),
        values={
            "outcomes": outcomes,
            "back": f"/inbox{query_text(msgspec.structs.asdict(query))}",
            "back_to": "Back to the question" if is_invalid else "Inbox",
        },
    )


async def _answered(
    request: ApiRequest,
    thread: str,
    ids: Mapping[str, str],
    kind: str,
    typed: Mapping[str, str],
    reason: str,
) -> str:
    service = request.service
    key = service.key(request.tenant, thread)
    answers = await request.off_loop(_typed, service, key, ids, kind, typed)
    only = next(iter(ids.values())) if len(ids) == 1 else None
    await answer_thread(service, key, answers, request.actor(reason, only or None))
    return "answered"


def _typed(
    service: Service, key: ThreadKey, ids: Mapping[str, str], kind: str, typed: Mapping[str, str]
) -> dict[str, Any]:
    asked = _open(service, key)
    if any(shown and id in asked and asked[id].digest != shown for id, shown in ids.items()):
        raise InvalidRequest("a question has changed since it was shown: load the page again")
    return {id: _parsed(asked.get(id), kind, typed, service.redact) for id in ids}


def _open(service: Service, key: ThreadKey) -> dict[str, QuestionLine]:
    info = service.line(key)
    asked = inbox_line(service, info).questions if info.status == "interrupted" else ()
    return {one.id: one for one in asked}


def _parsed(
    question: QuestionLine | None, kind: str, typed: Mapping[str, str], redact: Redact | None
) -> Any:
    if question is None:
        raise InvalidRequest("the question is no longer open: it was answered, or it timed out")
    form = after_hook("answer", question.answer, redact)
    if _kind_id(form) != kind:
        raise InvalidRequest("the question asks for another type: load the page again")
    return parsed(question.answer, typed, form)
