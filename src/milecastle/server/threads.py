from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from milecastle.app.threads.log import At
from milecastle.app.threads.tagging import change_tags
from milecastle.app.upkeep.removing import delete_thread as remove_thread
from milecastle.errors import CodecError
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.server import limits
from milecastle.server.documents import (
    CancelQuery,
    DeleteQuery,
    DiffQuery,
    ForkRequest,
    HistoryQuery,
    InboxDocument,
    InboxLine,
    InboxQuery,
    TagRequest,
    ThreadQuery,
    ThreadsQuery,
    UpdateRequest,
    WholeStateQuery,
)
from milecastle.server.json_answers import json_answer
from milecastle.server.problems import NO_THREAD, NOT_FOUND, Refused
from milecastle.server.redaction import after_hook
from milecastle.server.request import THREAD, ApiRequest, Endpoint, Reply
from milecastle.server.service import Service
from milecastle.views.documents import (
    CancelDocument,
    DeleteDocument,
    DiffDocument,
    HistoryDocument,
    LsDocument,
    ShowDocument,
    TagDocument,
    WrittenDocument,
)
from milecastle.views.lines import checkpoint_line, moment, question_lines
from milecastle.views.listing import asking_page, history_document, thread_page
from milecastle.views.replicas import source_of
from milecastle.views.showing import change_line, changes_between, readable_document
from milecastle.views.values import fitted


@Endpoint("GET", "/v1/threads", "read", query=ThreadsQuery, answers={200: LsDocument})
def list_threads(request: ApiRequest) -> Reply:
    """List threads, by name."""
    query: ThreadsQuery = request.query
    store, behind = source_of(request.service.store)
    lines, next = thread_page(
        store,
        request.tenant,
        status=query.status,
        graph=query.graph,
        tag=query.tag,
        prefix=query.prefix,
        after=query.after,
        limit=query.limit,
        most=limits.LOOKED_AT,
    )
    document = LsDocument(tenant=request.tenant, threads=lines, next=next)
    return Reply(document, behind=behind)


@Endpoint("GET", THREAD, "read", query=ThreadQuery, answers={200: ShowDocument}, problems=(404,))
def show(request: ApiRequest) -> ShowDocument:
    """Show a thread with its state."""
    return show_thread(request.service, request.key, request.query.at)


def show_thread(service: Service, key: ThreadKey, at: str | None = None) -> ShowDocument:
    """Show a thread at its head or at a checkpoint, with its state if it can be decrypted."""
    info = service.line(key)
    shown = service.shown(key, at)
    return readable_document(service.store, info, shown, service.decoded, is_head=at is None)


@Endpoint(
    "GET",
    f"{THREAD}/state",
    "read",
    query=WholeStateQuery,
    answers={200: "application/json"},
    problems=(404, 409, 500),
)
async def whole_state(request: ApiRequest) -> Response:
    """Download a thread's state, or one channel, however large."""
    make = partial(_whole, request.service, request.key, request.query)
    return await json_answer(request.service, make)


def _whole(service: Service, key: ThreadKey, query: WholeStateQuery) -> Any:
    service.line(key)
    found = service.decoded(key, service.chain(key, query.at)).values
    if query.channel is not None and query.channel not in found:
        raise Refused(NOT_FOUND, 404, "the state does not have the channel")
    names = found if query.channel is None else (query.channel,)
    shown = {name: after_hook(f"$.{name}", found[name], service.redact) for name in names}
    return shown if query.channel is None else shown[query.channel]


@Endpoint(
    "GET",
    f"{THREAD}/history",
    "read",
    query=HistoryQuery,
    answers={200: HistoryDocument},
    problems=(404, 409),
)
def history(request: ApiRequest) -> Reply:
    """List a thread's checkpoints, newest first."""
    service, key, query = request.service, request.key, request.query
    service.line(key)
    store, behind = source_of(service.store, key)
    document = history_document(store, key, limit=query.limit, before=query.before)
    return Reply(document, behind=behind)


@Endpoint(
    "GET",
    f"{THREAD}/diff",
    "read",
    query=DiffQuery,
    answers={200: DiffDocument},
    problems=(404, 409, 500),
)
def diff(request: ApiRequest) -> DiffDocument:
    """Show the differences between two checkpoints, by path."""
    service, key = request.service, request.key
    service.line(key)
    chains = [service.chain(key, at) for at in (request.query.a, request.query.b)]
    old, new = (service.decoded(key, chain) for chain in chains)
    a, b = (f"{key.thread}@{chain.entries[-1].seq}" for chain in chains)
    changes, unread = changes_between(old, new)
    return DiffDocument(
        tenant=key.tenant, a=a, b=b, changes=tuple(map(change_line, changes)), not_compared=unread
    )


