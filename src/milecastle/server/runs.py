from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec.structs

from milecastle.app.results import Result
from milecastle.app.runs.answering import UNANSWERED
from milecastle.app.runs.submission import Handle
from milecastle.app.threads.children import is_child
from milecastle.app.threads.messages import unread_messages
from milecastle.errors import InvalidRequest, RunError
from milecastle.model.actor import Actor
from milecastle.model.keys import ThreadKey
from milecastle.ports.mailbox import Sent
from milecastle.ports.reading import StoreReader
from milecastle.server import limits
from milecastle.server.documents import (
    AnswersQuery,
    AnswersRequest,
    MessageRequest,
    MessagesQuery,
    RetryRequest,
    RunRequest,
    RunsQuery,
    ThreadRunsQuery,
    WaitQuery,
)
from milecastle.server.request import THREAD, ApiRequest, Endpoint, Reply
from milecastle.server.service import Service
from milecastle.server.threads import show_thread
from milecastle.views.documents import (
    AuditDocument,
    MailboxDocument,
    RunDocument,
    RunsDocument,
    SendDocument,
    SubmitDocument,
)
from milecastle.views.lines import answer_line, run_document, submit_document
from milecastle.views.listing import found_page
from milecastle.views.messages import message_line
from milecastle.views.replicas import source_of
from milecastle.views.showing import run_lines
from milecastle.views.values import fitted


@Endpoint(
    "POST",
    f"{THREAD}/runs",
    "run",
    query=WaitQuery,
    body=RunRequest,
    answers={200: RunDocument, 202: SubmitDocument},
    problems=(409, 422, 500),
)
async def submit(request: ApiRequest) -> Reply:
    """Queue a run for the workers; with wait, answer with its result."""
    asked: RunRequest = request.body
    key = _idempotency_key(request, asked.key)
    asked = msgspec.structs.replace(asked, key=key)
    return await _handed_over(request, await submit_run(request.service, request.key, asked))


async def submit_run(
    service: Service, key: ThreadKey, asked: RunRequest, *, instead_of: str | None = None
) -> Handle[Any]:
    """Queue a run; ``instead_of`` names a run it may close."""
    return await service.off_loop(_submit, service, key, asked, instead_of)


def _submit(
    service: Service, key: ThreadKey, asked: RunRequest, instead_of: str | None
) -> Handle[Any]:
    app = service.app_for(key, asked.graph)
    return app.submit(
        fitted(app.graph.schema, asked.input, {}),
        key,
        key=asked.key,
        again=asked.again,
        retry=asked.options.retry,
        delay=asked.delay,
        priority=asked.priority,
        if_busy=asked.options.if_busy,
        if_absent=asked.options.if_absent,
        instead_of=instead_of,
        tags=asked.tags,
        keys=asked.keys,
        config=asked.config,
    )


def _idempotency_key(request: ApiRequest, given: str | None) -> str | None:
    header = request.http.headers.get("idempotency-key")
    if header is None:
        return given
    if len(header) > 1 and header[0] == header[-1] == '"':  # a string of structured fields
        header = header[1:-1]
    if given is not None and given != header:
        raise InvalidRequest("key and the header Idempotency-Key differ: send one of them")
    return header


@Endpoint(
    "POST",
    f"{THREAD}/answers",
    "answer",
    query=WaitQuery,
    body=AnswersRequest,
    answers={200: RunDocument, 202: SubmitDocument},
    problems=(404, 409, 422, 500),
)
async def answer(request: ApiRequest) -> Reply:
    """Answer a thread's open questions, and let a worker resume it."""
    asked: AnswersRequest = request.body
    if bool(asked.answers) == (asked.answer is not msgspec.UNSET):
        raise InvalidRequest("the body needs answers, by question, or one answer: not both")
    key = _idempotency_key(request, asked.key)
    if asked.shown is not None and len(asked.answers) > 1:
        raise InvalidRequest("shown is the digest of one question: send its answer alone")
    by = request.actor(asked.reason, asked.shown, asked.on_behalf_of)

    def answer() -> Handle[Any]:
        app = request.service.app_of(request.key)
        one = UNANSWERED if asked.answer is msgspec.UNSET else asked.answer
        return app.answer(
            request.key, one, answers=asked.answers or None, key=key, by=by, config=asked.config
        )

    return await _handed_over(request, await request.off_loop(answer))


