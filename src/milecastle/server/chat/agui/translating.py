"""A run as AG-UI events, in an order its clients accept.

Rules:

- A run's first event is its start, then comes a snapshot of the state; each later state is a patch
  to the one before, as JSON Patch (RFC 6902).
- Open steps and messages are ended before the run is.
- Assistants' messages are sent as text, once: emitted parts are not sent again when the message is
  committed. If the client then cannot have the state's messages (others were added, changed or
  removed), all are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from milecastle.server.chat.agui.documents import (
    AguiEvent,
    AguiOutcome,
    AguiRunError,
    Custom,
    InterruptLine,
    MessagesSnapshot,
    RunFinished,
    RunStarted,
    StateDelta,
    StateSnapshot,
    StepFinished,
    StepStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
)
from milecastle.server.chat.following import RunEvent, RunStopped
from milecastle.server.chat.messages import (
    Chunk,
    as_object,
    chunk_of,
    messages_in,
    role_of,
    text_of,
)
from milecastle.server.documents import EmittedEvent, StateEvent
from milecastle.views.documents import QuestionLine, ShowDocument
from milecastle.views.values import anything, as_json

_PROTOCOL: Final = "1.0"
_WAITING: Final = frozenset({"interrupt", "sleep"})

BREAKPOINT: Final = "breakpoint"
"""The id of an interrupt that asks nothing."""


class AguiTranslation:
    def __init__(self, thread: str, run_id: str, messages: Sequence[dict[str, Any]]) -> None:
        self._thread = thread
        self._run_id = run_id
        self._state: Any = None
        self._steps: list[str] = []
        self._texts: dict[str, str] = {}
        self._client = conversation(messages)
        self.is_over = False

    def begin(self) -> AguiEvent:
        return RunStarted(thread_id=self._thread, run_id=self._run_id, protocol_version=_PROTOCOL)

    def events(self, event: RunEvent) -> Iterator[AguiEvent]:
        if isinstance(event, StateEvent):
            yield from self._committed(event)
        elif isinstance(event, EmittedEvent):
            chunk = chunk_of(event.value)
            if chunk is None:
                yield Custom(name=event.node or "", value=event.value)
            else:
                yield from self._streamed(chunk)
        elif isinstance(event, RunStopped):
            yield from self._stopped(event)

    def failed(self, message: str, code: str) -> Iterator[AguiEvent]:
        yield from self._end_steps()
        yield from self._end_texts()
        self.is_over = True
        yield AguiRunError(message=message, code=code)

    # ---- the parts of a run

    def _committed(self, event: StateEvent) -> Iterator[AguiEvent]:
        yield from self._written(event.state, is_news=self._state is not None)
        if self._state is None:
            yield StateSnapshot(snapshot=event.state)
        elif patch := json_patch(self._state, event.state):
            yield StateDelta(delta=patch)
        self._state = event.state
        yield from self._end_steps()
        for name in () if event.source in _WAITING else dict.fromkeys(event.next):
            self._steps.append(name)
            yield StepStarted(step_name=name)

    def _streamed(self, chunk: Chunk) -> Iterator[AguiEvent]:
        if chunk.id not in self._texts:
            self._texts[chunk.id] = ""
            yield TextMessageStart(message_id=chunk.id, role="assistant")
        self._texts[chunk.id] += chunk.delta
        yield TextMessageContent(message_id=chunk.id, delta=chunk.delta)

    def _written(self, state: Any, *, is_news: bool) -> Iterator[AguiEvent]:
        """Send messages the client lacks; old ones as a snapshot, not as text."""
        wanted = conversation(messages_in(state))
        had = {one["id"] for one in self._client}
        for message in wanted if is_news else ():
            if message["role"] == "assistant" and message["id"] not in had:
                yield from self._spoken(message)
        if wanted and self._client != wanted:
            yield MessagesSnapshot(messages=wanted)
            self._client = wanted

    def _spoken(self, message: dict[str, Any]) -> Iterator[AguiEvent]:
        id, text = message["id"], message["content"]
        streamed = self._texts.get(id, "")
        if text.startswith(streamed) and text != streamed:
            yield from self._streamed(Chunk(id, text.removeprefix(streamed)))
        spoken = self._texts.pop(id, None)
        if spoken is not None:
            yield TextMessageEnd(message_id=id)
            self._client.append({"id": id, "role": "assistant", "content": spoken})

    def _stopped(self, event: RunStopped) -> Iterator[AguiEvent]:
        failure = event.run.failure
        if event.run.status == "failed":
            message = failure.message if failure else "the run failed"
            yield from self.failed(message, failure.error_type if failure else "")
            return
        if self._state is None:
            yield StateSnapshot(snapshot=event.shown.state)
        yield from self._end_steps()
        yield from self._end_texts()
        self.is_over = True
        yield RunFinished(thread_id=self._thread, run_id=self._run_id, outcome=_outcome(event))

    def _end_steps(self) -> Iterator[AguiEvent]:
        while self._steps:
            yield StepFinished(step_name=self._steps.pop())

    def _end_texts(self) -> Iterator[AguiEvent]:
        while self._texts:
            yield TextMessageEnd(message_id=self._texts.popitem()[0])


def _outcome(event: RunStopped) -> AguiOutcome:
    if event.run.status == "completed":
        return AguiOutcome("success")
    if event.run.status != "interrupted":
        return AguiOutcome("cancelled")
    found = tuple(map(_interrupt, event.shown.questions)) or (_breakpoint(event.shown),)
    return AguiOutcome("interrupt", found)


def _interrupt(line: QuestionLine) -> InterruptLine:
    asked = line.question
    return InterruptLine(
        id=line.id,
        reason="question",
        message=asked if isinstance(asked, str) else as_json(asked),
        response_schema=as_object(line.answer),
        metadata={"node": line.node, "question": asked, "show": line.show},
    )


def _breakpoint(shown: ShowDocument) -> InterruptLine:
    nodes = ", ".join(shown.checkpoint.next)
    return InterruptLine(
        id=BREAKPOINT,
        reason="breakpoint",
        message=f"the run waits before {nodes}",
        metadata={"nodes": list(shown.checkpoint.next)},
    )


_SPEAKERS: Final = frozenset({"assistant", "developer", "system", "tool", "user"})
_PARTS: Final = frozenset({"audio", "document", "image", "text", "video"})


def conversation(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [one for one in messages if isinstance(one.get("id"), str)]
    return [_message(one, role) for one in found if (role := role_of(one)) in _SPEAKERS]


def _message(given: dict[str, Any], role: str) -> dict[str, Any]:
    content: Any = given.get("content")
    has_parts = role == "user" and _is_parts(content)
    made: dict[str, Any] = {"id": given["id"], "role": role}
    made["content"] = content if has_parts else text_of(content)
    if role == "tool":
        made["toolCallId"] = str(given.get("toolCallId") or given.get("tool_call_id") or "")
    calls = given.get("toolCalls") or [*map(_call, given.get("tool_calls") or ())]
    return {**made, "toolCalls": calls} if calls and role == "assistant" else made


def _is_parts(content: Any) -> bool:
    parts: list[Any] = anything(content) if isinstance(content, list) else [None]
    return all((as_object(part) or {}).get("type") in _PARTS for part in parts)


def _call(given: dict[str, Any]) -> dict[str, Any]:
    function = {"name": str(given.get("name")), "arguments": as_json(given.get("args"))}
    return {"id": str(given.get("id")), "type": "function", "function": function}


def json_patch(old: Any, new: Any) -> list[dict[str, Any]]:
    return list(_operations("", old, new))


def _operations(path: str, old: object, new: object) -> Iterator[dict[str, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _of_objects(path, anything(old), anything(new))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _of_arrays(path, anything(old), anything(new))
    elif not _is_same(anything(old), anything(new)):
        yield {"op": "replace", "path": path, "value": new}


def _is_same(old: object, new: object) -> bool:
    return type(old) is type(new) and old == new  # True == 1


def _of_objects(path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in old.items():
        place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if name in new:
            yield from _operations(place, value, new[name])
        else:
            yield {"op": "remove", "path": place}
    for name in (name for name in new if name not in old):
        place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        yield {"op": "add", "path": place, "value": new[name]}


def _of_arrays(path: str, old: list[Any], new: list[Any]) -> Iterator[dict[str, Any]]:
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        yield from _operations(f"{path}/{at}", one, other)
    for at in range(len(old) - 1, len(new) - 1, -1):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for value in new[len(old) :]:
        yield {"op": "add", "path": f"{path}/-", "value": value}
