"""The protocol of children holds in every order, and each of its rules is needed."""

from __future__ import annotations

import pytest

from tests.simulation.children_protocol import RULES, explore


@pytest.mark.requirement("M9")
@pytest.mark.parametrize(
    "budget",
    [
        {"children": 2, "retry_child": 0},
        {"children": 2, "retry_child": 0, "end": 0, "retry_parent": 1},
        {"crash": 2, "end": 2},
        {"crash": 2, "delete": 1},
        {"crash": 2, "retry_parent": 1},
    ],
    ids=["two children", "two of a retried parent", "two crashes", "deleted", "parent retried"],
)
def test_children_are_reported_once_and_cancelled_in_every_order(budget: dict[str, int]) -> None:
    """Removing any rule is caught below."""
    states, faults = explore("", **budget)
    assert states > 2000
    assert not faults


@pytest.mark.parametrize("rule", sorted(RULES))
def test_each_rule_of_children_is_needed(rule: str) -> None:
    """The rule is removed from the protocol."""
    _, faults = explore(rule)
    assert faults