async def answer_thread(
    service: Service,
    key: ThreadKey,
    answers: Mapping[str, Any],
    by: Actor,
    config: Any = None,
) -> Handle[Any]:
    def answer() -> Handle[Any]:
        app = service.app_of(key)
        return app.answer(key, answers=answers, by=by, config=config)

    return await service.off_loop(answer)


@Endpoint(
    "GET",
    f"{THREAD}/answers",
    "read",
    query=AnswersQuery,
    answers={200: AuditDocument},
    problems=(404, 409, 500),
)
def list_answers(request: ApiRequest) -> AuditDocument:
    """List a thread's answers, oldest first, and who gave them."""
    key, query = request.key, request.query
    answers = request.service.app_of(key).answers(key)
    found = [record for record in answers if record.seq > query.after]
    last = found[: query.limit][-1:]
    lines = tuple(answer_line(record) for record in found if record.seq <= last[0].seq)
    next = lines[-1].seq if len(lines) < len(found) else None
    return AuditDocument(tenant=key.tenant, thread=key.thread, answers=lines, next=next)


@Endpoint(
    "POST",
    f"{THREAD}/messages",
    "run",
    body=MessageRequest,
    answers={200: SendDocument},
    problems=(404, 409, 422, 500),
)
async def send(request: ApiRequest) -> Reply:
    """Send a message to a thread, whatever its run does."""
    asked: MessageRequest = request.body
    service, key = request.service, request.key
    message_key = _idempotency_key(request, asked.key)

    def send() -> Sent:
        app = service.app_of(key)
        times = {"quiet": asked.quiet, "at_most": asked.at_most}
        return app.send(key, asked.value, asked.topic, key=message_key, by=asked.by, **times)

    sent = await service.off_loop(send)
    return Reply(
        SendDocument(
            tenant=key.tenant,
            thread=key.thread,
            number=sent.number,
            reused=sent.reused,
            status=sent.status,
        )
    )


@Endpoint(
    "GET",
    f"{THREAD}/messages",
    "read",
    query=MessagesQuery,
    answers={200: MailboxDocument},
    problems=(404, 409, 500),
)
def list_messages(request: ApiRequest) -> MailboxDocument:
    """List a thread's unread messages, oldest first."""
    service, key, query = request.service, request.key, request.query
    stored = service.app_of(key).runner.stored(key)
    found = unread_messages(*stored, query.topic, after=query.after, limit=query.limit + 1)
    lines = tuple(map(message_line, found[: query.limit]))
    next = lines[-1].number if len(lines) < len(found) else None
    return MailboxDocument(tenant=key.tenant, thread=key.thread, messages=lines, next=next)


@Endpoint(
    "POST",
    f"{THREAD}/retry",
    "run",
    query=WaitQuery,
    body=RetryRequest,
    answers={200: RunDocument, 202: SubmitDocument},
    problems=(404, 409, 500),
)
async def retry(request: ApiRequest) -> Reply:
    """Queue a thread for the workers again."""
    asked: RetryRequest = request.body
    handle = await retry_thread(
        request.service, request.key, delay=asked.delay, config=asked.config
    )
    return await _handed_over(request, handle)


async def retry_thread(
    service: Service, key: ThreadKey, *, delay: float = 0.0, config: Any = None
) -> Handle[Any]:
    return await service.off_loop(
        lambda: service.app_of(key).retry(key, delay=delay, config=config)
    )


async def _handed_over(request: ApiRequest, handle: Handle[Any]) -> Reply:
    try:
        result = await _result(request, handle) if request.query.wait else None
    except RunError:  # the run failed, or was cancelled: this request did not
        return Reply(await request.off_loop(_ended, request.service, handle))
    if result is not None:
        return Reply(await request.off_loop(run_document, result))
    document = submit_document(handle)
    if document.seq is None:
        head = await request.off_loop(request.service.store.head, handle.thread)
        document = msgspec.structs.replace(document, seq=head.seq if head else None)
    return Reply(document, 202)


