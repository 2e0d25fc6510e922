from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec.structs
from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from milecastle.app.clock import SystemClock
from milecastle.app.runs.ownership import current_owner
from milecastle.engine.reserved_channels import NAMES
from milecastle.engine.status import NOTHING, thread_info
from milecastle.errors import InvalidRequest
from milecastle.integrations.langgraph.log import (
    CHECKPOINT,
    NEEDED,
    NOTE,
    WRITES,
    Listing,
    Log,
    LogState,
    Record,
    TaskWrite,
    add_writes,
    append,
    encode,
    note_id,
)
from milecastle.integrations.langgraph.naming import digest_of
from milecastle.integrations.langgraph.packing import Operation, Packed, change, pack
from milecastle.model.checkpoint import Source
from milecastle.model.reducers import SET
from milecastle.model.run import Failure, RunRecord, RunStatus
from milecastle.ports.store import Batch

_SOURCES: Final[dict[str, Source]] = {
    "input": "input",
    "loop": "step",
    "update": "update",
    "fork": "fork",
}
_TRIGGER: Final = "branch:to:"
_JOIN: Final = "join:"
_START: Final = "__start__"
_TASKS: Final = "__pregel_tasks"
_CALLER: Final = "00000000-0000-0000-0000-000000000000"
"""The task that writes what the caller resumes a run with."""
_NIL: Final = b"\xc0"
_COUNTERS: Final = "counters_since_delta_snapshot"
"""In metadata: the delta channels, which a checkpoint has no value of unless it is a snapshot."""
_MOST_STEPS: Final = 2**31 - 1
_ENDED: Final = ("completed", "failed", "cancelled", "superseded")

_clock = SystemClock()


def append_checkpoint(
    log: Log,
    base: LogState,
    serde: SerializerProtocol,
    checkpoint: Checkpoint,
    metadata: Mapping[str, Any],
    new_versions: Mapping[str, Any],
    parent: str | None,
    namespace: str,
    writes: Sequence[TaskWrite],
    rollup_after: int | None,
) -> tuple[Batch, Log]:
    channels = _channels(serde, base, checkpoint, new_versions)
    seen = log.gone | set(log.state.channels)
    record = Record(
        id=checkpoint["id"],
        parent=parent,
        forms={name: packed.form for name, packed in channels.items() if packed.form != ""},
        absent=sorted(seen - set(channels)),
        checkpoint=serde.dumps_typed({**checkpoint, "channel_values": {}}),
        metadata=serde.dumps_typed(dict(metadata)),
        namespace=namespace if digest_of(namespace) else "",
    )
    is_whole = channels.keys() >= (metadata.get(_COUNTERS) or {}).keys()
    needed = None if is_whole else base.needed or parent
    state = LogState(record, channels, tuple(writes), log.state.late, needed)
    operations = _changes(log, state)
    operations.append((SET, CHECKPOINT, encode(record)))
    next = next_nodes(checkpoint["channel_values"])
    is_fork = base is not log.state
    again = log.state.record is not None and log.state.record.id == record.id
    now = _clock.now()
    run = _run_of(log, record.id, metadata, now)
    place = Listing(
        id=note_id(log, record.id) if again else record.id,
        parent=parent if is_fork else log.id,
        source=_SOURCES.get(str(metadata.get("source")), "step"),
        nodes=log.nodes if log.state.writes else (),
        next=next,
        step=_step_of(metadata.get("step")),
        run=_turned(run, _status(next, state.writes), now),
        now=now,
        note=NOTE if again else "",
    )
    return _batch(log, place, operations, state, rollup_after, is_fork=is_fork)


def pack_writes(
    serde: SerializerProtocol, writes: Sequence[tuple[str, Any]], task: tuple[str, str]
) -> list[TaskWrite]:
    upsert = all(channel in WRITES_IDX_MAP for channel, _ in writes)
    task_id, path = task
    return [
        TaskWrite(
            path,
            task_id,
            WRITES_IDX_MAP.get(channel, number),
            channel,
            *_typed(serde, value),
            upsert,
        )
        for number, (channel, value) in enumerate(writes)
    ]


