"""Notifications in histories: a receiver that answers badly at first, and what it was sent."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from zlib import crc32

from milecastle import App, StateGraph
from milecastle.fleet.posting import NotPosted
from milecastle.model.keys import ThreadKey
from milecastle.model.notices import is_unsettled
from milecastle.model.run import ThreadInfo
from tests.model.history import History

__all__ = ["add_hook", "note_told", "receiving", "undelivered"]

_SECRET = "MODEL_HOOK_SECRET"


def add_hook(graph: StateGraph[Any]) -> None:
    events: Any = ("completed", "failed", "question")
    graph.on(*events, url="https://hooks.example/model", secret=f"env:{_SECRET}")


@contextmanager
def receiving(world: Any) -> Generator[None, None, None]:
    """Every delivery is noted, and refused up to twice; workers repeat it after a second."""

    async def post(target: Any, headers: Any, body: bytes, **more: Any) -> int:
        id, data = headers["webhook-id"], json.loads(body)
        said = data["data"]
        mark = said.get("question_id") or said["run"]
        world.note("delivered", f"{id}={data['type']} {said['thread']} {mark}")
        await asyncio.sleep(0.01)
        if world.fails(id, crc32(id.encode()) % 3):
            raise NotPosted("on purpose")
        return 204

    with ExitStack() as patches:
        secret = {_SECRET: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
        patches.enter_context(patch.dict(os.environ, secret))
        patches.enter_context(patch("milecastle.fleet.deliveries.post", post))
        patches.enter_context(patch("milecastle.app.deliveries.DELAYS", (1.0,) * 5))
        yield


def undelivered(
    store: Any, tenants: Iterable[str], retry: Callable[[ThreadKey], object]
) -> list[str]:
    """Deliveries that are under way; one that has failed is retried."""
    left = list(_unfinished_deliveries(store, tenants))
    for info in left:
        if info.status == "failed" and info.due_at is None:
            retry(info.key)
    return [f"{info.key.thread} {info.status}, due {info.due_at}" for info in left]


def note_told(history: History, app: App[Any], info: ThreadInfo) -> bool:
    """Whether a thread's events are delivered, as they are to be before somebody does more."""
    if is_unsettled(info):
        return False
    for event in _owed_events(app, info):
        history.note("due", event)
    return True


def _unfinished_deliveries(store: Any, tenants: Iterable[str]) -> Iterator[ThreadInfo]:
    for tenant in tenants:
        for info in store.threads(tenant):
            is_over = info.status in ("completed", "cancelled") and info.due_at is None
            if info.key.thread.startswith("delivery@@") and not (is_over and not info.worker):
                yield info


def _owed_events(app: App[Any], info: ThreadInfo) -> Iterator[str]:
    """The events that a thread stands for, if it waits for somebody."""
    if info.status == "failed" and info.due_at is None and not info.worker:
        yield f"failed {info.key.thread} {info.run_id}"
    if info.status == "interrupted":
        for one in app.state(info.key).interrupts:
            if one.asks:
                yield f"question {info.key.thread} {one.id}"
