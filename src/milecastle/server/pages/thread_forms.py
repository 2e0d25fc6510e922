"""Forms on a thread's page: answer a question, fork, change the state, change tags.

Each is the API route with the same name, and needs the same scope. A refused form is shown again
with its text, if the caller may read the thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final

import msgspec
import msgspec.json
from starlette.responses import RedirectResponse, Response

from milecastle.errors import InvalidRequest, MilecastleError
from milecastle.model.actor import Actor
from milecastle.model.keys import ThreadKey
from milecastle.server.documents import ForkRequest, HttpDocument, TagRequest, UpdateRequest
from milecastle.server.pages.forms import named
from milecastle.server.pages.schema_forms import SchemaForm, parsed, typed_in
from milecastle.server.pages.thread import (
    FormRefusal,
    ThreadPageQuery,
    thread_url,
    thread_view,
)
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.problems import shown_message, status_of
from milecastle.server.redaction import after_hook
from milecastle.server.request import ApiRequest
from milecastle.server.runs import answer_thread
from milecastle.server.service import Service
from milecastle.server.threads import fork_thread, tag_thread, update_thread
from milecastle.views.lines import question_lines

_DISCARD: Final = "discard"
_FORK: Final = "fork"
_TAGS: Final = "tags"
_UPDATE: Final = "update"


class AnswerForm(SchemaForm, frozen=True, kw_only=True):
    """The answer to the question with this id; ``shown`` is the shown question's digest.

    ``chat`` is set where the conversation is to be shown then.
    """

    question: str
    reason: str = ""
    shown: str = ""
    chat: str = ""


class DiscardForm(HttpDocument, frozen=True):
    number: int


class ForkForm(HttpDocument, frozen=True):
    """Seq to fork at; ``as_thread`` is empty for a branch in the same thread."""

    at: int
    as_thread: str = ""


class TagForm(HttpDocument, frozen=True):
    add: str = ""
    remove: tuple[str, ...] = ()


class UpdateForm(HttpDocument, frozen=True):
    update: str
    at: int = 0


@WebPage("POST", "/threads/{thread}/answers", "answer", form=AnswerForm)
async def answer(request: ApiRequest) -> PageView | Response:
    form: AnswerForm = request.body
    id, typed = named(form.question), typed_in(form)
    said = FormRefusal(id, "", "", typed, form.reason)
    by = request.actor(form.reason.strip(), form.shown or None)
    page = "/chat" if form.chat else ""
    return await _done(request, _answered(request, id, typed, by), said, None, page)


async def _answered(request: ApiRequest, id: str, typed: Mapping[str, str], by: Actor) -> str:
    service, key = request.service, request.key
    answer = await request.off_loop(_typed, service, key, id, typed)
    await answer_thread(service, key, {id: answer}, by)
    return key.thread


def _typed(service: Service, key: ThreadKey, id: str, typed: Mapping[str, str]) -> Any:
    service.app_of(key)
    lines = question_lines(service.decoded(key, service.chain(key, None)).interrupts)
    schema = next((line.answer for line in lines if line.id == id), msgspec.UNSET)
    if schema is msgspec.UNSET:
        raise InvalidRequest("this question is no longer open: it was answered, or it timed out")
    return parsed(schema, typed, after_hook("answer", schema, service.redact))


@WebPage("POST", "/threads/{thread}/discard", "admin", form=DiscardForm)
async def discard(request: ApiRequest) -> PageView | Response:
    number: int = request.body.number
    return await _done(
        request, _discarded(request, number), FormRefusal(_DISCARD, "", "", {}), None
    )


async def _discarded(request: ApiRequest, number: int) -> str:
    service, key = request.service, request.key
    await request.off_loop(lambda: service.app_of(key).discard(key, number))
    return key.thread


@WebPage("POST", "/threads/{thread}/fork", "run", form=ForkForm)
async def fork(request: ApiRequest) -> PageView | Response:
    form: ForkForm = request.body
    asked = ForkRequest(at=form.at, as_thread=form.as_thread or None)
    said = FormRefusal(_FORK, "", "", {"as_thread": form.as_thread})
    return await _done(request, _forked(request, asked), said, str(form.at))


async def _forked(request: ApiRequest, asked: ForkRequest) -> str:
    written = await request.off_loop(fork_thread, request.service, request.key, asked)
    return written.thread


@WebPage("POST", "/threads/{thread}/tags", "run", form=TagForm)
async def tag(request: ApiRequest) -> PageView | Response:
    form: TagForm = request.body
    add = (form.add,) if form.add else ()
    asked = TagRequest(add=add, remove=tuple(map(named, form.remove)))
    said = FormRefusal(_TAGS, "", "", {"add": form.add})
    return await _done(request, _tagged(request, asked), said, None)


async def _tagged(request: ApiRequest, asked: TagRequest) -> str:
    await request.off_loop(tag_thread, request.service, request.key, asked)
    return request.key.thread


@WebPage("POST", "/threads/{thread}/update", "admin", form=UpdateForm)
async def update(request: ApiRequest) -> PageView | Response:
    form: UpdateForm = request.body
    said = FormRefusal(_UPDATE, "", "", {"update": form.update})
    return await _done(request, _updated(request, form), said, str(form.at or "") or None)


async def _updated(request: ApiRequest, form: UpdateForm) -> str:
    await request.off_loop(_update, request.service, request.key, form)
    return request.key.thread


def _update(service: Service, key: ThreadKey, form: UpdateForm) -> None:
    try:
        given = msgspec.json.decode(form.update, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise InvalidRequest("the update is not a JSON object") from None
    update_thread(service, key, UpdateRequest(update=given, at=form.at or None))


async def _done(
    request: ApiRequest,
    doing: Awaitable[str],
    said: FormRefusal,
    at: str | None,
    page: str = "",
) -> PageView | Response:
    try:
        return RedirectResponse(f"{thread_url(await doing)}{page}", 303)
    except MilecastleError as error:
        if "read" not in request.identity.scopes:
            raise
        message = shown_message(error, request.service.redact)
        said = said._replace(message=message, code=error.code)
        view = await thread_view(request, ThreadPageQuery(at=at), said)
        return msgspec.structs.replace(view, status=status_of(error), live=None)