@Endpoint("GET", "/v1/questions", "read", query=InboxQuery, answers={200: InboxDocument})
def list_questions(request: ApiRequest) -> InboxDocument:
    """List the open questions, by thread: the inbox."""
    return inbox_document(request.service, request.tenant, request.query)


def inbox_document(service: Service, tenant: str, query: InboxQuery) -> InboxDocument:
    wanted = tenant, query.graph, query.after
    infos, next = asking_page(service.store, *wanted, limit=query.limit, most=limits.LOOKED_AT)
    lines = tuple(inbox_line(service, info) for info in infos)
    return InboxDocument(tenant=tenant, threads=lines, next=next)


def inbox_line(service: Service, info: ThreadInfo) -> InboxLine:
    asked_at = None
    try:
        chain = service.chain(info.key, None)
        asked_at = moment(chain.entries[-1].created_at)
        questions = question_lines(service.decoded(info.key, chain).interrupts)
    except (CodecError, Refused):  # it cannot be read here, or was deleted since
        questions = ()
    return InboxLine(
        thread=info.key.thread,
        graph=info.graph,
        run_id=info.run_id,
        count=info.questions,
        questions=questions,
        asked_at=asked_at,
    )


@Endpoint(
    "POST",
    f"{THREAD}/fork",
    "run",
    body=ForkRequest,
    answers={200: WrittenDocument},
    problems=(404, 409, 500),
)
def fork(request: ApiRequest) -> WrittenDocument:
    """Go back to a checkpoint, in the same thread or in a new one."""
    return fork_thread(request.service, request.key, request.body)


def fork_thread(service: Service, key: ThreadKey, asked: ForkRequest) -> WrittenDocument:
    app = service.app_of(key)
    at = _at(service, key, asked.at)
    named = asked.as_thread
    target = None if named is None else service.key(key.tenant, named)
    return _written(app.fork(key, at, target))


@Endpoint(
    "POST",
    f"{THREAD}/update",
    "admin",
    body=UpdateRequest,
    answers={200: WrittenDocument},
    problems=(404, 409, 422, 500),
)
def update(request: ApiRequest) -> WrittenDocument:
    """Change a thread's state by adding a checkpoint."""
    return update_thread(request.service, request.key, request.body)


def update_thread(service: Service, key: ThreadKey, asked: UpdateRequest) -> WrittenDocument:
    app = service.app_of(key)
    at = None if asked.at is None else _at(service, key, asked.at)
    return _written(app.update_state(key, fitted(app.graph.schema, asked.update, {}), at))


def _at(service: Service, key: ThreadKey, given: int | str) -> At:
    return service.chain(key, given).entries[-1].seq


def _written(known: CheckpointMetadata) -> WrittenDocument:
    key = known.key
    return WrittenDocument(tenant=key.tenant, thread=key.thread, checkpoint=checkpoint_line(known))


@Endpoint(
    "POST",
    f"{THREAD}/tags",
    "run",
    body=TagRequest,
    answers={200: TagDocument},
    problems=(404, 409),
)
def tag(request: ApiRequest) -> TagDocument:
    """Add and remove a thread's tags."""
    return tag_thread(request.service, request.key, request.body)


def tag_thread(service: Service, key: ThreadKey, asked: TagRequest) -> TagDocument:
    service.line(key)
    tags = change_tags(service.store, key, TagChange.of(asked.add, asked.remove))
    return TagDocument(tenant=key.tenant, thread=key.thread, tags=tags)


@Endpoint(
    "POST",
    f"{THREAD}/cancel",
    "run",
    query=CancelQuery,
    answers={200: CancelDocument},
    problems=(404, 409, 500),
)
async def cancel(request: ApiRequest) -> Reply:
    """Close a thread's unfinished run."""
    return Reply(await cancel_thread(request.service, request.key, request.query.run_id))


async def cancel_thread(
    service: Service, key: ThreadKey, run_id: str | None = None
) -> CancelDocument:
    cancelled = await service.off_loop(lambda: service.app_of(key).cancel(key, run_id=run_id))
    return CancelDocument(tenant=key.tenant, thread=key.thread, cancelled=cancelled)


@Endpoint(
    "DELETE", THREAD, "admin", query=DeleteQuery, answers={200: DeleteDocument}, problems=(404, 409)
)
async def delete(request: ApiRequest) -> Reply:
    """Delete a thread, its runs and its subgraphs."""
    take_over: bool = request.query.take_over
    return Reply(await delete_thread(request.service, request.key, take_over=take_over))


async def delete_thread(
    service: Service, key: ThreadKey, *, take_over: bool = False
) -> DeleteDocument:
    def remove() -> bool:
        keyring = service.keyring_of(service.line(key))
        return remove_thread(service.store, key, keyring, take_over=take_over)

    if not await service.off_loop(remove):
        raise Refused(NO_THREAD, 404, "there is no such thread: it was deleted")
    return DeleteDocument(tenant=key.tenant, thread=key.thread, deleted=True)
