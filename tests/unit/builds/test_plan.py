"""The plan: reuse or execute, and every reason. Nothing is read from any disk here."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec.structs
import pytest

from milecastle.builds.plan import (
    Cause,
    NodeFacts,
    Plan,
    Reason,
    Verdict,
    make_plan,
    reasons_against,
)
from tests.unit.builds.facts import a_checkpoint, node_facts

CHANGES: dict[Cause, dict[str, Any]] = {
    "exit-code": {"checkpoint": {"exit_code": 3}},
    "trace": {"trace": "failed"},
    "cache": {"cached": False},
    "expired": {"checkpoint": {"expires_at": 10}, "now": 10},
    "code": {"code_version": "c2"},
    "parameters": {"parameters": "p2"},
    "state": {"input": "i2"},
    "input": {"inputs": {"in.txt": "other"}},
    "outputs": {"outputs": {"out.txt": "h2", "more.txt": None}},
    "upstream": {"upstream": ("a",)},
}


def facts_with(*causes: Cause) -> NodeFacts:
    changes: dict[str, Any] = {}
    recorded: dict[str, Any] = {}
    for cause in causes:
        change = dict(CHANGES[cause])
        recorded |= change.pop("checkpoint", {})
        changes |= change
    return node_facts(checkpoint=a_checkpoint("b", **recorded), **changes)


def causes_of(facts: NodeFacts) -> list[Cause]:
    return [why.cause for why in reasons_against(facts, {})]


def test_a_node_with_a_valid_checkpoint_is_reused() -> None:
    decision = make_plan([node_facts()], "incremental")["b"]
    assert (decision.action, decision.reasons, decision.restore) == ("reuse", (), ())


@pytest.mark.parametrize("cause", CHANGES)
def test_each_change_alone_makes_it_invalid(cause: Cause) -> None:
    assert causes_of(facts_with(cause)) == [cause]


@pytest.mark.parametrize(("one", "other"), list(combinations(CHANGES, 2)))
def test_of_two_changes_both_are_given(one: Cause, other: Cause) -> None:
    assert set(causes_of(facts_with(one, other))) == {one, other}


def test_all_changes_are_given_at_once() -> None:
    assert set(causes_of(facts_with(*CHANGES))) == set(CHANGES)


def test_a_checkpoint_that_does_not_match_its_own_hash_is_damage() -> None:
    forged = msgspec.structs.replace(a_checkpoint(), task_hash="0" * 64)
    assert causes_of(node_facts(checkpoint=forged)) == ["checkpoint"]


@pytest.mark.parametrize("shown", ["started", "failed", "reused", None])
def test_only_a_trace_that_shows_it_complete_will_do(shown: Any) -> None:
    assert causes_of(node_facts(trace=shown)) == ["trace"]


def test_each_damage_of_the_entry_is_given() -> None:
    reasons = reasons_against(node_facts(damage=("one", "two")), {})
    assert [str(why) for why in reasons] == [
        "its cache entry is damaged: one",
        "its cache entry is damaged: two",
    ]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"in.txt": None}, "input 'in.txt' is missing"),
        ({"in.txt": "h9"}, "input 'in.txt' changed"),
        ({"in.txt": "h1", "new.txt": "h5"}, "input 'new.txt' is new"),
        ({}, "it no longer reads 'in.txt'"),
    ],
)
def test_the_input_that_changed_is_named(inputs: Any, message: str) -> None:
    assert [str(why) for why in reasons_against(node_facts(inputs=inputs), {})] == [message]


def test_a_result_that_has_not_expired_yet_is_valid() -> None:
    facts = node_facts(checkpoint=a_checkpoint("b", expires_at=11), now=10)
    assert causes_of(facts) == []


def test_a_node_that_declares_nothing_always_runs() -> None:
    [decision] = make_plan([NodeFacts(name="b", declared=False)], "incremental").values()
    assert [why.cause for why in decision.reasons] == ["undeclared"]


def test_a_node_without_a_checkpoint_runs() -> None:
    [decision] = make_plan([NodeFacts(name="b")], "incremental").values()
    assert [why.cause for why in decision.reasons] == ["incomplete"]


def test_a_clean_run_reuses_nothing() -> None:
    [decision] = make_plan([node_facts()], "clean").values()
    assert decision.action == "execute"
    assert [why.cause for why in decision.reasons] == ["mode"]


# -- what lies upstream ------------------------------------------------------------------------


def chain(**first: Any) -> list[NodeFacts]:
    """a, then b on a, then c on b; and d on its own."""
    facts = [node_facts("a", **first)]
    for name, above in (("b", "a"), ("c", "b")):
        checkpoint = a_checkpoint(name, upstream={above: f"o-{above}"})
        facts.append(node_facts(name, upstream=(above,), checkpoint=checkpoint))
    return [*facts, node_facts("d")]


def test_everything_is_reused_if_everything_is_valid() -> None:
    assert {one.action for one in make_plan(chain(), "incremental").values()} == {"reuse"}


def test_what_follows_an_executed_node_is_executed() -> None:
    plan = make_plan(chain(code_version="c2"), "incremental")
    assert {name: one.action for name, one in plan.items()} == {
        "a": "execute",
        "b": "execute",
        "c": "execute",
        "d": "reuse",
    }
    assert [str(why) for why in plan["c"].reasons] == ["upstream node 'b' is executed"]
    assert plan["c"].invalid == ()
    assert [why.cause for why in plan["a"].invalid] == ["code"]


def test_a_node_whose_upstream_now_gives_something_else_is_executed() -> None:
    facts = chain(checkpoint=a_checkpoint("a", output_hash="another"))
    plan = make_plan(facts, "incremental")
    assert [str(why) for why in plan["b"].reasons] == ["the result of node 'a' changed"]


@pytest.mark.parametrize("recorded", [{}, {"x": "o-a"}, {"a": "o-a", "x": "o-x"}])
def test_a_node_that_builds_on_other_nodes_is_executed(recorded: dict[str, str]) -> None:
    later = node_facts("b", upstream=("a",), checkpoint=a_checkpoint("b", upstream=recorded))
    plan = make_plan([node_facts("a"), later], "incremental")
    assert [str(why) for why in plan["b"].reasons] == ["its upstream nodes changed"]


# -- outputs that are put back -----------------------------------------------------------------


@pytest.mark.parametrize("there", [None, "edited"])
def test_an_output_that_is_lost_or_edited_is_put_back(there: str | None) -> None:
    [decision] = make_plan([node_facts(outputs={"out.txt": there})], "incremental").values()
    assert (decision.action, decision.restore) == ("reuse", ("out.txt",))


def test_only_the_outputs_that_differ_are_put_back() -> None:
    checkpoint = a_checkpoint("b", outputs={"x": "1", "y": "2", "z": "3"})
    facts = node_facts(checkpoint=checkpoint, outputs={"x": "1", "y": None, "z": "9"})
    [decision] = make_plan([facts], "incremental").values()
    assert decision.restore == ("y", "z")


# -- for people --------------------------------------------------------------------------------


def test_a_plan_can_be_printed() -> None:
    facts = [
        node_facts("a", outputs={"out.txt": None}),
        node_facts("b", code_version="c2", parameters="p2"),
    ]
    plan = Plan(
        mode="resume-only",
        decisions=make_plan(facts, "resume-only"),
        verdict=Verdict((Reason("graph", "the graph has changed since"),)),
    )
    assert str(plan).splitlines() == [
        "resume-only: 1 to execute, 1 to reuse",
        "  refused: the graph has changed since",
        "  reuse    a: valid; 'out.txt' will be restored",
        "  execute  b: its code changed; its parameters changed",
    ]
    assert (plan.executed, plan.reused) == (("b",), ("a",))
