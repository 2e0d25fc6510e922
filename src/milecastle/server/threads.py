"""Threads: listed, shown, compared, forked, updated, cancelled, deleted."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec.structs
from starlette.responses import Response

from milecastle.app.threads.log import At
from milecastle.app.threads.tagging import change_tags
from milecastle.app.upkeep.removing import delete_thread as remove_thread
from milecastle.errors import CodecError, EncryptionError
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.server import limits
from milecastle.server.documents import (
    DiffQuery,
    ForkRequest,
    HistoryQuery,
    InboxDocument,
    InboxLine,
    InboxQuery,
    TagRequest,
    ThreadsQuery,
    UpdateRequest,
    WholeStateQuery,
)
from milecastle.server.json_answers import json_answer
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.redaction import after_hook
from milecastle.server.request import ApiRequest, Reply
from milecastle.server.service import Service
from milecastle.views.decoding import Decoded
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
from milecastle.views.lines import checkpoint_line, question_lines
from milecastle.views.listing import asking_page, thread_page
from milecastle.views.showing import change_line, changes_between, show_document
from milecastle.views.values import fitted

__all__ = [
    "cancel",
    "cancel_thread",
    "delete",
    "delete_thread",
    "diff",
    "fork",
    "fork_thread",
    "history",
    "inbox_document",
    "inbox_line",
    "list_questions",
    "list_threads",
    "show",
    "show_thread",
    "tag",
    "tag_thread",
    "update",
    "update_thread",
    "whole_state",
]


async def list_threads(request: ApiRequest) -> Reply:
    """The threads of the caller's tenant, by name."""
    return Reply(await request.off_loop(_list, request.service, request.tenant, request.query))


def _list(service: Service, tenant: str, query: ThreadsQuery) -> LsDocument:
    lines, next = thread_page(
        service.store,
        tenant,
        status=query.status,
        graph=query.graph,
        tag=query.tag,
        prefix=query.prefix,
        after=query.after,
        limit=query.limit,
        most=limits.LOOKED_AT,
    )
    return LsDocument(tenant=tenant, threads=lines, next=next)


async def show(request: ApiRequest) -> Reply:
    """A thread at its head or at a checkpoint, with its state."""
    return Reply(
        await request.off_loop(show_thread, request.service, request.key, request.query.at)
    )


def show_thread(service: Service, key: ThreadKey, at: str | None = None) -> ShowDocument:
    """A thread at its head or at a checkpoint, with its state, if that can be decrypted."""
    info = service.line(key)
    shown = service.shown(key, at)
    try:
        decoded = service.decoded(key, shown.chain)
    except EncryptionError as error:
        found = show_document(service.store, key, shown, Decoded({}, {"$": error.message}))
        status = info.status if at is None else found.status
        return msgspec.structs.replace(found, state=None, status=status)
    return show_document(service.store, key, shown, decoded)


async def whole_state(request: ApiRequest) -> Response:
    """The state of a thread, or one of its channels, however large it is."""
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


async def history(request: ApiRequest) -> Reply:
    """The checkpoints of a thread, newest first, without their states."""
    return Reply(await request.off_loop(_history, request.service, request.key, request.query))


def _history(service: Service, key: ThreadKey, query: HistoryQuery) -> HistoryDocument:
    service.line(key)
    entries = service.store.history(key, limit=query.limit, before=query.before)
    lines = tuple(checkpoint_line(CheckpointMetadata.of(key, entry)) for entry in entries)
    return HistoryDocument(tenant=key.tenant, thread=key.thread, checkpoints=lines)


async def diff(request: ApiRequest) -> Reply:
    """The differences between two checkpoints of a thread, by path."""
    return Reply(await request.off_loop(_diff, request.service, request.key, request.query))


def _diff(service: Service, key: ThreadKey, query: DiffQuery) -> DiffDocument:
    service.line(key)
    chains = [service.chain(key, at) for at in (query.a, query.b)]
    old, new = (service.decoded(key, chain) for chain in chains)
    a, b = (f"{key.thread}@{chain.entries[-1].seq}" for chain in chains)
    changes, unread = changes_between(old, new)
    return DiffDocument(
        tenant=key.tenant,
        a=a,
        b=b,
        changes=tuple(map(change_line, changes)),
        not_compared=unread,
    )


async def list_questions(request: ApiRequest) -> Reply:
    """The open questions of the caller's tenant, by thread."""
    found = await request.off_loop(inbox_document, request.service, request.tenant, request.query)
    return Reply(found)


