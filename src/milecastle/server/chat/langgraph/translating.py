"""A run as events for LangGraph's streams.

Rules:

- A checkpoint's last event has its seq as id: a reader cut off before it gets all its events again,
  and one that has it gets none twice.
- The first event has the id of the checkpoint before the run, so a stream can be resumed from there
  on.
- A committed message is sent whole, also if parts of it were emitted: clients replace it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.server.chat.following import RunEvent, RunStopped
from milecastle.server.chat.langgraph.describing import (
    INTERRUPT,
    interrupt_of,
    run_status,
    values_of,
)
from milecastle.server.chat.messages import chunk_of, messages_in
from milecastle.server.documents import EmittedEvent, StateEvent
from milecastle.server.event_stream import event_text
from milecastle.views.documents import QuestionLine
from milecastle.views.values import anything, as_json

MODES: Final = ("values", "updates", "messages", "messages-tuple", "custom")


def known_modes(given: str | Iterable[str]) -> tuple[str, ...]:
    """The modes a request asks for.

    Raises:
        InvalidRequest: Milecastle does not have one of them.
    """
    asked = [given] if isinstance(given, str) else [*given]
    found = tuple(dict.fromkeys(mode for mode in asked if mode))
    if not set(found) <= set(MODES):
        raise InvalidRequest(f"stream_mode takes {', '.join(MODES)}")
    return found


class SdkTranslation:
    """Translates one run. ``state`` is from the checkpoint before the first one sent."""

    def __init__(self, thread: str, run_id: str, modes: Iterable[str], state: Any) -> None:
        self._thread = thread
        self._run_id = run_id
        self._modes = frozenset(modes)
        self._state: dict[str, Any] = values_of(state)

    def begin(self, after: int) -> bytes:
        return event_text("metadata", as_json({"run_id": self._run_id, "attempt": 1}), after)

    def texts(self, event: RunEvent, questions: Iterable[QuestionLine] = ()) -> Iterator[bytes]:
        if event is None:
            yield b""
        elif isinstance(event, StateEvent):
            parts = [*self._committed(event, [*questions])]
            for at, (name, data) in enumerate(parts):
                id = event.seq if at == len(parts) - 1 else None
                yield event_text(name, as_json(data), id)
        elif isinstance(event, EmittedEvent):
            for name, data in self._emitted(event):
                yield event_text(name, as_json(data))
        elif isinstance(event, RunStopped):
            yield self._stopped(event)

    def _committed(
        self, event: StateEvent, questions: list[QuestionLine]
    ) -> Iterator[tuple[str, Any]]:
        old, new = self._state, values_of(event.state)
        self._state = new
        asked = [msgspec.to_builtins(interrupt_of(line)) for line in questions]
        if event.source != "input":
            known = {one["id"]: one for one in messages_in(old)}
            for message in messages_in(new):
                if known.get(message["id"]) != message:
                    yield from self._message(message, event, "messages/complete")
        if "updates" in self._modes and event.source == "step":
            yield "updates", _updates(event.nodes, old, new)
        if "updates" in self._modes and asked:
            yield "updates", {INTERRUPT: asked}
        if "values" in self._modes:
            yield "values", {**new, INTERRUPT: asked} if asked else new

    def _emitted(self, event: EmittedEvent) -> Iterator[tuple[str, Any]]:
        chunk = chunk_of(event.value)
        if chunk is not None:
            part = {"id": chunk.id, "type": "AIMessageChunk", "content": chunk.delta}
            yield from self._message(part, event, "")
        elif "custom" in self._modes:
            yield "custom", event.value

    def _message(
        self, message: dict[str, Any], event: StateEvent | EmittedEvent, complete: str
    ) -> Iterator[tuple[str, Any]]:
        nodes = event.nodes if isinstance(event, StateEvent) else (event.node,)
        about = {
            "langgraph_node": nodes[0] if nodes else None,
            "langgraph_step": event.step,
            "run_id": self._run_id,
            "thread_id": self._thread,
        }
        if "messages-tuple" in self._modes:
            yield "messages", [message, about]
        if "messages" in self._modes and complete:
            yield complete, [message]

    def _stopped(self, event: RunStopped) -> bytes:
        failure = event.run.failure
        if event.run.status == "failed":
            kind = failure.error_type if failure else "RunFailed"
            message = failure.message if failure else "the run failed"
            return event_text("error", as_json({"error": kind, "message": message}))
        status = run_status(event.run.status)
        return event_text("end", as_json({"run_id": self._run_id, "status": status}))


def _updates(nodes: tuple[str, ...], old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if len(nodes) != 1:
        return dict.fromkeys(nodes)
    changed = {
        name: _added(old.get(name), value)
        for name, value in new.items()
        if name not in old or old[name] != value
    }
    return {nodes[0]: changed}


def _added(old: Any, new: Any) -> Any:
    if isinstance(old, list) and isinstance(new, list):
        before: list[Any] = anything(old)
        after: list[Any] = anything(new)
        if after[: len(before)] == before:
            return after[len(before) :]
    return anything(new)
