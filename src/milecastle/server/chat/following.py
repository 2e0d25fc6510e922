"""One run's events, taken from its thread's ``/v1`` events until the run stops."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final

import msgspec
import msgspec.json

from milecastle.app.runs.submission import Handle
from milecastle.model.keys import ThreadKey
from milecastle.server.budget import ValueBudget, within
from milecastle.server.documents import EmittedEvent, MissedEvent, StateEvent, StoppedEvent
from milecastle.server.events import read_thread
from milecastle.server.redaction import redacted
from milecastle.server.service import Service
from milecastle.server.threads import show_thread
from milecastle.views.documents import RunLine, ShowDocument
from milecastle.views.lines import run_line
from milecastle.views.values import json_size

_LARGE: Final = 1 << 20

_UNFINISHED: Final = frozenset({"queued", "running", "sleeping"})
_READERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "state": msgspec.json.Decoder(StateEvent),
    "emit": msgspec.json.Decoder(EmittedEvent),
    "missed": msgspec.json.Decoder(MissedEvent),
    "stopped": msgspec.json.Decoder(StoppedEvent),
}


class RunStopped(msgspec.Struct, frozen=True):
    """The run has stopped: its record, and the thread at its last checkpoint."""

    run: RunLine
    shown: ShowDocument


ThreadEvent = StateEvent | EmittedEvent | MissedEvent | StoppedEvent
RunEvent = StateEvent | EmittedEvent | MissedEvent | RunStopped | None
"""``None``: nothing happened for a while."""


def is_unfinished(status: str) -> bool:
    return status in _UNFINISHED


async def follow_run(
    service: Service, key: ThreadKey, run_id: str, after: int
) -> AsyncGenerator[RunEvent, None]:
    """A run's events from above a seq, without those of other runs.

    The last one is ``RunStopped``, unless the thread is deleted. A thread that does not exist or
    cannot be read is refused before there are events.
    """
    return _events(service, key, run_id, await read_thread(service, key, after))


async def _events(
    service: Service, key: ThreadKey, run_id: str, source: AsyncGenerator[bytes, None]
) -> AsyncGenerator[RunEvent, None]:
    seq = 0
    async with aclosing(source) as texts:
        async for text in texts:
            event: ThreadEvent | None = await service.if_large(len(text), _event, text)
            is_ours = not isinstance(event, StateEvent) or event.run_id == run_id
            if isinstance(event, StoppedEvent) or not is_ours:
                stopped = await service.off_loop(_stopped, service, key, run_id, seq)
                if stopped is not None:
                    yield stopped
                    return
            elif not isinstance(event, EmittedEvent) or event.run_id == run_id:
                seq = event.seq if isinstance(event, StateEvent) else seq
                yield event


async def translated(
    service: Service, event: RunEvent, texts: Callable[[], Iterable[bytes]]
) -> list[bytes]:
    """An event's texts for another protocol, off the event loop if it may be large."""
    if isinstance(event, EmittedEvent):
        return await service.if_large(json_size(event.value, _LARGE), lambda: list(texts()))
    if isinstance(event, StateEvent | RunStopped):
        return await service.off_loop(lambda: list(texts()))
    return list(texts())


def _event(text: bytes) -> Any:
    if not text:
        return None
    fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if line)
    return _READERS[fields[b"event"].decode()].decode(fields[b"data"])


def _stopped(service: Service, key: ThreadKey, run_id: str, seq: int) -> RunStopped | None:
    run = service.store.run(key, run_id)
    if run is None or is_unfinished(run.status):
        return None
    line = run_line(run, service.store.failure(key, run_id))
    document = shown(service, key, str(seq) if seq else None)
    return RunStopped(redacted(line, service.redact), document)


def shown(
    service: Service, key: ThreadKey, at: str | None = None, budget: ValueBudget | None = None
) -> ShowDocument:
    """A thread at its head or at a checkpoint, as ``/v1`` shows it.

    Several in one answer share a budget.
    """
    document = redacted(show_thread(service, key, at), service.redact)
    return within(document, ValueBudget() if budget is None else budget)


def seq_of(service: Service, handle: Handle[Any]) -> int:
    """Checkpoint at which a run was queued; the head if none was written."""
    if handle.seq is not None:
        return handle.seq
    head = service.store.head(handle.thread)
    return 1 if head is None else head.seq
