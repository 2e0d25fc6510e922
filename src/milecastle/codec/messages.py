"""Messages as payloads, sealed for one thread, topic and mark: no other can open them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import PayloadPlace
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import to_datetime
from milecastle.model.message import MAX_MESSAGE_BYTES, Message
from milecastle.ports.mailbox import StoredMessage


def seal_message(
    codec: LogCodec,
    topic: str,
    mark: str,
    value: Any,
    *,
    key: str | None,
    by: str | None,
    carried: Mapping[str, str] | None = None,
) -> bytes:
    more = {"carried": dict(carried)} if carried else {}
    body = codec.encode_state({"value": value, "key": key, "by": by, **more})
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"a message has at most {MAX_MESSAGE_BYTES:,} bytes, and this one {len(body):,}: store "
            "the value elsewhere, and send its name"
        )
    return codec.seal(body, _place(topic, mark))


def open_message(codec: LogCodec, stored: StoredMessage) -> Message:
    found = codec.decode_state(codec.unseal(stored.payload, _place(stored.topic, stored.mark)))
    return Message(
        number=stored.number, topic=stored.topic, sent_at=to_datetime(stored.sent_at), **found
    )


def _place(topic: str, mark: str) -> PayloadPlace:
    return PayloadPlace(task=f"message {len(topic)} {topic} {mark}")
