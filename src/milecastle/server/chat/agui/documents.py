from __future__ import annotations

from typing import Any, Literal

import msgspec

from milecastle.support.prepared import prepared


class ResumeEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


@prepared
class AgentInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``RunAgentInput``. Unlisted fields are ignored, as the protocol says."""

    thread_id: str
    run_id: str
    messages: list[dict[str, Any]]
    state: dict[str, Any] | None = None
    tools: list[Any] | None = None
    context: list[Any] | None = None
    forwarded_props: Any = None
    resume: list[ResumeEntry] | None = None


class AguiEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True): ...


class RunStarted(AguiEvent, frozen=True, tag="RUN_STARTED"):
    thread_id: str
    run_id: str
    protocol_version: str


class StepStarted(AguiEvent, frozen=True, tag="STEP_STARTED"):
    step_name: str


class StepFinished(AguiEvent, frozen=True, tag="STEP_FINISHED"):
    step_name: str


class StateSnapshot(AguiEvent, frozen=True, tag="STATE_SNAPSHOT"):
    snapshot: Any


class StateDelta(AguiEvent, frozen=True, tag="STATE_DELTA"):
    delta: list[dict[str, Any]]


class TextMessageStart(AguiEvent, frozen=True, tag="TEXT_MESSAGE_START"):
    message_id: str
    role: str


class TextMessageContent(AguiEvent, frozen=True, tag="TEXT_MESSAGE_CONTENT"):
    message_id: str
    delta: str


class TextMessageEnd(AguiEvent, frozen=True, tag="TEXT_MESSAGE_END"):
    message_id: str


class MessagesSnapshot(AguiEvent, frozen=True, tag="MESSAGES_SNAPSHOT"):
    messages: list[dict[str, Any]]


class Custom(AguiEvent, frozen=True, tag="CUSTOM"):
    name: str
    value: Any


class InterruptLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    id: str
    reason: str
    message: str
    metadata: dict[str, Any]
    response_schema: dict[str, Any] | None = None


class AguiOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["success", "interrupt", "cancelled"]
    interrupts: tuple[InterruptLine, ...] = ()


class RunFinished(AguiEvent, frozen=True, tag="RUN_FINISHED"):
    thread_id: str
    run_id: str
    outcome: AguiOutcome


class AguiRunError(AguiEvent, frozen=True, tag="RUN_ERROR"):
    message: str
    code: str
