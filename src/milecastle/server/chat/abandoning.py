"""A new message in a thread whose last run has not ended: it failed, was cancelled, or asks.

That run is closed and its changes are undone, as with ``if_busy="cancel"``. But what was said stays
said: its messages are part of the input of the new run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.app.application import App
from milecastle.graph.messages import Upsert
from milecastle.model.keys import ThreadKey
from milecastle.server.chat.messages import MESSAGES
from milecastle.server.service import Service
from milecastle.views.values import anything

__all__ = ["with_kept_messages"]


def with_kept_messages(
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
