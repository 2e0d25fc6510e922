from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import time_ns

import msgspec

from milecastle.builds.file_graph import FileGraph, FileTask
from milecastle.builds.paths import Links, StatIndex, problem_of_entry
from milecastle.builds.plan import (
    DAMAGE,
    Candidate,
    Decision,
    NodeFacts,
    Plan,
    ResumeFacts,
    find_previous,
    judge,
    judge_workspace,
    make_plan,
)
from milecastle.builds.records import NodeCheckpoint, TraceEvent, open_update
from milecastle.builds.workspace import Workspace
from milecastle.codec.envelope import Sealers
from milecastle.errors import CodecError, Corrupted, FormatTooNew
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Failure, Mode, RunRecord


class Base(msgspec.Struct, frozen=True, kw_only=True):
    record: RunRecord | None = None
    checkpoints: Mapping[str, NodeCheckpoint] = {}
    traces: Mapping[str, Mapping[str, TraceEvent]] = {}


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    plan: Plan
    base: Base
    retry_count: int


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    mode: Mode
    key: ThreadKey
    input: str
    previous: str | None = None
    retry_count: int | None = None


def make_survey(
    found: FileGraph,
    tasks: Mapping[str, FileTask],
    workspace: Workspace,
    asked: BuildRequest,
    index: StatIndex,
    encryption: Sealers | None = None,
) -> Survey:
    unauthorised = workspace.unauthorised()
    verdict = judge_workspace(unauthorised)
    if asked.mode == "clean":
        decisions = make_plan((NodeFacts(name=name) for name in found.order), "clean")
        plan = Plan(mode="clean", decisions=decisions, verdict=verdict)
        return Survey(plan=plan, base=Base(), retry_count=asked.retry_count or 0)
    damage = list(unauthorised)
    record = find_base(workspace, asked, found.graph.fingerprint, damage)
    base = _read_base(workspace, record, damage)
    facts = _facts(found, tasks, workspace, asked.input, base, index, encryption)
    decisions = make_plan(facts, asked.mode)
    failure = _failure(workspace, record, damage)
    count = record.retry_count + 1 if record and failure else 0
    retry_count = count if asked.retry_count is None else asked.retry_count
    if asked.mode == "resume-only":
        resume_point = tuple(name for name in decisions if name not in base.checkpoints)
        verdict = judge(
            ResumeFacts(
                damage=(*damage, *_damage_in(decisions)),
                asked_for=asked.previous,
                previous=record,
                failure=failure,
                has_checkpoints=bool(base.checkpoints),
                same_graph=record is None or record.fingerprint == found.graph.fingerprint,
                retry_count=retry_count,
                invalid={
                    name: "; ".join(map(str, one.invalid))
                    for name, one in decisions.items()
                    if one.invalid and name in base.checkpoints
                },
                upstream=frozenset(found.ancestors(resume_point)),
            )
        )
    plan = Plan(
        mode=asked.mode,
        decisions=decisions,
        verdict=verdict,
        previous_run_id=record.run_id if record and failure else None,
        damage=tuple(damage),
    )
    return Survey(plan=plan, base=base, retry_count=retry_count)


def find_base(
    workspace: Workspace, asked: BuildRequest, fingerprint: str, damage: list[str]
) -> RunRecord | None:
    """The run to build on: the named one, the one to resume, or the newest."""
    if asked.previous is not None:
        try:
            return workspace.run(asked.previous)
        except (Corrupted, FormatTooNew) as error:
            damage.append(error.message)
            return None
    runs = [record for record in workspace.runs(damage) if record.key == asked.key]
    planned = [one for one in runs if workspace.has_plan(one.run_id)]  # the others did nothing
    if asked.mode == "resume-only":
        candidates = [Candidate(one, _failure(workspace, one, damage)) for one in planned]
        if (previous := find_previous(candidates, fingerprint)) is not None:
            return previous
        planned = [one for one in runs if _failure(workspace, one, damage) is not None]
    return max(planned, key=lambda one: (one.started_at, one.run_id), default=None)


def _failure(workspace: Workspace, record: RunRecord | None, damage: list[str]) -> Failure | None:
    if record is None:
        return None
    try:
        return workspace.failure(record.run_id)
    except (Corrupted, FormatTooNew) as error:
        if error.message not in damage:
            damage.append(error.message)
        return None


def _read_base(workspace: Workspace, record: RunRecord | None, damage: list[str]) -> Base:
    if record is None:
        return Base()
    checkpoints = workspace.intact_checkpoints(record.run_id, damage)
    runs = {one.run_id for one in checkpoints.values()}
    traces = {run_id: workspace.trace(run_id, damage) for run_id in sorted(runs)}
    return Base(record=record, checkpoints=checkpoints, traces=traces)


def _facts(
    found: FileGraph,
    tasks: Mapping[str, FileTask],
    workspace: Workspace,
    input: str,
    base: Base,
    index: StatIndex,
    encryption: Sealers | None,
) -> Iterator[NodeFacts]:
    cached = workspace.cache.names() if base.checkpoints else set[str]()
    now = time_ns() // 1000
    for name in found.order:
        task = tasks.get(name)
        if task is None:
            yield NodeFacts(name=name, upstream=found.upstream[name], declared=False)
            continue
        checkpoint = base.checkpoints.get(name)
        if checkpoint is None:
            yield NodeFacts(name=name, upstream=task.upstream)
            continue
        outputs = {path: _hash_of(index, place) for path, place in task.outputs}
        is_cached = checkpoint.task_hash in cached
        yield NodeFacts(
            name=name,
            upstream=task.upstream,
            code_version=task.code_version,
            parameters=task.parameters,
            input=input if task.takes_state else "",
            inputs={path: _hash_of(index, place, follow=True) for path, place in task.given},
            outputs=outputs,
            checkpoint=checkpoint,
            cached=is_cached,
            damage=_damage_of(workspace, checkpoint, outputs, encryption) if is_cached else (),
            trace=base.traces[checkpoint.run_id].get(name),
            now=now,
        )


def _hash_of(index: StatIndex, place: str, *, follow: bool = False) -> str | None:
    try:
        return index.hash_of(place, follow=follow)
    except Links:
        return None


def _damage_of(
    workspace: Workspace,
    checkpoint: NodeCheckpoint,
    outputs: Mapping[str, str | None],
    encryption: Sealers | None,
) -> tuple[str, ...]:
    if outputs == checkpoint.outputs and not checkpoint.has_update:
        return ()
    lost = {path for path, hash in checkpoint.outputs.items() if outputs.get(path) != hash}
    try:
        entry = workspace.cache.load(checkpoint.task_hash)
    except (Corrupted, FormatTooNew) as error:
        return (error.message,)
    if entry is None:
        return ("it is missing",)
    if why := problem_of_entry(entry, checkpoint):
        return (f"it {why}",)
    try:
        open_update(entry, encryption)
    except CodecError as error:
        return (f"its update cannot be decoded ({type(error).__name__})",)
    return tuple(workspace.cache.damage_of(one for one in entry.artifacts if one.path in lost))


def _damage_in(decisions: Mapping[str, Decision]) -> list[str]:
    return [
        f"node '{name}': {reason}"
        for name, one in decisions.items()
        for reason in one.invalid
        if reason.cause in DAMAGE
    ]
