"""Messages that tasks of a step receive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Thread

from milecastle.engine.received import Received
from milecastle.model.message import Message
from milecastle.model.task import RunFacts, RunTask

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message(number: int, topic: str) -> Message:
    return Message(number=number, topic=topic, value=number, key=None, by=None, sent_at=NOW)


def test_messages_of_several_topics_come_in_their_order_though_sent_between_two_reads() -> None:
    """A node that runs again would receive the older first. Fails if each topic is read once."""
    stored: list[Message] = []

    def look(topic: str, after: int) -> Sequence[Message]:
        found = [one for one in stored if one.topic == topic and one.number > after]
        if not stored:
            stored.extend([message(1, "a"), message(2, "b")])
        return found

    received = Received(look)
    task = RunTask(RunFacts("run", "graph", (), None, None), "node", {}, "node", 1)
    found = [received.next(task, ("a", "b")) for _ in range(3)]
    assert [one and one.number for one in found] == [1, 2, None]


def test_the_event_loop_does_not_wait_while_the_store_is_read() -> None:
    """The run settles its tasks on the loop. Fails if the lock is held during a read."""
    ended: list[bool] = []

    def look(topic: str, after: int) -> Sequence[Message]:
        settling = Thread(target=received.keep, args=("other",), daemon=True)
        settling.start()
        settling.join(2)
        ended.append(not settling.is_alive())
        return []

    received = Received(look)
    task = RunTask(RunFacts("run", "graph", (), None, None), "node", {}, "node", 1)
    assert received.next(task, ("a",)) is None
    assert ended == [True]
