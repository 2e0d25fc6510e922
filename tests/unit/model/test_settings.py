"""Settings that users write: immutable, equal by value, and refused at once when they are wrong."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from milecastle import (
    CheckpointConfig,
    ExecutionConfig,
    ExecutionOptions,
    InvalidRequest,
    Retry,
    Timeout,
)


def test_settings_are_equal_by_value_and_survive_pickling() -> None:
    first, same = Retry(attempts=5), Retry(attempts=5)
    assert (first, hash(first)) == (same, hash(same))
    assert first != Retry(attempts=4)
    assert Timeout(run=3) != first
    assert pickle.loads(pickle.dumps(first)) == first
    assert first.replaced(delay=2.0) == Retry(attempts=5, delay=2.0)
    assert repr(Timeout(run=3)) == "Timeout(run=3, idle=None)"


def test_settings_cannot_be_changed() -> None:
    settings: Any = ExecutionConfig()
    with pytest.raises(AttributeError, match="create a new one"):
        settings.max_steps = 5
    with pytest.raises(AttributeError, match="create a new one"):
        del settings.max_steps
    assert settings == ExecutionConfig()


def in_a_call(made: Any) -> None:
    """Options are checked by the call that they are for."""
    if isinstance(made, ExecutionOptions):
        ExecutionConfig().overridden(made)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (Retry, "attempts"),
        (Retry, "delay"),
        (Retry, "on"),
        (Timeout, "run"),
        (Timeout, "idle"),
        (ExecutionConfig, "max_steps"),
        (ExecutionOptions, "max_steps"),
        (ExecutionOptions, "cycle_window"),
        (ExecutionOptions, "cycle_detection"),
        (ExecutionOptions, "timeout"),
        (ExecutionOptions, "max_parallel"),
        (ExecutionOptions, "sibling_failure"),
        (ExecutionOptions, "cancel"),
        (CheckpointConfig, "interval"),
    ],
)
@pytest.mark.parametrize("wrong", ["3", -1, [3], [None]])
def test_a_value_that_cannot_be_meant_is_refused_when_declared(
    make: Any, field: str, wrong: Any
) -> None:
    """Seen to fail without the checks of type: ``"3" < 1`` raised a bare TypeError, or nothing."""
    with pytest.raises(InvalidRequest):
        in_a_call(make(**{field: wrong}))


def test_what_can_be_meant_is_taken() -> None:
    assert Retry(on=ValueError).errors == (ValueError,)
    assert Retry(on=[ValueError, KeyError]).errors == (ValueError, KeyError)
    assert ExecutionOptions(cancel=threading.Event(), timeout=0.5).timeout == 0.5
    assert ExecutionConfig().overridden(ExecutionOptions(max_steps=3)).max_steps == 3
