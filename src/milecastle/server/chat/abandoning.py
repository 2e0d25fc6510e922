"""A new message in a thread whose last run has not ended: it failed, was cancelled, or asks.

That run is closed and its changes are undone, as with ``if_busy="cancel"``. But what was said stays
said: its messages are part of the input of the new run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec.structs

from milecastle.app.application import App
from milecastle.app.runs.submission import Handle
from milecastle.errors import Conflict
from milecastle.graph.messages import Upsert
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus
from milecastle.server.chat.following import is_unfinished
from milecastle.server.chat.messages import MESSAGES
from milecastle.server.documents import RunOptions, RunRequest
from milecastle.server.runs import submit_run
from milecastle.server.service import Service
from milecastle.views.values import anything

__all__ = ["submit_message"]

_LOOKS = 20
"""How often a thread is looked at that others change meanwhile."""


async def submit_message(
    service: Service,
    key: ThreadKey,
    app: App[Any],
    asked: RunRequest,
    closes: Collection[RunStatus],
) -> Handle[Any]:
    """Hand a run over to the workers; a run with one of these statuses is closed for it.

    Only the run that was seen is closed: if another message has started one meanwhile, the thread
    is looked at again, and is busy.
    """
    for _ in range(_LOOKS):
        info = await service.off_loop(service.store.thread, key)
        if info is None or info.status not in closes:
            break
        given = await service.off_loop(_with_kept_messages, service, key, app, asked.input)
        options = RunOptions(if_busy="cancel" if is_unfinished(info.status) else "reject")
        closing = msgspec.structs.replace(asked, input=given, options=options)
        with suppress(Conflict):
            return await submit_run(service, key, closing, instead_of=info.run_id)
    return await submit_run(service, key, asked)


def _with_kept_messages(
    service: Service, key: ThreadKey, app: App[Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """An input with the messages that the thread has, if the graph recognizes them by their ids."""
    channel = app.graph.schema.channels.get(MESSAGES)
    new: Any = given.get(MESSAGES, [])
    has_ids = channel is not None and isinstance(channel.reducer.function, Upsert)
    if not has_ids or not isinstance(new, list):
        return dict(given)
    values = service.decoded(key, service.chain(key, None)).values
    return {**given, MESSAGES: [*values.get(MESSAGES, ()), *anything(new)]}
