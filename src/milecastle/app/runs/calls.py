"""A call: the caller's request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

from milecastle.app.runs.answering import NOTHING_GIVEN, Given
from milecastle.app.runs.streams import StreamMode
from milecastle.engine.assignment import Assignment
from milecastle.errors import InvalidRequest
from milecastle.model.children import Parent
from milecastle.model.limit_key import read_limit_key
from milecastle.model.policies import ExecutionOptions
from milecastle.model.tags import read_tags
from milecastle.ports.store import Opened
from milecastle.support.migration_hints import refuse_config

IfBusy = Literal["reject", "queue", "cancel"]
"""What ``submit`` does with a thread that has an unfinished run of another input."""

IfExists = Literal["reject", "take_over", "discard", "cancel", "queue", "keep"]
"""What a call does with a thread that exists.

- ``reject``: refuse if a live process drives it, or its unfinished run has another input.
- ``take_over``: take it from a process that drives it.
- ``discard``: close the unfinished run of another input, and start from before that input.
- ``cancel``: both of these.
- ``queue``: let the input wait behind the unfinished run of another one.
- ``keep``: start nothing, whatever became of its runs.
"""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments to ``invoke``, ``stream``, ``resume`` or ``submit``.

    ``mode`` is the stream's, or ``None`` without a reader. ``run_id`` names an unsaved run; saved
    runs have their own. ``known`` was read from the thread already. ``is_own``: Milecastle itself
    starts the thread, under a name of ``own_key``.

    ``key`` is compared instead of the input. ``again`` starts a new run although the newest one
    completed with this input. Without ``retries`` a run found is left alone, although it
    failed or was cancelled. ``instead_of`` is the only discardable run. ``tags`` are
    added to the thread by the commit starting the run. ``limit_key`` replaces the thread's, unless
    it is ``None``. ``assignment`` says workers run the thread, and whether the caller is one of
    them. ``parent`` spawns it.
    """

    input: Any = None
    thread: Any = None
    options: ExecutionOptions | None = None
    config: Any = None
    mode: StreamMode | None = None
    subgraphs: bool = False
    given: Given = NOTHING_GIVEN
    accept_changes: bool = False
    file: Any = None
    run_id: str | None = None
    known: Opened | None = None
    is_own: bool = False
    key: str | None = None
    again: bool = False
    retries: bool = True
    if_exists: IfExists = "reject"
    instead_of: str | None = None
    tags: tuple[str, ...] = ()
    limit_key: str | None = None
    assignment: Assignment | None = None
    parent: Parent | None = None

    def __post_init__(self) -> None:
        if self.config is not None:
            refuse_config(self.config)
        if self.key == "":
            raise InvalidRequest("key= is empty: omit it to compare the input")
        if self.options is not None and not isinstance(
            cast("object", self.options), ExecutionOptions
        ):
            raise InvalidRequest(
                f"options= takes ExecutionOptions(max_steps=...), not {type(self.options).__name__}"
            )

    @property
    def takes_over(self) -> bool:
        return self.if_exists in ("take_over", "cancel")

    @property
    def discards(self) -> bool:
        return self.if_exists in ("discard", "cancel") or self.instead_of is not None

    @property
    def is_claimed(self) -> bool:
        return self.assignment is not None and bool(self.assignment.worker)

    @property
    def queues(self) -> bool:
        return self.assignment is not None and not self.assignment.worker

    @property
    def names_run(self) -> bool:
        return self.key is not None and not self.again


def if_taken(take_over: bool, discard: bool = False) -> IfExists:
    if discard:
        return "cancel" if take_over else "discard"
    return "take_over" if take_over else "reject"


def started(
    input: Any,
    thread: Any,
    key: str | None,
    again: bool,
    take_over: bool,
    discard: bool,
    tags: Iterable[str],
    options: ExecutionOptions | None,
    config: Any,
    file: Any,
    checkpoint: Any,
) -> Call:
    if checkpoint is not None and file is not None:
        raise InvalidRequest("give the portable file once: as file= or as checkpoint=, not both")
    return Call(
        input=input,
        thread=thread,
        key=key,
        again=again,
        if_exists=if_taken(take_over, discard) if take_over or discard else "reject",
        tags=read_tags(tags) if tags else (),
        options=options,
        config=config,
        file=file if checkpoint is None else checkpoint,
    )


def resumed(
    thread: Any,
    given: Given,
    accept_changes: bool,
    take_over: bool,
    options: ExecutionOptions | None,
    config: Any,
) -> Call:
    return Call(
        thread=thread,
        given=given,
        accept_changes=accept_changes,
        if_exists=if_taken(take_over),
        options=options,
        config=config,
    )


def submitted(
    input: Any,
    thread: Any,
    key: str | None,
    again: bool,
    if_busy: IfBusy,
    if_absent: bool,
    instead_of: str | None,
    tags: Iterable[str],
    config: Any,
    retry: bool = True,
    keys: Mapping[str, str] | None = None,
) -> Call:
    if if_busy not in ("reject", "queue", "cancel"):
        raise InvalidRequest("if_busy= takes 'reject', 'queue' or 'cancel'")
    return Call(
        input=input,
        thread=thread,
        key=key,
        again=again,
        retries=retry,
        if_exists="keep" if if_absent else if_busy,
        instead_of=instead_of,
        tags=read_tags(tags),
        limit_key=read_limit_key(keys),
        config=config,
    )
