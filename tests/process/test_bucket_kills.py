"""Workers are killed while runs take from a bucket: the rate holds, and each run takes once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.every_store import Stores
from tests.process.bucket_kills import Size, killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]
QUICK = Size(runs=30, workers=2, kills=3, rate=10, burst=4)
LONG = Size(runs=500, workers=5, kills=50, rate=2, burst=10)


@pytest.mark.parametrize(
    ("size", "least"),
    [
        pytest.param(QUICK, 0.0, id="quick"),
        pytest.param(LONG, 0.95, marks=pytest.mark.slow, id="long"),
    ],
)
def test_the_rate_holds_and_each_run_takes_once_though_workers_are_killed(
    url: str, tmp_path: Path, size: Size, least: float
) -> None:
    """By the times of the store, in any second. The controls below are found by the same judge.

    The quick form is too short to judge throughput: one reclaimed run takes as long as the others.
    """
    outcome = killed(url, tmp_path, size, seed=37)
    print(outcome)
    assert outcome.is_good(size), outcome
    assert outcome.kills == size.kills
    assert least <= outcome.throughput


@pytest.mark.control
def test_a_window_by_the_clock_is_caught(tmp_path: Path) -> None:
    """It grants a whole period's amount at once, at the edges twice of it."""
    size = Size(runs=30, workers=2, kills=0, rate=20, burst=2, period=2.0)
    outcome = killed(_fresh(tmp_path), tmp_path, size, seed=37, cheat="windows")
    assert outcome.most > size.allowed, outcome


@pytest.mark.control
def test_a_take_without_a_record_is_caught(tmp_path: Path) -> None:
    """A node that runs again after a kill takes again."""
    size = Size(runs=30, workers=2, kills=4, rate=10, burst=4)
    outcome = killed(_fresh(tmp_path), tmp_path, size, seed=37, cheat="takes-again")
    assert outcome.again, outcome


def _fresh(folder: Path) -> str:
    stores = Stores(folder)
    stores.open("sqlite")
    stores.close()
    return stores.url("sqlite")
