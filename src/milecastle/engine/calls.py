"""The log of a flow's calls: one entry for each result, in the reserved channel ``__calls__``.

Rules:

- A record is ``[id, kind, name, value]``, or has how the call ended as a fifth item: ``failed``,
  with the type and the message of the error; ``late``, with its deadline; or ``open``, if the flow
  waits in it, with the deadline. The last record of an id counts.
- The value is encoded by itself: code that changes what it was given cannot change the record.
- The entries of a flow do not begin a new step. ``__began__`` says which entry began it, so the
  ids of its questions and its idempotency keys stay the same.
- A batch consumes the messages of the records in it, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from milecastle.engine.pauses import BeyondRecord
from milecastle.engine.plan import Progress, RunPlan
from milecastle.engine.received import Received
from milecastle.engine.remembering import Writes
from milecastle.engine.reserved_channels import (
    ANSWERED_BY,
    ANSWERS,
    BEGAN,
    CALLS,
    TIMED_OUT,
    WAITS,
)
from milecastle.engine.saving import Saver
from milecastle.engine.waiting import each_wait
from milecastle.errors import InvalidRequest
from milecastle.model.message import Message
from milecastle.model.reducers import APPEND
from milecastle.model.task import RunTask
from milecastle.ports.services import Services
from milecastle.ports.store import Batch

FAILED: Final = "failed"
LATE: Final = "late"
OPEN: Final = "open"

_ENDED_WAITS: Final = (WAITS, ANSWERS, TIMED_OUT, ANSWERED_BY)


class RecordedCall(NamedTuple):
    id: str
    kind: str
    name: str
    value: Any = None
    how: str = ""

    def __str__(self) -> str:
        return shown(self.kind, self.name)


class NewCall(NamedTuple):
    """A record to write. ``message`` is the received message's number.

    ``memory`` is the call's writes to long-term memory.
    """

    record: list[Any]
    message: int | None = None
    memory: Writes = ()


def shown(kind: str, name: str) -> str:
    return f"{kind} '{name}'" if name else kind


class CallLog:
    """A flow run's recorded calls, and its next entries."""

    def __init__(
        self,
        plan: RunPlan,
        progress: Progress,
        saver: Saver | None,
        received: Received,
        services: Services | None,
        is_running: Callable[[], bool],
        remembered: Callable[[RunTask], Writes],
    ) -> None:
        self._journal = plan.journal
        self._codec = plan.journal.codec if plan.journal else plan.replay
        self._is_replay = plan.replay is not None
        self._clock = plan.clock
        self._progress = progress
        self._saver = saver
        self._received = received
        self._has_mail = plan.send is not None
        self.services = services
        self.is_running = is_running
        self.remembered = remembered
        self.thread = plan.journal.key.thread if plan.journal else ""

    def now(self) -> int:
        return self._clock.now()

    def recorded(self) -> list[RecordedCall]:
        reserved = self._progress.reserved
        if CALLS in reserved:
            reserved[CALLS] = list(reserved[CALLS])
        return [RecordedCall(*record) for record in reserved.get(CALLS, ())]

    def ended_waits(self, known: dict[str, RecordedCall]) -> list[NewCall]:
        """Records for the waits that have ended since the flow stopped in them."""
        reserved, found = self._progress.reserved, list[NewCall]()
        answers, late = reserved.get(ANSWERS, {}), reserved.get(TIMED_OUT, {})
        for label, wait in each_wait(reserved):
            id = label.partition("/")[2]
            begun = [id, known[id].kind, known[id].name]
            if label in answers:
                found.append(NewCall([*begun, self.encode(answers[label])]))
            elif label in late:
                found.append(NewCall([*begun, late[label], LATE]))
            elif wait.is_sleep and wait.until is not None and wait.until <= self.now():
                found.append(NewCall([*begun, None]))
        return found

    def begin(self, id: str, call: str) -> None:
        if self._is_replay:
            raise BeyondRecord(f"call {id}, {call}")

    def encode(self, value: Any) -> Any:
        codec = self._codec
        return value if codec is None else codec.encode_state({"value": value})

    def decode(self, value: Any) -> Any:
        codec = self._codec
        return value if codec is None or value is None else codec.decode_state(value)["value"]

    def next_message(self, topics: Sequence[str]) -> Message | None:
        if self._is_replay:
            return None
        if not self._has_mail:
            raise InvalidRequest(
                "messages need a store that has mailboxes: compile(store='sqlite:///...') or "
                "'postgresql://...'"
            )
        return self._received.take_next(topics)

    def return_message(self, message: Message) -> None:
        self._received.give_back(message)

    def note(self, calls: Sequence[NewCall]) -> None:
        journal, progress = self._journal, self._progress
        self.end(calls)
        if journal is None:
            return
        reserved = progress.reserved
        for channel in _ENDED_WAITS if reserved else ():
            if channel in reserved:
                journal.note(progress.hide(channel, None))
        if not calls:
            return
        records = [one.record for one in calls]
        if CALLS in reserved:
            reserved[CALLS].extend(records)
            journal.note([APPEND.code, CALLS, records])
        else:  # nothing can be appended to a channel that was cleared
            journal.note(progress.hide(CALLS, list(records)))
        if BEGAN not in reserved:
            journal.note(progress.hide(BEGAN, [journal.settled, journal.settled_id]))

    def end(self, calls: Sequence[NewCall]) -> None:
        self._received.consume_numbers([one.message for one in calls if one.message is not None])
        for one in calls:
            if one.memory and self._saver is not None:
                self._saver.remember(one.memory)

    def batch(self, calls: Sequence[NewCall], node: str, note: str) -> Batch | None:
        self.note(calls)
        if self._saver is None:
            return None
        self._progress.nodes = (node,)
        return self._saver.call_batch(note)

    def saved(self, batch: Batch) -> None:
        if self._saver is not None:
            self._saver.saved(batch)
        if self.services is not None:
            self.services.heartbeat()

    @property
    def is_released(self) -> bool:
        return self._journal is not None and self._journal.record.status == "queued"