def append_writes(
    log: Log, checkpoint: str, writes: Sequence[TaskWrite], rollup_after: int | None
) -> tuple[Batch, Log]:
    id = note_id(log, checkpoint)
    operations, state = add_writes(log, checkpoint, writes, id)
    written = {one.channel for one in writes}
    node = node_of(writes[0].path)
    now = _clock.now()
    is_newest = state.record is not None and state.record.id == checkpoint
    run = log.run or _new_run(log, checkpoint, {}, now)
    next = log.next
    if is_newest and written & {ERROR, INTERRUPT, RESUME}:
        status = _status(next, state.writes)
        if status != run.status and run.status in _ENDED:
            run = _new_run(log, id, {}, now)
        run = _turned(run, status, now)
        next = next or tuple(filter(None, [node]))  # of triggers that do not name it
    nodes = log.nodes if log.state.writes else ()
    place = Listing(
        id=id,
        parent=log.id,
        source="interrupt" if INTERRUPT in written else "answer" if RESUME in written else "step",
        nodes=tuple(dict.fromkeys((*nodes, node))) if node and is_newest else nodes,
        next=next,
        step=log.step,
        run=run,
        now=now,
        note=NOTE,
    )
    return _batch(log, place, operations, state, rollup_after)


def snapshot(
    log: Log, state: LogState, next: tuple[str, ...], run: RunRecord | None
) -> tuple[Batch, Log]:
    if run is None or state.record is None:
        raise InvalidRequest(f"thread '{log.key.thread}' has no checkpoint")
    place = Listing(
        id=note_id(log, state.record.id),
        parent=log.id,
        source="update",
        nodes=(),
        next=next,
        step=log.step,
        run=run,
        now=_clock.now(),
        note=NOTE,
    )
    entry, after = append(log, place, (), state, rollup_after=None, snapshot=True)
    line = thread_info(entry, run, NOTHING)
    return Batch(key=log.key, head=log.seq, head_id=log.id, entries=(entry,), thread=line), after