def _ended(service: Service, handle: Handle[Any]) -> RunDocument:
    shown = show_thread(service, handle.thread)
    run, last = shown.run, shown.checkpoint
    return RunDocument(
        tenant=shown.tenant,
        thread=shown.thread,
        run_id=run.run_id if run else handle.run_id,
        status=run.status if run else shown.status,
        nodes=last.nodes,
        next=last.next,
        step=last.step,
        timestamp=last.timestamp,
        wake_at=None,
        questions=shown.questions,
        state=shown.state,
        reused=handle.reused,
        failure=run.failure if run else None,
    )


async def _result(request: ApiRequest, handle: Handle[Any]) -> Result[Any] | None:
    waiting: Coroutine[Any, Any, Result[Any]] = handle.aresult()
    result = asyncio.create_task(waiting)
    closing = asyncio.create_task(request.service.closing.wait())
    try:
        await asyncio.wait(
            [result, closing], timeout=request.query.wait, return_when=asyncio.FIRST_COMPLETED
        )
        return await result if result.done() else None
    finally:
        result.cancel()
        closing.cancel()


@Endpoint(
    "GET",
    f"{THREAD}/result",
    "read",
    query=WaitQuery,
    answers={200: RunDocument, 202: SubmitDocument},
    problems=(404, 409, 500),
)
async def result(request: ApiRequest) -> Reply:
    """Wait until a thread's run stops, and show its result."""
    return await _handed_over(request, await request.off_loop(_current, request))


def _current(request: ApiRequest) -> Handle[Any]:
    service, key = request.service, request.key
    info, runner = service.line(key), service.app_of(key).runner
    return Handle(key, info.run_id, info.status, True, runner)


@Endpoint(
    "GET",
    f"{THREAD}/runs",
    "read",
    query=ThreadRunsQuery,
    answers={200: RunsDocument},
    problems=(404,),
)
def list_runs_of_thread(request: ApiRequest) -> Reply:
    """List a thread's runs, newest first."""
    service, key = request.service, request.key
    service.line(key)
    store, behind = source_of(service.store, key)
    return Reply(runs_of_thread(store, key, request.query), behind=behind)


def runs_of_thread(store: StoreReader, key: ThreadKey, query: ThreadRunsQuery) -> RunsDocument:
    runs = list(store.runs(key, limit=None if query.after else query.limit + 1))
    if query.after is not None:
        ids = [run.run_id for run in runs]
        if query.after not in ids:
            raise InvalidRequest("after is not the id of a run of this thread")
        runs = runs[ids.index(query.after) + 1 :]
    shown = tuple(run_lines(store, runs[: query.limit]))
    next = shown[-1].run_id if len(shown) < len(runs) else None
    return RunsDocument(tenant=key.tenant, runs=shown, next=next)


@Endpoint("GET", "/v1/runs", "read", query=RunsQuery, answers={200: RunsDocument})
def list_runs(request: ApiRequest) -> Reply:
    """List runs: the current ones by status, or all, newest first."""
    query: RunsQuery = request.query
    if query.status is None and query.graph is not None:
        raise InvalidRequest("graph needs a status: all runs are listed for every graph")
    store, behind = source_of(request.service.store)
    return Reply(runs_document(store, request.tenant, query), behind=behind)


def runs_document(store: StoreReader, tenant: str, query: RunsQuery) -> RunsDocument:
    if query.status is None:
        page = store.recent_runs(tenant, limit=query.limit, after=query.after)
        runs, next = [run for run in page.items if not is_child(run.key)], page.after
    else:
        wanted = tenant, query.status, query.graph, query.after
        infos, next = found_page(store, *wanted, limit=query.limit, most=limits.LOOKED_AT)
        records = (store.run(info.key, info.run_id) for info in infos)
        runs = [run for run in records if run is not None]
    return RunsDocument(tenant=tenant, runs=tuple(run_lines(store, runs)), next=next)
