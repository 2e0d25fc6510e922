"""Whether a run may be resumed: every rule alone, every pair of rules, every reason given."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec.structs
import pytest

from milecastle.builds.plan import (
    Candidate,
    ResumeFacts,
    Rule,
    find_previous,
    judge,
)
from tests.unit.builds.facts import a_failure, a_run

IN_ORDER = ResumeFacts(
    previous=a_run(retry_count=2),
    failure=a_failure(),
    retry_count=3,
    invalid={"elsewhere": "its code changed"},
    upstream=frozenset({"fetch"}),
)

BREACHES: dict[Rule, dict[str, Any]] = {
    "workspace": {"damage": ("a checkpoint does not decode",)},
    "previous": {"previous": None},
    "failed": {"failure": None},
    "resumable": {"failure": a_failure(failure_class="graph")},
    "graph": {"same_graph": False},
    "retry": {"retry_count": 5},
    "upstream": {"invalid": {"fetch": "input 'a.csv' changed"}},
}

# Of a run that is not there nothing more can be said; one that did not fail has no failure.
SILENT = {
    "previous": {"failed", "resumable", "graph", "retry"},
    "failed": {"resumable"},
}


def rules_against(*breaches: Rule) -> set[Rule]:
    changes = {name: value for rule in breaches for name, value in BREACHES[rule].items()}
    if "failed" in breaches:
        changes["failure"] = None
    facts = msgspec.structs.replace(IN_ORDER, **changes)
    return {reason.rule for reason in judge(facts).reasons}


def test_a_run_that_failed_is_resumed_if_everything_is_in_order() -> None:
    verdict = judge(IN_ORDER)
    assert verdict
    assert verdict.reasons == ()


@pytest.mark.parametrize("rule", BREACHES)
def test_each_rule_alone_refuses(rule: Rule) -> None:
    assert rules_against(rule) == {rule}


@pytest.mark.parametrize(("one", "other"), list(combinations(BREACHES, 2)))
def test_of_two_breaches_both_are_given(one: Rule, other: Rule) -> None:
    expected = {one, other} - SILENT.get(one, set()) - SILENT.get(other, set())
    assert rules_against(one, other) == expected


def test_all_breaches_that_can_meet_are_given_at_once() -> None:
    assert rules_against("workspace", "resumable", "graph", "retry", "upstream") == {
        "workspace",
        "resumable",
        "graph",
        "retry",
        "upstream",
    }


def messages(**changes: Any) -> list[str]:
    return [str(reason) for reason in judge(msgspec.structs.replace(IN_ORDER, **changes)).reasons]


def test_each_damage_is_a_separate_reason() -> None:
    assert messages(damage=("one", "two")) == [
        "the workspace is damaged: one",
        "the workspace is damaged: two",
    ]


def test_a_missing_run_is_named_if_it_was_asked_for() -> None:
    assert messages(previous=None, asked_for="run-9") == ["there is no run run-9"]
    assert messages(previous=None) == [
        "no run of this graph has failed, so there is nothing to resume"
    ]


def test_a_run_that_ended_well_is_not_resumed() -> None:
    [message] = messages(previous=a_run(status="completed", retry_count=2), failure=None)
    assert message == "run run-1 did not fail: it is completed"


@pytest.mark.parametrize(
    ("failure_class", "resumable"),
    [("graph", False), ("workspace", False), ("execution", True), ("system", True)],
)
def test_the_class_of_the_failure_decides(failure_class: Any, resumable: bool) -> None:
    facts = msgspec.structs.replace(IN_ORDER, failure=a_failure(failure_class=failure_class))
    assert bool(judge(facts)) is resumable


@pytest.mark.parametrize(("count", "right"), [(2, False), (3, True), (4, False), (0, False)])
def test_the_retry_count_goes_up_by_exactly_one(count: int, right: bool) -> None:
    assert bool(judge(msgspec.structs.replace(IN_ORDER, retry_count=count))) is right


def test_what_is_invalid_elsewhere_does_not_matter() -> None:
    assert messages(invalid={"other": "its code changed"}, upstream=frozenset({"fetch"})) == []
    [message] = messages(invalid={"fetch": "its code changed"}, upstream=frozenset({"fetch"}))
    assert "'fetch', upstream of the resume point, is no longer valid: its code changed" in message


# -- which run is resumed --------------------------------------------------------------------


def found(*candidates: Candidate) -> str | None:
    record = find_previous(candidates, "f1")
    return record.run_id if record else None


def test_the_run_that_is_found_has_the_same_fingerprint() -> None:
    other = a_run("run-2", fingerprint="f2", started_at=9)
    assert found(Candidate(other, a_failure())) is None
    assert found(Candidate(other, a_failure()), Candidate(a_run(), a_failure())) == "run-1"


def test_the_run_that_is_found_has_a_failure() -> None:
    later = a_run("run-2", started_at=9_000_000, status="completed")
    assert found(Candidate(a_run(), a_failure()), Candidate(later, None)) == "run-1"


def test_the_run_that_is_found_started_last() -> None:
    runs = [a_run(f"run-{start}", started_at=start) for start in (5, 9, 7)]
    assert found(*(Candidate(run, a_failure()) for run in runs)) == "run-9"


def test_ties_go_by_run_id() -> None:
    runs = [a_run(name, started_at=5) for name in ("run-b", "run-c", "run-a")]
    assert found(*(Candidate(run, a_failure()) for run in runs)) == "run-c"


def test_without_runs_none_is_found() -> None:
    assert found() is None