def next_nodes(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Next nodes: those with a due trigger, and those tasks are sent to."""
    found = [name.rpartition(":")[2] for name, value in values.items() if _is_due(name, value)]
    found += [_START] if _START in values else []
    sent = values.get(_TASKS) or ()
    if isinstance(sent, list | tuple):
        found += [str(getattr(one, "node", "")) for one in cast("Sequence[object]", sent)]
    return tuple(dict.fromkeys(name for name in found if name))


def _is_due(name: str, value: Any) -> bool:
    """True if a channel triggers the node its name ends with.

    A used trigger has no value. If a node waits for several, its trigger is named after them and
    has those that have run; a deferred node's also says whether the others have finished.
    """
    if not name.startswith((_TRIGGER, _JOIN)):
        return False
    if isinstance(value, list | tuple):
        value, is_finished = cast("Sequence[Any]", value)
        if not is_finished:
            return False
    sources = name.removeprefix(_JOIN).rpartition(":")[0]
    ran = cast("set[str]", value) if isinstance(value, set) else ()
    return name.startswith(_TRIGGER) or len("+".join(ran)) == len(sources)


def _step_of(given: object) -> int:
    return min(max(0, given + 1), _MOST_STEPS) if isinstance(given, int) else 0


def node_of(path: str) -> str:
    kind, _, name = path.partition(", ")
    return name if kind == "~__pregel_pull" else ""


def _typed(serde: SerializerProtocol, value: Any) -> tuple[str, bytes]:
    form, body = serde.dumps_typed(value)
    return form, bytes(body)


def _channels(
    serde: SerializerProtocol,
    base: LogState,
    checkpoint: Checkpoint,
    new_versions: Mapping[str, Any],
) -> dict[str, Packed]:
    values = checkpoint["channel_values"]
    found: dict[str, Packed] = {}
    for name in checkpoint["channel_versions"]:
        if name in NAMES:
            raise InvalidRequest(f"a channel cannot be named '{name}': the log uses that name")
        before = base.channels.get(name)
        if before is not None and name not in new_versions:
            found[name] = before
        elif name in values:
            found[name] = pack(serde, values[name], before)
    return found


def _changes(log: Log, state: LogState) -> list[Operation]:
    before = log.state.channels
    found = [change(name, before.get(name), packed) for name, packed in state.channels.items()]
    found += [(SET, name, _NIL) for name in before if name not in state.channels]
    if log.state.writes or state.writes:
        found.append((SET, WRITES, encode(state.writes)))
    if log.state.needed != state.needed:
        found.append((SET, NEEDED, encode(state.needed)))
    return [operation for operation in found if operation is not None]


def _status(next: tuple[str, ...], writes: Sequence[TaskWrite]) -> RunStatus:
    """A run's status at a checkpoint with these writes, in order of arrival.

    A task that asked or failed counts until it writes something else, and one that asked until the
    caller resumes the run.
    """
    stopped: dict[str, RunStatus] = {}
    for write in writes:
        if write.channel in (ERROR, INTERRUPT):
            stopped[write.task] = "failed" if write.channel == ERROR else "interrupted"
        elif write.channel != RESUME:
            stopped.pop(write.task, None)
        elif write.task == _CALLER:
            stopped.clear()
    if stopped:
        return "failed" if "failed" in stopped.values() else "interrupted"
    return "running" if next else "completed"


def _run_of(log: Log, checkpoint: str, metadata: Mapping[str, Any], now: int) -> RunRecord:
    named = metadata.get("run_id")
    run = log.run
    if isinstance(named, str) and named:
        if run is None or run.run_id != named:
            return _new_run(log, named, metadata, now)
    elif run is None or metadata.get("source") == "input" or run.status in _ENDED:
        return _new_run(log, checkpoint, metadata, now)
    return run


def _new_run(log: Log, id: str, metadata: Mapping[str, Any], now: int) -> RunRecord:
    graph = metadata.get("graph_id")
    return RunRecord(
        run_id=id,
        key=log.key,
        graph=graph if isinstance(graph, str) and graph else "langgraph",
        fingerprint="",
        mode="clean",
        status="running",
        retry_count=0,
        previous_run_id=log.run.run_id if log.run else None,
        started_at=now,
        owner=current_owner(),
    )


def _turned(run: RunRecord, status: RunStatus, now: int) -> RunRecord:
    if run.status == status:
        return run
    ended = now if status in _ENDED else None
    return msgspec.structs.replace(run, status=status, ended_at=ended)


def _failure(run: str, node: str, now: int) -> Failure:
    return Failure(
        run_id=run,
        failure_class="execution",
        resumable=True,
        error_type="Exception",
        message="a node raised; the error is among the writes of the checkpoint",
        traceback=(),
        causes=(),
        attempt=1,
        time=now,
        node=node or None,
    )


def _batch(
    log: Log,
    place: Listing,
    operations: Sequence[Operation],
    state: LogState,
    rollup_after: int | None,
    *,
    is_fork: bool = False,
) -> tuple[Batch, Log]:
    entry, after = append(
        log, place, operations, state, rollup_after=rollup_after, snapshot=is_fork
    )
    run = place.run
    fails = run is not log.run and run.status == "failed"
    turns = run is not log.run or bool(place.next) != bool(log.next)
    batch = Batch(
        key=log.key,
        head=log.seq,
        head_id=log.id,
        entries=(entry,),
        runs=(run,) if run is not log.run else (),
        failure=_failure(run.run_id, " ".join(place.next), place.now) if fails else None,
        thread=thread_info(entry, run, NOTHING) if turns else None,
    )
    return batch, after
