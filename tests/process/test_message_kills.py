"""Workers are killed while messages come: each is applied once, in its sender's order."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.every_store import Stores
from tests.process.message_kills import Size, killed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL"),
]
QUICK = Size(messages=240, threads=6, workers=2, kills=3)
LONG = Size(messages=1_000, threads=50, workers=3, kills=20)
SEEDS = int(os.environ.get("MILECASTLE_MESSAGE_KILLS", "200")) // LONG.kills
"""How often the long form runs: 10,000 messages and 200 kills, unless said otherwise."""


@pytest.mark.parametrize(
    ("size", "seed"),
    [
        pytest.param(QUICK, 29, id="quick"),
        *(
            pytest.param(LONG, seed, marks=pytest.mark.slow, id=f"long-{seed}")
            for seed in range(SEEDS)
        ),
    ],
)
def test_each_message_is_applied_once_and_in_order_though_workers_are_killed(
    url: str, tmp_path: Path, size: Size, seed: int
) -> None:
    """The controls below show that lost and doubled messages are found."""
    outcome = killed(url, tmp_path, size, seed=seed)
    assert outcome.is_good, outcome
    assert outcome.kills == size.kills


@pytest.mark.parametrize(
    ("cheat", "fault"), [("consumes-nothing", "doubled"), ("consumes-on-receipt", "lost")]
)
@pytest.mark.control
def test_workers_that_consume_at_the_wrong_time_are_caught(
    tmp_path: Path, cheat: str, fault: str
) -> None:
    """Messages belong to the commit that applies them."""
    url = Stores(tmp_path).url("sqlite")
    outcome = killed(url, tmp_path, Size(48, 2, 1, 1), seed=29, cheat=cheat)
    assert getattr(outcome, fault) > 0, outcome
