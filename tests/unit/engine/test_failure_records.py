"""Describing a failure: types, places and messages."""

from __future__ import annotations

import pytest

from milecastle import Conflict, ExecutionError, RunTimeout, UnserializableState
from milecastle.engine.failure_records import describe
from milecastle.model.run import RESUMABLE


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_a_failing_node_is_described_by_its_cause() -> None:
    cause = raised(ValueError("boom"), KeyError("deeper"))
    error = ExecutionError("node failed", node="a", step=1, path=(), state={}, cause=cause)
    failure = describe(error, run_id="run", node="a", time=7)
    assert (failure.error_type, failure.message, failure.node) == ("ValueError", "boom", "a")
    assert failure.causes == ("KeyError: 'deeper'",)
    assert (failure.run_id, failure.time, failure.attempt) == ("run", 7, 1)
    assert failure.traceback[-1].endswith("in raised")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RunTimeout(seconds=1), "execution"),
        (UnserializableState("no", path="$", type_name="x"), "execution"),
        (Conflict(tenant="a", thread="b", expected=1, head=1), "system"),
        (MemoryError(), "system"),
    ],
)
def test_failures_have_a_class_and_both_can_be_resumed(error: Exception, expected: str) -> None:
    failure = describe(error, run_id="run", node=None, time=0)
    assert failure.failure_class == expected
    assert failure.resumable
    assert RESUMABLE == {"graph": False, "workspace": False, "execution": True, "system": True}


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    failure = describe(first, run_id="run", node=None, time=0)
    assert failure.causes == ("ValueError: second",)


def test_what_was_being_handled_counts_as_a_cause() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904
    except ValueError as error:
        failure = describe(error, run_id="run", node=None, time=0)
    assert failure.causes == ("KeyError: 'inner'",)
