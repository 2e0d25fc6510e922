"""One thread's messages in memory. The caller holds the lock."""

from __future__ import annotations

from collections.abc import Iterable

from milecastle.ports.mailbox import Consumed, Marks, StoredMessage


class Messages:
    """Unread and consumed messages by number, and the numbers by mark.

    An interrupted call leaves a mark without its message: that mark counts as new.
    """

    __slots__ = ("consumed", "last", "numbers", "unread")

    def __init__(self) -> None:
        self.last = 0
        self.numbers: dict[str, int] = {}
        self.unread: dict[int, StoredMessage] = {}
        self.consumed: dict[int, Consumed] = {}

    def find(self, mark: str) -> int | None:
        number = self.numbers.get(mark)
        return number if number in self.unread or number in self.consumed else None

    def add(self, message: StoredMessage) -> None:
        self.last = max(self.last, message.number)
        self.numbers[message.mark] = message.number
        self.unread[message.number] = message

    def consume(self, numbers: Iterable[int], seq: int) -> None:
        for number in numbers:
            message = self.unread.get(number)
            if message is not None:
                self.consumed[number] = Consumed(number=number, mark=message.mark, seq=seq)
                del self.unread[number]

    def is_unread(self, topic: str, after: int, besides: Iterable[int] = ()) -> bool:
        return any(
            message.topic == topic and number > after and number not in besides
            for number, message in self.unread.items()
        )

    def first_sent_at(self, topic: str, now: int, after: int) -> int:
        sent = (
            message.sent_at
            for number, message in self.unread.items()
            if message.topic == topic and number > after
        )
        return next(sent, now)

    def pruned(self, cut: int) -> Messages:
        kept = Messages()
        kept.last, kept.unread = self.last, self.unread
        kept.consumed = {number: one for number, one in self.consumed.items() if one.seq >= cut}
        numbers = self.numbers.items()
        kept.numbers = {
            mark: number
            for mark, number in numbers
            if number in kept.unread or number in kept.consumed
        }
        return kept

    def restore(self, messages: Iterable[StoredMessage], marks: Marks) -> None:
        for one in marks.consumed:
            self.numbers[one.mark] = one.number
            self.consumed[one.number] = one
            self.unread.pop(one.number, None)
        for message in messages:
            self.add(message)
            self.consumed.pop(message.number, None)
        self.unread = dict(sorted(self.unread.items()))
        self.last = max(self.last, marks.last, *self.consumed)

    def marks(self) -> Marks:
        return Marks(
            last=self.last, consumed=tuple(one for _, one in sorted(self.consumed.items()))
        )
