"""The plan of a file run: facts in, for each node reuse or execute and why; and if it may resume.

Rules:

- A node is reused only if its checkpoint is valid and everything upstream of it is reused.
- A checkpoint is valid only if the node ended well, its outputs are there (or can be put back)
  with the recorded hashes, the cache holds its entry, the trace shows it complete, and
  everything its task hash covers is as it was.
- All reasons are given, not the first. Nothing is read here.
- A run is resumed only if the workspace is intact, the run before it exists, failed, failed in a
  way that can be resumed, and left a checkpoint to resume from, the graph still matches, its retry
  count is one more than that run's, and nothing upstream of the resume point has become invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from milecastle.builds.paths import task_hash
from milecastle.builds.records import NodeCheckpoint, TraceEvent
from milecastle.model.run import Failure, Mode, RunRecord

Rule = Literal[
    "workspace", "previous", "failed", "resumable", "checkpoint", "graph", "retry", "upstream"
]
"""The rule of a reason."""


class Reason(msgspec.Struct, frozen=True):
    """One reason against, and its rule."""

    rule: Rule
    message: str

    def __str__(self) -> str:
        return self.message


class Verdict(msgspec.Struct, frozen=True):
    """Permission to begin or resume a run. ``reasons`` has all objections."""

    reasons: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons


Action = Literal["reuse", "execute"]

Cause = Literal[
    "mode",
    "undeclared",
    "incomplete",
    "exit-code",
    "trace",
    "cache",
    "expired",
    "code",
    "parameters",
    "state",
    "input",
    "outputs",
    "upstream",
    "checkpoint",
]
"""What a reason speaks of."""

DAMAGE: Final[frozenset[Cause]] = frozenset({"cache", "checkpoint"})
"""Causes that mean that the workspace is damaged."""


class Why(msgspec.Struct, frozen=True, gc=False):
    """One reason why a node is executed."""

    cause: Cause
    message: str

    def __str__(self) -> str:
        return self.message


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node's facts before it runs.

    ``inputs`` are those no node makes, ``outputs`` the current files; ``None`` is a missing file.
    ``damage`` describes a bad cache entry.
    """

    name: str
    upstream: tuple[str, ...] = ()
    declared: bool = True
    code_version: str = ""
    parameters: str = ""
    input: str = ""
    inputs: Mapping[str, str | None] = {}
    outputs: Mapping[str, str | None] = {}
    checkpoint: NodeCheckpoint | None = None
    cached: bool = True
    damage: tuple[str, ...] = ()
    trace: TraceEvent | None = "complete"
    now: int = 0


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A node's fate in a run.

    ``reasons`` say why it is executed, and ``invalid`` are those that lie in the node itself, not
    upstream. ``restore`` are outputs to put back.
    """

    node: str
    action: Action
    reasons: tuple[Why, ...] = ()
    restore: tuple[str, ...] = ()
    invalid: tuple[Why, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned run. ``verdict``: permitted in this workspace, and as a resume."""

    mode: Mode
    decisions: Mapping[str, Decision]
    verdict: Verdict = Verdict()
    previous_run_id: str | None = None
    damage: tuple[str, ...] = ()

    @property
    def reused(self) -> tuple[str, ...]:
        """The nodes that are not run."""
        return tuple(name for name, one in self.decisions.items() if one.action == "reuse")

    @property
    def executed(self) -> tuple[str, ...]:
        """The nodes that are run."""
        return tuple(name for name, one in self.decisions.items() if one.action == "execute")

    def lines(self) -> list[str]:
        """The plan as text: a head, then a line per objection and node."""
        head = f"{self.mode}: {len(self.executed)} to execute, {len(self.reused)} to reuse"
        against = [f"  refused: {reason}" for reason in self.verdict.reasons]
        return [head, *against, *map(_line, self.decisions.values())]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def make_plan(facts: Iterable[NodeFacts], mode: Mode) -> dict[str, Decision]:
    decisions: dict[str, Decision] = {}
    known: dict[str, NodeCheckpoint] = {}
    for one in facts:
        name = one.name
        if mode == "clean":
            decisions[name] = Decision(name, "execute", (_CLEAN,))
            continue
        invalid = reasons_against(one, known)
        waiting = [above for above in one.upstream if decisions[above].action == "execute"]
        if not invalid and not waiting and one.checkpoint is not None:
            recorded = one.checkpoint.outputs
            lost = tuple(path for path, hash in recorded.items() if one.outputs[path] != hash)
            known[name] = one.checkpoint
            decisions[name] = Decision(name, "reuse", restore=lost)
            continue
        above = [Why("upstream", f"upstream node '{name}' is executed") for name in waiting]
        reasons = (*invalid, *above)
        decisions[name] = Decision(name, "execute", reasons, invalid=tuple(invalid))
    return decisions


