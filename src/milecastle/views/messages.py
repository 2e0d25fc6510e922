"""Unread messages for display."""

from __future__ import annotations

from milecastle.model.message import Message
from milecastle.views.documents import MessageLine
from milecastle.views.values import plain


def message_line(message: Message) -> MessageLine:
    return MessageLine(
        number=message.number,
        topic=message.topic,
        key=message.key,
        by=message.by,
        sent_at=message.sent_at.isoformat(),
        value=plain(message.value),
    )
