"""Workers are killed while events are delivered: each arrives under one id, and no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.every_store import POSTGRES, Stores
from tests.process.hook_kills import Size, killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]
QUICK = Size(runs=16, workers=2, kills=3)
LONG = Size(runs=800, workers=3, kills=100)


@pytest.mark.requirement("N6")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=POSTGRES)])
@pytest.mark.parametrize(
    "size", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_every_event_arrives_under_one_id_though_workers_are_killed(
    kind: str, tmp_path: Path, size: Size
) -> None:
    """None for a run that was only retried, and none at an address of the inside."""
    stores = Stores(tmp_path)
    stores.open(kind)
    stores.close()
    outcome = killed(stores.url(kind), tmp_path, size, seed=31)
    print(outcome)
    assert outcome.is_good, outcome
    assert outcome.kills == size.kills
    assert outcome.expected >= size.runs


@pytest.mark.control
def test_a_notice_made_after_the_commit_is_lost(tmp_path: Path) -> None:
    """The control: the same judge finds lost events if the commit does not leave the notice.

    A kill must come between both, which four kills of a busy machine may miss.
    """
    size = Size(runs=60, workers=2, kills=4)
    for seed in range(31, 37):
        folder = tmp_path / str(seed)
        folder.mkdir()
        url = f"sqlite:///{folder / 'runs.db'}"
        if killed(url, folder, size, seed=seed, cheat="notifies-after").lost:
            return
    raise AssertionError("no event was lost")
