"""Threads, states and runs as LangGraph's SDK reads them, from ``/v1`` documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from starlette.responses import Response

from milecastle.server.chat.langgraph.documents import (
    SdkCheckpoint,
    SdkInterrupt,
    SdkRun,
    SdkRunStatus,
    SdkThread,
    SdkThreadStatus,
    ThreadState,
    ThreadTask,
)
from milecastle.server.chat.messages import MESSAGES, as_object, messages_in, with_type
from milecastle.server.json_answers import json_answer
from milecastle.server.request import ApiRequest
from milecastle.views.documents import QuestionLine, RunLine, ShowDocument

INTERRUPT: Final = "__interrupt__"
"""The key under which values have open questions."""

_THREADS: Final[dict[str, SdkThreadStatus]] = {
    "queued": "busy",
    "running": "busy",
    "sleeping": "busy",
    "interrupted": "interrupted",
    "failed": "error",
    "lost": "error",
}
_RUNS: Final[dict[str, SdkRunStatus]] = {
    "queued": "pending",
    "running": "running",
    "sleeping": "running",
    "completed": "success",
    "failed": "error",
}
_SOURCES: Final = {"input": "input", "update": "update", "fork": "fork"}


async def answered(
    request: ApiRequest, make: Callable[..., Any], *args: Any, **headers: str
) -> Response:
    """Answer with the result of ``make``, called off the event loop. It is already redacted."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await json_answer(
        request.service, lambda: msgspec.to_builtins(make(*args)), headers=names
    )


def thread_status(status: str) -> SdkThreadStatus:
    return _THREADS.get(status, "idle")


def run_status(status: str) -> SdkRunStatus:
    return _RUNS.get(status, "interrupted")


def values_of(state: Any) -> dict[str, Any]:
    if not isinstance(state, dict):
        return {}
    messages = messages_in(state)
    return {**state, MESSAGES: [*map(with_type, messages)]} if messages else {**state}


def interrupt_of(line: QuestionLine) -> SdkInterrupt:
    shown = {"question": line.question, "show": line.show}
    value = line.question if line.show is None else shown
    return SdkInterrupt(id=line.id, value=value, response_schema=as_object(line.answer))


def state_of(shown: ShowDocument) -> ThreadState:
    line = shown.checkpoint
    return ThreadState(
        values=values_of(shown.state),
        next=line.next,
        checkpoint=_checkpoint(shown.thread, line.id),
        metadata={
            "source": _SOURCES.get(line.source, "loop"),
            "step": line.step,
            "run_id": line.run_id,
            **_names(shown),
        },
        created_at=line.timestamp,
        parent_checkpoint=_checkpoint(shown.thread, line.parent_id) if line.parent_id else None,
        tasks=tuple(_tasks(shown)),
        interrupts=tuple(map(interrupt_of, shown.questions)),
    )


def _checkpoint(thread: str, id: str) -> SdkCheckpoint:
    return SdkCheckpoint(thread_id=thread, checkpoint_id=id)


def _names(shown: ShowDocument) -> dict[str, str]:
    graph = shown.run.graph if shown.run else ""
    return {"graph_id": graph, "assistant_id": graph, "thread_id": shown.thread}


def _tasks(shown: ShowDocument) -> Iterable[ThreadTask]:
    failure = shown.run.failure if shown.run and shown.status == "failed" else None
    failed = [failure.node] if failure and failure.node else []
    for name in dict.fromkeys([*shown.checkpoint.next, *failed]):
        questions = (one for one in shown.questions if one.node == name)
        is_failed = failure is not None and failure.node == name
        yield ThreadTask(
            id=name,
            name=name,
            error=failure.message if failure and is_failed else None,
            interrupts=tuple(map(interrupt_of, questions)),
        )


def thread_of(shown: ShowDocument, created_at: str) -> SdkThread:
    questions: dict[str, tuple[SdkInterrupt, ...]] = {}
    for line in shown.questions:
        questions[line.node] = (*questions.get(line.node, ()), interrupt_of(line))
    return SdkThread(
        thread_id=shown.thread,
        created_at=created_at,
        updated_at=shown.checkpoint.timestamp,
        metadata=_names(shown),
        status=thread_status(shown.status),
        values=values_of(shown.state),
        interrupts=questions,
    )


def run_of(line: RunLine) -> SdkRun:
    return SdkRun(
        run_id=line.run_id,
        thread_id=line.thread,
        assistant_id=line.graph,
        created_at=line.started_at,
        updated_at=line.ended_at or line.started_at,
        status=run_status(line.status),
        metadata={},
        multitask_strategy="enqueue",
    )
