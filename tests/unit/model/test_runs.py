"""Runs: one table of what may become of them."""

from __future__ import annotations

from typing import get_args

import pytest

from milecastle.model.run import TRANSITIONS, RunStatus, may_become

STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)


def test_the_table_names_every_status() -> None:
    assert set(TRANSITIONS) == set(STATUSES)


@pytest.mark.parametrize("ended", ["completed", "failed", "cancelled", "superseded"])
def test_a_run_that_ended_never_changes_again(ended: RunStatus) -> None:
    assert [new for new in STATUSES if may_become(ended, new)] == [ended]


@pytest.mark.parametrize("resting", ["interrupted", "sleeping"])
def test_a_run_that_waits_resumes_or_is_cancelled_or_superseded(resting: RunStatus) -> None:
    found = {new for new in STATUSES if may_become(resting, new)}
    assert found == {resting, "queued", "running", "cancelled", "superseded"}


def test_a_running_run_may_become_anything() -> None:
    assert all(may_become("running", new) for new in STATUSES)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS["failed"] = ("running",)  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
