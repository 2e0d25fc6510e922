"""Workers are killed while children run: each result is exact, and none is outstanding."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.every_store import POSTGRES, Stores
from tests.process.child_kills import Size, killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]
QUICK = Size(parents=4, children=8, workers=2, kills=3)
LONG = Size(parents=50, children=20, workers=3, kills=100)


@pytest.mark.requirement("M9")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=POSTGRES)])
@pytest.mark.parametrize(
    "size", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_each_child_is_joined_once_though_workers_are_killed(
    kind: str, tmp_path: Path, size: Size
) -> None:
    """Results, names, unread messages and rows are compared with what must be there."""
    stores = Stores(tmp_path)
    stores.open(kind)
    stores.close()
    outcome = killed(stores.url(kind), tmp_path, size, seed=29)
    assert outcome.is_good, outcome
    assert outcome.kills == size.kills
