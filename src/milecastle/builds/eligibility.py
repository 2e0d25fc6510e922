"""Whether a run may be resumed: facts in, a verdict with every reason out. Nothing is read here.

A run is resumed only if the workspace is intact, the run before it exists, failed, failed in a way
that can be resumed, and left a checkpoint to resume from, the graph still matches, its retry count
is one more than that run's, and nothing upstream of the resume point has become invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from milecastle.model.run import Failure, RunRecord

Rule = Literal[
    "workspace", "previous", "failed", "resumable", "checkpoint", "graph", "retry", "upstream"
]
"""The rule of a reason."""

GraphFit = Literal["equal", "additions", "migrated", "different"]
"""How today's graph compares with the one of the run before."""


class Reason(msgspec.Struct, frozen=True):
    """One reason against, and the rule that it comes from."""

    rule: Rule
    message: str

    def __str__(self) -> str:
        return self.message


class Verdict(msgspec.Struct, frozen=True):
    """Whether a run may begin, or be resumed. ``reasons`` are all those against it."""

    reasons: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons


class ResumeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the verdict depends on.

    ``asked_for`` is the run that was named, or ``None`` if it was to be found. ``fit`` says how
    the graph compares and ``differences`` why it does not fit; ``exact`` asks for equality.
    ``has_checkpoints`` says whether any node was complete in the run.
    ``invalid`` has, for each node that was complete and is no longer valid, why;
    ``upstream`` are the nodes upstream of the resume point.
    """

    damage: tuple[str, ...] = ()
    asked_for: str | None = None
    previous: RunRecord | None = None
    failure: Failure | None = None
    has_checkpoints: bool = True
    fit: GraphFit = "equal"
    differences: tuple[str, ...] = ()
    exact: bool = False
    retry_count: int = 0
    invalid: Mapping[str, str] = {}
    upstream: frozenset[str] = frozenset()


class Candidate(msgspec.Struct, frozen=True):
    """A run that might be the one to resume."""

    record: RunRecord
    failure: Failure | None


def judge(facts: ResumeFacts) -> Verdict:
    """The verdict, with all reasons."""
    return Verdict(
        (
            *judge_workspace(facts.damage).reasons,
            *_of_previous(facts),
            *_of_upstream(facts),
        )
    )


def judge_workspace(damage: Iterable[str]) -> Verdict:
    """The verdict on the workspace alone, which every mode needs."""
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
        return [Reason("previous", _missing(facts.asked_for))]
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
    reasons += _of_graph(facts)
    if facts.retry_count != previous.retry_count + 1:
        reasons.append(
            Reason(
                "retry",
                f"the retry count is {facts.retry_count}, but run {previous.run_id} has "
                f"{previous.retry_count}: it must be exactly one more",
            )
        )
    return reasons


def _missing(asked_for: str | None) -> str:
    if asked_for is not None:
        return f"there is no run {asked_for}"
    return "no run of this graph has failed, so there is nothing to resume"


def _of_graph(facts: ResumeFacts) -> list[Reason]:
    if facts.fit == "equal" or (facts.fit in ("additions", "migrated") and not facts.exact):
        return []
    why = ", ".join(facts.differences) or "its fingerprint differs"
    return [Reason("graph", f"the graph has changed since: {why}")]


def _of_upstream(facts: ResumeFacts) -> list[Reason]:
    return [
        Reason(
            "upstream", f"node '{name}', upstream of the resume point, is no longer valid: {why}"
        )
        for name, why in facts.invalid.items()
        if name in facts.upstream
    ]
