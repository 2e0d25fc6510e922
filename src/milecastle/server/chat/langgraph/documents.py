"""Requests and answers for LangGraph's SDK.

Listed fields that Milecastle does not use are ignored; a request with any other field is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from milecastle.server.documents import HttpDocument, PageSize
from milecastle.support.prepared import prepared

Offset = Annotated[int, msgspec.Meta(ge=0, le=100_000)]
SdkThreadStatus = Literal["idle", "busy", "interrupted", "error"]
SdkRunStatus = Literal["pending", "running", "error", "success", "timeout", "interrupted"]
Strategy = Literal["reject", "interrupt", "rollback", "enqueue"]
NoMetadata = Annotated[dict[str, Any], msgspec.Meta(max_length=0)]


class SdkCheckpoint(HttpDocument, frozen=True):
    """A checkpoint's place; subgraph checkpoints, which have a namespace, are not served."""

    thread_id: str | None = None
    checkpoint_ns: Literal[""] = ""
    checkpoint_id: str | None = None
    checkpoint_map: dict[str, Any] | None = None


class SdkCommand(HttpDocument, frozen=True):
    """Continue a waiting run: with an answer, or not at all (``goto`` the end)."""

    resume: Any = msgspec.UNSET
    goto: Literal["__end__"] | None = None


@prepared
class RunInput(HttpDocument, frozen=True):
    assistant_id: str
    input: dict[str, Any] | None = None
    command: SdkCommand | None = None
    checkpoint: SdkCheckpoint | None = None
    checkpoint_id: str | None = None
    stream_mode: str | tuple[str, ...] = "values"
    multitask_strategy: Strategy = "enqueue"
    if_not_exists: Literal["create", "reject"] = "create"
    on_disconnect: Literal["cancel", "continue"] = "continue"
    on_completion: Literal["keep"] = "keep"
    after_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    config: NoMetadata | None = None
    context: dict[str, Any] | None = None
    metadata: NoMetadata | None = None
    interrupt_before: Annotated[list[str], msgspec.Meta(max_length=0)] | None = None
    interrupt_after: Annotated[list[str], msgspec.Meta(max_length=0)] | None = None
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    durability: str | None = None
    checkpoint_during: bool | None = None
    strict_resume: bool | None = None
    feedback_keys: Any = None
    langsmith_tracer: Any = None


class ThreadMetadata(HttpDocument, frozen=True):
    """The thread's graph; other metadata is not stored."""

    graph_id: str | None = None
    assistant_id: str | None = None


class ThreadInput(HttpDocument, frozen=True):
    """A thread to create. Nothing is stored before its first run."""

    thread_id: str | None = None
    metadata: ThreadMetadata | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None


class SearchRequest(HttpDocument, frozen=True):
    metadata: ThreadMetadata | None = None
    ids: tuple[str, ...] | None = None
    status: SdkThreadStatus | None = None
    limit: PageSize = 10
    offset: Offset = 0
    sort_by: Literal["updated_at"] | None = None
    sort_order: Literal["desc"] | None = None
    select: Any = None


class HistoryRequest(HttpDocument, frozen=True):
    limit: PageSize = 10
    before: str | SdkCheckpoint | None = None
    checkpoint: SdkCheckpoint | None = None
    select: Any = None


class CheckpointRequest(HttpDocument, frozen=True):
    checkpoint: SdkCheckpoint
    subgraphs: bool = False
    select: Any = None


class StateUpdate(HttpDocument, frozen=True):
    values: dict[str, Any] | None
    checkpoint: SdkCheckpoint | None = None
    checkpoint_id: str | None = None


class AssistantsRequest(HttpDocument, frozen=True):
    graph_id: str | None = None
    name: str | None = None
    limit: PageSize = 10
    offset: Offset = 0
    metadata: NoMetadata | None = None
    sort_by: Any = None
    sort_order: Any = None
    select: Any = None


class StateQuery(HttpDocument, frozen=True):
    subgraphs: bool = False
    select: tuple[str, ...] = ()


class GraphQuery(HttpDocument, frozen=True):
    xray: str | None = None


class ListRunsQuery(HttpDocument, frozen=True):
    limit: PageSize = 10
    offset: Offset = 0
    status: SdkRunStatus | None = None
    select: tuple[str, ...] = ()


class JoinQuery(HttpDocument, frozen=True):
    stream_mode: tuple[str, ...] = ()
    cancel_on_disconnect: bool = False


class CancelRunQuery(HttpDocument, frozen=True):
    wait: bool = False
    action: Literal["interrupt"] = "interrupt"


class SdkInterrupt(HttpDocument, frozen=True, omit_defaults=True):
    """An open question; ``response_schema`` describes its answer, if known."""

    id: str
    value: Any
    response_schema: dict[str, Any] | None = None


class ThreadTask(HttpDocument, frozen=True):
    id: str
    name: str
    error: str | None
    interrupts: tuple[SdkInterrupt, ...]
    checkpoint: None = None
    state: None = None
    result: None = None


class ThreadState(HttpDocument, frozen=True):
    values: dict[str, Any]
    next: tuple[str, ...]
    checkpoint: SdkCheckpoint
    metadata: dict[str, Any]
    created_at: str
    parent_checkpoint: SdkCheckpoint | None
    tasks: tuple[ThreadTask, ...]
    interrupts: tuple[SdkInterrupt, ...]


class SdkThread(HttpDocument, frozen=True):
    thread_id: str
    created_at: str
    updated_at: str
    metadata: dict[str, Any]
    status: SdkThreadStatus
    values: dict[str, Any] | None
    interrupts: dict[str, tuple[SdkInterrupt, ...]]


class SdkRun(HttpDocument, frozen=True):
    run_id: str
    thread_id: str
    assistant_id: str
    created_at: str
    updated_at: str
    status: SdkRunStatus
    metadata: dict[str, Any]
    multitask_strategy: Strategy


class Assistant(HttpDocument, frozen=True):
    """A graph. It has no history: its version is 1."""

    assistant_id: str
    graph_id: str
    name: str
    created_at: str
    updated_at: str
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    version: int
    description: str | None
