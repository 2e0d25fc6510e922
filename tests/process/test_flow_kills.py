"""Workers are killed while flows run: each result is exact, and what was recorded ran once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.process.flow_kills import killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]


@pytest.mark.parametrize(
    ("parents", "kills"), [(2, 3), pytest.param(20, 150, marks=pytest.mark.slow)]
)
def test_recorded_calls_run_once_though_workers_are_killed(
    url: str, tmp_path: Path, parents: int, kills: int
) -> None:
    """Fails if a step's result is not committed before the flow continues."""
    outcome = killed(url, tmp_path, parents, kills, seed=30)

    assert outcome.wrong == []
    assert outcome.kills == kills
    assert outcome.late == []
