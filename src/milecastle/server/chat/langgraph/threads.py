"""Threads and their states, for LangGraph's SDK."""

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
from milecastle.server.chat.langgraph.describing import (
    answered,
    state_of,
    thread_of,
    thread_status,
)
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

__all__ = [
    "copy_thread",
    "create_thread",
    "drop_thread",
    "get_history",
    "get_state",
    "get_state_at",
    "get_thread",
    "post_state",
    "post_state_at",
    "search_threads",
]

_MOST: Final = 10_000
"""Threads that a search looks at."""

_PAGE: Final = 100


async def create_thread(request: ApiRequest) -> Response:
    """Name a thread. Nothing is stored before its first run."""
    asked: ThreadInput = request.body
    key = request.service.key(request.tenant, asked.thread_id or str(uuid4()))
    return await answered(request, _created, request.service, key, asked)


def _created(service: Service, key: ThreadKey, asked: ThreadInput) -> SdkThread:
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


async def get_thread(request: ApiRequest) -> Response:
    """A thread with its values."""
    return await answered(request, _thread, request.service, request.key)


def _thread(service: Service, key: ThreadKey, budget: ValueBudget | None = None) -> SdkThread:
    if budget is not None and budget.is_full:
        document = _unread(service, key, service.chain(key, None).entries[-1])
    else:
        document = shown(service, key, None, budget)
    first = next(service.store.history(key, before=2), None)
    created = document.checkpoint.timestamp if first is None else moment(first.created_at)
    return thread_of(document, created)


def _unread(service: Service, key: ThreadKey, entry: Entry) -> ShowDocument:
    """A checkpoint without its state: an answer has no room for more of them."""
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


async def search_threads(request: ApiRequest) -> Response:
    """Threads of the caller's tenant, those that changed last first."""
    return await answered(request, _search, request.service, request.tenant, request.body)


def _search(service: Service, tenant: str, asked: SearchRequest) -> list[SdkThread]:
    infos = islice(_recent(service, tenant), _MOST)
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
    """Delete a thread."""
    await delete_thread(request.service, request.key)
    return Response(status_code=204)


async def copy_thread(request: ApiRequest) -> Response:
    """Copy a thread as it is now to a thread with a new name."""
    return await answered(request, _copied, request.service, request.key)


def _copied(service: Service, key: ThreadKey) -> SdkThread:
    head = service.chain(key, None).entries[-1].seq
    name = str(uuid4())
    fork_thread(service, key, ForkRequest(at=head, as_thread=name))
    return _thread(service, service.key(key.tenant, name))


# ---- states


async def get_state(request: ApiRequest) -> Response:
    """A thread at its head."""
    return await answered(request, _state, request)


async def get_state_at(request: ApiRequest) -> Response:
    """A thread at a checkpoint."""
    at = request.path["checkpoint"]
    return await answered(request, _state, request, at)


async def post_state_at(request: ApiRequest) -> Response:
    """A thread at a checkpoint."""
    asked: CheckpointRequest = request.body
    at = asked.checkpoint.checkpoint_id
    return await answered(request, _state, request, at)


def _state(request: ApiRequest, at: str | None = None) -> ThreadState:
    return state_of(shown(request.service, request.key, at))


async def post_state(request: ApiRequest) -> Response:
    """Change the state of a thread by adding a checkpoint."""
    asked: StateUpdate = request.body
    at = asked.checkpoint_id or (asked.checkpoint.checkpoint_id if asked.checkpoint else None)
    change = UpdateRequest(update=asked.values or {}, at=at)
    found = await request.off_loop(update_thread, request.service, request.key, change)
    place = SdkCheckpoint(thread_id=found.thread, checkpoint_id=found.checkpoint.id)
    return await answered(request, dict, {"checkpoint": place})


async def get_history(request: ApiRequest) -> Response:
    """The states of a thread, newest first; none, if it has not been run."""
    return await answered(request, _history, request.service, request.key, request.body)


def _history(service: Service, key: ThreadKey, asked: HistoryRequest) -> list[ThreadState]:
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