def reasons_against(facts: NodeFacts, known: Mapping[str, NodeCheckpoint]) -> list[Why]:
    """Why a node's checkpoint is not valid; empty if it is.

    ``known`` are reused nodes' checkpoints.
    """
    checkpoint = facts.checkpoint
    if not facts.declared:
        return [_UNDECLARED]
    if checkpoint is None:
        return [_INCOMPLETE]
    reasons = [*_of_ending(facts, checkpoint), *_of_cache(facts, checkpoint)]
    if facts.code_version != checkpoint.code_version:
        reasons.append(Why("code", "its code changed"))
    if facts.parameters != checkpoint.parameters:
        reasons.append(Why("parameters", "its parameters changed"))
    if facts.input != checkpoint.input:
        reasons.append(Why("state", "the input of the run changed"))
    if facts.inputs != checkpoint.inputs:
        reasons += _changed_inputs(facts.inputs, checkpoint.inputs)
    if facts.outputs.keys() != checkpoint.outputs.keys():
        reasons.append(Why("outputs", "its declared outputs changed"))
    reasons += _changed_upstream(facts, checkpoint, known)
    if not reasons and _task_hash(checkpoint) != checkpoint.task_hash:
        reasons.append(_MISMATCH)
    return reasons


_CLEAN: Final = Why("mode", "a clean run does not reuse anything")
_UNDECLARED: Final = Why("undeclared", "it declares neither files nor a cache, so it always runs")
_INCOMPLETE: Final = Why("incomplete", "it did not complete before")
_MISSING: Final = Why("cache", "its cache entry is missing: the workspace is damaged")
_EXPIRED: Final = Why("expired", "its result has expired")
_MISMATCH: Final = Why(
    "checkpoint", "its checkpoint does not match its hash: the workspace is damaged"
)
_OTHERS: Final = Why("upstream", "its upstream nodes changed")


def _of_ending(facts: NodeFacts, checkpoint: NodeCheckpoint) -> list[Why]:
    reasons: list[Why] = []
    if checkpoint.exit_code != 0:
        reasons.append(Why("exit-code", f"it exited with code {checkpoint.exit_code}"))
    if facts.trace != "complete":
        shown = f"'{facts.trace}'" if facts.trace else "nothing of it"
        reasons.append(Why("trace", f"the trace does not show it complete, but {shown}"))
    return reasons


def _of_cache(facts: NodeFacts, checkpoint: NodeCheckpoint) -> list[Why]:
    reasons = [Why("cache", f"its cache entry is damaged: {what}") for what in facts.damage]
    if not facts.cached:
        reasons.append(_MISSING)
    if checkpoint.expires_at is not None and facts.now >= checkpoint.expires_at:
        reasons.append(_EXPIRED)
    return reasons


def _changed_inputs(now: Mapping[str, str | None], then: Mapping[str, str]) -> list[Why]:
    reasons = [Why("input", f"it no longer reads '{path}'") for path in then if path not in now]
    for path, found in now.items():
        if found is None:
            reasons.append(Why("input", f"input '{path}' is missing"))
        elif path not in then:
            reasons.append(Why("input", f"input '{path}' is new"))
        elif then[path] != found:
            reasons.append(Why("input", f"input '{path}' changed"))
    return reasons