def inbox_document(service: Service, tenant: str, query: InboxQuery) -> InboxDocument:
    """A page of open questions, for which so many threads are looked at."""
    wanted = tenant, query.graph, query.after
    infos, next = asking_page(service.store, *wanted, limit=query.limit, most=limits.LOOKED_AT)
    lines = tuple(inbox_line(service, info) for info in infos)
    return InboxDocument(tenant=tenant, threads=lines, next=next)


def inbox_line(service: Service, info: ThreadInfo) -> InboxLine:
    """The open questions of a thread; none if they cannot be read here."""
    try:
        chain = service.chain(info.key, None)
        questions = question_lines(service.decoded(info.key, chain).interrupts)
    except (CodecError, Refused):  # it cannot be read here, or was deleted since
        questions = ()
    return InboxLine(
        thread=info.key.thread,
        graph=info.graph,
        run_id=info.run_id,
        count=info.questions,
        questions=questions,
    )


async def fork(request: ApiRequest) -> Reply:
    """Go back to a checkpoint, in the same thread or in a new one."""
    asked: ForkRequest = request.body
    return Reply(await request.off_loop(fork_thread, request.service, request.key, asked))


def fork_thread(service: Service, key: ThreadKey, asked: ForkRequest) -> WrittenDocument:
    """Go back to a checkpoint."""
    app = service.app_of(key)
    at = _at(service, key, asked.at)
    named = asked.as_thread
    target = None if named is None else service.key(key.tenant, named)
    return _written(app.fork(key, at, target))


async def update(request: ApiRequest) -> Reply:
    """Change the state of a thread by adding a checkpoint."""
    asked: UpdateRequest = request.body
    return Reply(await request.off_loop(update_thread, request.service, request.key, asked))


def update_thread(service: Service, key: ThreadKey, asked: UpdateRequest) -> WrittenDocument:
    """Change the state of a thread by adding a checkpoint."""
    app = service.app_of(key)
    at = None if asked.at is None else _at(service, key, asked.at)
    return _written(app.update_state(key, fitted(app.graph.schema, asked.update, {}), at))


def _at(service: Service, key: ThreadKey, given: int | str) -> At:
    """The seq of a checkpoint, which must exist."""
    return service.chain(key, given).entries[-1].seq


def _written(known: CheckpointMetadata) -> WrittenDocument:
    key = known.key
    return WrittenDocument(tenant=key.tenant, thread=key.thread, checkpoint=checkpoint_line(known))


async def tag(request: ApiRequest) -> Reply:
    """Add and remove tags of a thread."""
    asked: TagRequest = request.body
    return Reply(await request.off_loop(tag_thread, request.service, request.key, asked))


def tag_thread(service: Service, key: ThreadKey, asked: TagRequest) -> TagDocument:
    """Add and remove tags of a thread, whatever its graph is."""
    service.line(key)
    tags = change_tags(service.store, key, TagChange.of(asked.add, asked.remove))
    return TagDocument(tenant=key.tenant, thread=key.thread, tags=tags)


async def cancel(request: ApiRequest) -> Reply:
    """Close the unfinished run of a thread."""
    return Reply(await cancel_thread(request.service, request.key))


async def cancel_thread(
    service: Service, key: ThreadKey, run_id: str | None = None
) -> CancelDocument:
    """Close the unfinished run of a thread; with ``run_id``, only that one."""
    cancelled = await service.off_loop(lambda: service.app_of(key).cancel(key, run_id=run_id))
    return CancelDocument(tenant=key.tenant, thread=key.thread, cancelled=cancelled)


async def delete(request: ApiRequest) -> Reply:
    """Delete a thread, its runs, its subgraphs and its key."""
    take_over: bool = request.query.take_over
    return Reply(await delete_thread(request.service, request.key, take_over=take_over))


async def delete_thread(
    service: Service, key: ThreadKey, *, take_over: bool = False
) -> DeleteDocument:
    """Delete a thread, which must exist, whatever has written it."""

    def remove() -> bool:
        keyring = service.keyring_of(service.line(key))
        return remove_thread(service.store, key, keyring, take_over=take_over)

    if not await service.off_loop(remove):
        raise Refused(NOT_FOUND, 404, "there is no such thread")
    return DeleteDocument(tenant=key.tenant, thread=key.thread, deleted=True)
