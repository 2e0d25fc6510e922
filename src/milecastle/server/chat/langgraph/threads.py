"""Threads and their states, for LangGraph's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final
from uuid import uuid4

import msgspec
from starlette.responses import Response

from milecastle.app.runtime.children import is_child
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import ThreadInfo
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
from milecastle.server.exchange import Exchange
from milecastle.server.service import Service
from milecastle.server.threads import delete_thread, fork_thread, update_thread
from milecastle.views.lines import moment

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


async def create_thread(exchange: Exchange) -> Response:
    """Name a thread. Nothing is stored before its first run."""
    asked: ThreadInput = exchange.body
    key = exchange.service.key(exchange.tenant, asked.thread_id or str(uuid4()))
    found = await exchange.off_loop(_created, exchange.service, key, asked)
    return answered(found)


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


async def get_thread(exchange: Exchange) -> Response:
    """A thread with its values."""
    return answered(await exchange.off_loop(_thread, exchange.service, exchange.key))


def _thread(service: Service, key: ThreadKey) -> SdkThread:
    document = shown(service, key)
    first = next(iter(service.store.entries(key, limit=1)), None)
    created = document.checkpoint.timestamp if first is None else moment(first.created_at)
    return thread_of(document, created)


async def search_threads(exchange: Exchange) -> Response:
    """Threads of the caller's tenant, those that changed last first."""
    found = await exchange.off_loop(_search, exchange.service, exchange.tenant, exchange.body)
    return answered(found)


def _search(service: Service, tenant: str, asked: SearchRequest) -> list[SdkThread]:
    infos = islice(_recent(service, tenant), _MOST)
    fitting = (info for info in infos if _fits(info, asked))
    page = islice(fitting, asked.offset, asked.offset + asked.limit)
    return [_thread(service, info.key) for info in page]


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


async def drop_thread(exchange: Exchange) -> Response:
    """Delete a thread."""
    await delete_thread(exchange.service, exchange.key)
    return Response(status_code=204)


async def copy_thread(exchange: Exchange) -> Response:
    """Copy a thread as it is now to a thread with a new name."""
    return answered(await exchange.off_loop(_copied, exchange.service, exchange.key))


def _copied(service: Service, key: ThreadKey) -> SdkThread:
    head = service.chain(key, None).entries[-1].seq
    name = str(uuid4())
    fork_thread(service, key, ForkRequest(at=head, as_thread=name))
    return _thread(service, service.key(key.tenant, name))


# ---- states


async def get_state(exchange: Exchange) -> Response:
    """A thread at its head."""
    return answered(state_of(await exchange.off_loop(shown, exchange.service, exchange.key)))


async def get_state_at(exchange: Exchange) -> Response:
    """A thread at a checkpoint."""
    at = exchange.path["checkpoint"]
    return answered(state_of(await exchange.off_loop(shown, exchange.service, exchange.key, at)))


async def post_state_at(exchange: Exchange) -> Response:
    """A thread at a checkpoint."""
    asked: CheckpointRequest = exchange.body
    at = asked.checkpoint.checkpoint_id
    return answered(state_of(await exchange.off_loop(shown, exchange.service, exchange.key, at)))


async def post_state(exchange: Exchange) -> Response:
    """Change the state of a thread by adding a checkpoint."""
    asked: StateUpdate = exchange.body
    at = asked.checkpoint_id or (asked.checkpoint.checkpoint_id if asked.checkpoint else None)
    change = UpdateRequest(update=asked.values or {}, at=at)
    found = await exchange.off_loop(update_thread, exchange.service, exchange.key, change)
    place = SdkCheckpoint(thread_id=found.thread, checkpoint_id=found.checkpoint.id)
    return answered({"checkpoint": msgspec.to_builtins(place)})


async def get_history(exchange: Exchange) -> Response:
    """The states of a thread, newest first; none, if it has not been run."""
    found = await exchange.off_loop(_history, exchange.service, exchange.key, exchange.body)
    return answered(found)


def _history(service: Service, key: ThreadKey, asked: HistoryRequest) -> list[ThreadState]:
    if service.store.thread(key) is None:
        return []
    before: Any = asked.before
    id: str | None = before.checkpoint_id if isinstance(before, SdkCheckpoint) else before
    seq = None if id is None else service.chain(key, id).entries[-1].seq
    entries = service.store.history(key, limit=asked.limit, before=seq)
    return [state_of(shown(service, key, str(entry.seq))) for entry in entries]
