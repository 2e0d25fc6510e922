"""Policies: what users may set."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle import CheckpointConfig, ExecutionConfig, ExecutionOptions, InvalidRequest


def test_a_call_that_sets_nothing_leaves_everything() -> None:
    config = ExecutionConfig(max_steps=3)
    assert config.overridden(None) is config
    assert config.overridden(ExecutionOptions()) is config


def test_what_a_call_sets_wins_field_by_field() -> None:
    config = ExecutionConfig(max_steps=3, cycle_window=7, timeout=9)
    assert config.overridden(ExecutionOptions(cycle_detection=False)) == ExecutionConfig(
        max_steps=3, cycle_window=7, timeout=9, cycle_detection=False
    )
    assert config.overridden(ExecutionOptions(max_steps=4, timeout=1)) == ExecutionConfig(
        max_steps=4, cycle_window=7, timeout=1
    )


@pytest.mark.parametrize(
    "fields",
    [{"max_steps": 0}, {"cycle_window": 0}, {"timeout": 0}, {"cycle_detection": "loose"}],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        ExecutionConfig(**fields)
    with pytest.raises(InvalidRequest):
        ExecutionConfig().overridden(ExecutionOptions(**fields))


def test_an_interval_is_not_negative() -> None:
    assert CheckpointConfig(interval=0).interval == 0
    with pytest.raises(InvalidRequest, match="interval"):
        CheckpointConfig(interval=-1)
