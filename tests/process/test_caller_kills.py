"""Callers are killed in their own transactions: row, run and message are all there, or none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.every_store import POSTGRES, Stores
from tests.process.caller_kills import Cheat, killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]
LONG = int(os.environ.get("MILECASTLE_CALLER_KILLS", "200"))
"""Kills around a commit, and as many around a rollback."""


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=POSTGRES)])
@pytest.mark.parametrize(
    "kills", [5, pytest.param(LONG, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_a_killed_caller_leaves_all_of_its_transaction_or_nothing(
    kind: str, tmp_path: Path, kills: int
) -> None:
    """The controls below show that a part is found."""
    outcome = killed(fresh(kind, tmp_path), kills, seed=29)
    print(outcome)
    assert outcome.is_good, outcome
    assert outcome.kills == {"commit": kills, "rollback": kills}


@pytest.mark.parametrize("cheat", ["submits outside", "sends outside"])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=POSTGRES)])
@pytest.mark.control
def test_a_write_outside_of_the_transaction_is_caught(
    kind: str, tmp_path: Path, cheat: Cheat
) -> None:
    """The rollback leaves it; whether the caller is killed does not matter."""
    outcome = killed(fresh(kind, tmp_path), 1, seed=29, cheat=cheat)
    assert len(outcome.wrong) == 1, outcome
    assert outcome.wrong[0].startswith("rollback 1, which had ended")


def fresh(kind: str, folder: Path) -> str:
    stores = Stores(folder)
    stores.open(kind)
    stores.close()
    return stores.url(kind)
