"""Workers are killed while a limit by key holds: no customer has two runs at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.every_store import POSTGRES, Stores
from tests.process.key_kills import Outcome, Size, killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]
QUICK = Size(customers=60, runs=2, workers=2, kills=3)
LONG = Size(customers=1000, runs=2, workers=3, kills=20)


@pytest.mark.requirement("F8")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=POSTGRES)])
@pytest.mark.parametrize(
    "size", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_no_customer_has_two_runs_at_once_and_none_starves(
    kind: str, tmp_path: Path, size: Size
) -> None:
    """One tenant queues five times as much before all others, and gets no more than its share."""
    stores = Stores(tmp_path)
    stores.open(kind)
    stores.close()
    outcome = killed(stores.url(kind), tmp_path, size, seed=34)
    print(outcome)
    assert outcome.is_good, outcome
    assert outcome.kills == size.kills


@pytest.mark.control
def test_claims_that_count_no_keys_are_found(tmp_path: Path) -> None:
    """The control: the same judge finds customers with two runs at once."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    size = Size(customers=20, runs=3, workers=2, kills=1)
    outcome: Outcome = killed(url, tmp_path, size, seed=34, cheat="counts-no-keys")
    assert outcome.together