def _changed_upstream(
    facts: NodeFacts, checkpoint: NodeCheckpoint, known: Mapping[str, NodeCheckpoint]
) -> list[Why]:
    then = checkpoint.upstream
    if len(facts.upstream) != len(then):
        return [_OTHERS]
    reasons: list[Why] = []
    for name in facts.upstream:
        if name not in then:
            return [_OTHERS]
        if name in known and known[name].output_hash != then[name]:
            reasons.append(Why("upstream", f"the result of node '{name}' changed"))
    return reasons


def _task_hash(checkpoint: NodeCheckpoint) -> str:
    return task_hash(
        node=checkpoint.node,
        code_version=checkpoint.code_version,
        parameters=checkpoint.parameters,
        input=checkpoint.input,
        seen=checkpoint.seen,
        inputs=checkpoint.inputs,
        upstream=checkpoint.upstream,
        outputs=checkpoint.outputs,
    )


def _line(decision: Decision) -> str:
    why = "; ".join(map(str, decision.reasons))
    if decision.action == "reuse":
        back = ", ".join(f"'{path}'" for path in decision.restore)
        why = f"valid; {back} will be restored" if back else "valid"
    return f"  {decision.action:<7}  {decision.node}: {why}"


class ResumeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the verdict depends on.

    ``asked_for`` is the named run, or ``None`` if it was to be found. ``same_graph``: the run had
    today's graph. ``has_checkpoints``: a node was complete in the run.
    ``invalid`` has, for each node that was complete and is no longer valid, why;
    ``upstream`` are the nodes upstream of the resume point.
    """

    damage: tuple[str, ...] = ()
    asked_for: str | None = None
    previous: RunRecord | None = None
    failure: Failure | None = None
    has_checkpoints: bool = True
    same_graph: bool = True
    retry_count: int = 0
    invalid: Mapping[str, str] = {}
    upstream: frozenset[str] = frozenset()


class Candidate(msgspec.Struct, frozen=True):
    record: RunRecord
    failure: Failure | None


def judge(facts: ResumeFacts) -> Verdict:
    return Verdict(
        (*judge_workspace(facts.damage).reasons, *_of_previous(facts), *_of_upstream(facts))
    )


def judge_workspace(damage: Iterable[str]) -> Verdict:
    return Verdict(
        tuple(Reason("workspace", f"the workspace is damaged: {what}") for what in damage)
    )


def find_previous(candidates: Iterable[Candidate], fingerprint: str) -> RunRecord | None:
    """The run to resume: same fingerprint, has a failure, latest start, ties by run id."""
    fitting = [
        one.record
        for one in candidates
        if one.failure is not None and one.record.fingerprint == fingerprint
    ]
    return max(fitting, key=lambda record: (record.started_at, record.run_id), default=None)


def _of_previous(facts: ResumeFacts) -> list[Reason]:
    previous = facts.previous
    if previous is None:
        named = f"there is no run {facts.asked_for}"
        found = "no run of this graph has failed, so there is nothing to resume"
        return [Reason("previous", named if facts.asked_for is not None else found)]
    reasons: list[Reason] = []
    if facts.failure is None:
        reasons.append(
            Reason("failed", f"run {previous.run_id} did not fail: it is {previous.status}")
        )
    elif not facts.failure.resumable:
        reasons.append(
            Reason(
                "resumable",
                f"run {previous.run_id} failed with a {facts.failure.failure_class} failure "
                f"({facts.failure.error_type}), which cannot be resumed",
            )
        )
    elif not facts.has_checkpoints:
        reasons.append(
            Reason(
                "checkpoint",
                f"run {previous.run_id} left no checkpoint to resume from: use mode 'incremental' "
                "to start over",
            )
        )
    if not facts.same_graph:
        reasons.append(Reason("graph", "the graph has changed since: its fingerprint differs"))
    if facts.retry_count != previous.retry_count + 1:
        reasons.append(
            Reason(
                "retry",
                f"the retry count is {facts.retry_count}, but run {previous.run_id} has "
                f"{previous.retry_count}: it must be exactly one more",
            )
        )
    return reasons


def _of_upstream(facts: ResumeFacts) -> list[Reason]:
    return [
        Reason(
            "upstream", f"node '{name}', upstream of the resume point, is no longer valid: {why}"
        )
        for name, why in facts.invalid.items()
        if name in facts.upstream
    ]
