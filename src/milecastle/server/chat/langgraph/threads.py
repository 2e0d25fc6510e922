from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from milecastle.app.threads.children import is_child
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
from milecastle.server.budget import NO_STATE, ValueBudget
from milecastle.server.chat.following import shown
from milecastle.server.chat.langgraph.describing import state_of, thread_of, thread_status
from milecastle.server.chat.langgraph.documents import (
    CheckpointRequest,
    HistoryRequest,
    SdkCheckpoint,
    SdkThread,
    SearchRequest,
    StateUpdate,
    ThreadInput,
    ThreadMetadata,
    ThreadState,
)
from milecastle.server.documents import ForkRequest, UpdateRequest
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.server.threads import delete_thread, fork_thread, update_thread
from milecastle.views.documents import ShowDocument
from milecastle.views.lines import checkpoint_line, moment, run_line

_MOST: Final = 10_000
"""Threads that a search looks at."""

_PAGE: Final = 100


def create_thread(request: ApiRequest) -> SdkThread:
    service = request.service
    asked: ThreadInput = request.body
    key = service.key(request.tenant, asked.thread_id or str(uuid4()))
    if service.store.thread(key) is not None:
        if asked.if_exists != "do_nothing":
            raise InvalidRequest(f"thread '{key.thread}' exists")
        return _thread(service, key)
    now = moment(datetime.now(UTC))
    graph = _graph(asked.metadata)
    return SdkThread(
        thread_id=key.thread,
        created_at=now,
        updated_at=now,
        metadata={} if graph is None else {"graph_id": graph, "assistant_id": graph},
        status="idle",
        values=None,
        interrupts={},
    )


def _graph(metadata: ThreadMetadata | None) -> str | None:
    return None if metadata is None else metadata.graph_id or metadata.assistant_id


def get_thread(request: ApiRequest) -> SdkThread:
    return _thread(request.service, request.key)


def _thread(service: Service, key: ThreadKey, budget: ValueBudget | None = None) -> SdkThread:
    if budget is not None and budget.is_full:
        document = _unread(service, key, service.chain(key, None).entries[-1])
    else:
        document = shown(service, key, None, budget)
    first = next(service.store.history(key, before=2), None)
    created = document.checkpoint.timestamp if first is None else moment(first.created_at)
    return thread_of(document, created)


def _unread(service: Service, key: ThreadKey, entry: Entry) -> ShowDocument:
    info, run = service.line(key), service.store.run(key, entry.run_id)
    return ShowDocument(
        tenant=key.tenant,
        thread=key.thread,
        checkpoint=checkpoint_line(CheckpointMetadata.of(key, entry)),
        status=info.status if run is None else run.status,
        run=None if run is None else run_line(run, None),
        state=NO_STATE,
        questions=(),
        undecoded={},
    )


def search_threads(request: ApiRequest) -> list[SdkThread]:
    service = request.service
    asked: SearchRequest = request.body
    infos = islice(_recent(service, request.tenant), _MOST)
    fitting = (info for info in infos if _fits(info, asked))
    page = islice(fitting, asked.offset, asked.offset + asked.limit)
    budget = ValueBudget()
    return [_thread(service, info.key, budget) for info in page]


def _recent(service: Service, tenant: str) -> Iterator[ThreadInfo]:
    after: str | None = None
    while True:
        page = service.store.recent_threads(tenant, limit=_PAGE, after=after)
        yield from (info for info in page.items if not is_child(info.key))
        after = page.after
        if after is None:
            return


def _fits(info: ThreadInfo, asked: SearchRequest) -> bool:
    return (
        _graph(asked.metadata) in (None, info.graph)
        and (asked.status is None or thread_status(info.status) == asked.status)
        and (asked.ids is None or info.key.thread in asked.ids)
    )


async def drop_thread(request: ApiRequest) -> Response:
    await delete_thread(request.service, request.key)
    return Response(status_code=204)


def copy_thread(request: ApiRequest) -> SdkThread:
    service, key = request.service, request.key
    head = service.chain(key, None).entries[-1].seq
    name = str(uuid4())
    fork_thread(service, key, ForkRequest(at=head, as_thread=name))
    return _thread(service, service.key(key.tenant, name))


# ---- states


def get_state(request: ApiRequest) -> ThreadState:
    return state_of(shown(request.service, request.key))


def get_state_at(request: ApiRequest) -> ThreadState:
    return state_of(shown(request.service, request.key, request.path["checkpoint"]))


def post_state_at(request: ApiRequest) -> ThreadState:
    asked: CheckpointRequest = request.body
    return state_of(shown(request.service, request.key, asked.checkpoint.checkpoint_id))


def post_state(request: ApiRequest) -> dict[str, SdkCheckpoint]:
    asked: StateUpdate = request.body
    at = asked.checkpoint_id or (asked.checkpoint.checkpoint_id if asked.checkpoint else None)
    change = UpdateRequest(update=asked.values or {}, at=at)
    found = update_thread(request.service, request.key, change)
    place = SdkCheckpoint(thread_id=found.thread, checkpoint_id=found.checkpoint.id)
    return {"checkpoint": place}


def get_history(request: ApiRequest) -> list[ThreadState]:
    """List a thread's states, newest first; none before its first run."""
    service, key = request.service, request.key
    asked: HistoryRequest = request.body
    if service.store.thread(key) is None:
        return []
    before: Any = asked.before
    id: str | None = before.checkpoint_id if isinstance(before, SdkCheckpoint) else before
    seq = None if id is None else service.chain(key, id).entries[-1].seq
    budget, found = ValueBudget(), list[ThreadState]()
    for entry in service.store.history(key, limit=asked.limit, before=seq):
        is_read = not budget.is_full
        document = shown(service, key, str(entry.seq), budget) if is_read else None
        found.append(state_of(document or _unread(service, key, entry)))
    return found
