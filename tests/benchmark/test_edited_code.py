"""The comparison of edited code, in small."""

from __future__ import annotations

from benchmarks.edited_code import cases, ours, theirs


def test_no_value_belongs_to_another_call_if_steps_have_names() -> None:
    found = ours(cases("functions", 40), "functions")
    assert found["wrong"] == 0
    assert found["refused"] == found["old_code"]
    assert min(found["refused"], found["right"]) > 5


def test_calls_of_one_function_are_taken_for_each_other() -> None:
    """The limit on the page of flows, and a control: a wrong value is seen."""
    assert ours(cases("arguments", 100), "arguments")["wrong"] > 0


def test_dbos_continues_the_same_programs() -> None:
    found = theirs("functions", 10)
    assert sum(found.values()) == 10
    assert found["right"] > 0
