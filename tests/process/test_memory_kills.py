"""A process is killed while its run writes long-term memory: versions count the steps exactly."""

from __future__ import annotations

import sys

import pytest

from tests.process.memory_kills import killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]


@pytest.mark.parametrize(
    ("steps", "kills"), [(40, 4), pytest.param(100, 200, marks=pytest.mark.slow)]
)
def test_versions_count_steps_though_the_process_is_killed(
    url: str, steps: int, kills: int
) -> None:
    """Fails if memory is written beside the batch: see the control."""
    done, version, texts = killed(url, "commit", steps, kills, seed=34)
    assert version == steps
    assert texts == [f"step {steps}"]
    assert done > 0


@pytest.mark.control
def test_a_transaction_of_its_own_counts_more(url: str) -> None:
    """The control: a node that writes by itself. Each kill comes behind a write, which stays."""
    done, version, _ = killed(url, "apart", 40, 6, seed=34)
    assert done > 0
    assert version == 40 + done
