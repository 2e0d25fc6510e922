"""Messages to threads: an unread message, and the names that topics may have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import check_name
from milecastle.support.reading import Brief

MAX_MESSAGE_BYTES: Final = 1 << 20
_MAX_TOPIC_BYTES: Final = 128
_RESERVED: Final = "__"


class Message(Brief, msgspec.Struct, frozen=True, kw_only=True):
    """A message sent to a thread. ``number`` is its place among all the thread's messages.

    ``key`` is the sender's idempotency key, ``by`` the sender's name for itself, if given.
    ``carried`` is data from the sender's observers.
    """

    number: int
    topic: str
    value: Any
    key: str | None
    by: str | None
    sent_at: datetime
    carried: Mapping[str, str] = {}

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("number", self.number), ("topic", self.topic), ("sent_at", self.sent_at)]


def check_topic(topic: object) -> None:
    if topic != "":
        check_name("topic", topic, _MAX_TOPIC_BYTES)
    if str(topic).startswith(_RESERVED):
        raise InvalidRequest(f"a topic must not start with '{_RESERVED}': such names are reserved")
