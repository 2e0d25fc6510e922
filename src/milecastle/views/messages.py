from __future__ import annotations

from milecastle.model.message import Message
from milecastle.views.documents import MessageLine
from milecastle.views.lines import moment
from milecastle.views.values import plain


def message_line(message: Message) -> MessageLine:
    return MessageLine(
        number=message.number,
        topic=message.topic,
        key=message.key,
        by=message.by,
        sent_at=moment(message.sent_at),
        value=plain(message.value),
    )
