"""F9: whatever happens to the workers, and whatever their clocks say, each tick is fired once.

``MILECASTLE_FIRINGS`` is the number of firings in the long form, and ``MILECASTLE_PERIOD`` the time
between two of them in milliseconds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.every_store import Stores
from tests.process.schedule_chaos import fired_fast

FIRINGS = int(os.environ.get("MILECASTLE_FIRINGS", "40"))
PERIOD = int(os.environ.get("MILECASTLE_PERIOD", "100"))


@pytest.mark.requirement("F9")
def test_each_tick_is_fired_once_and_in_order_whatever_is_killed(url: str, tmp_path: Path) -> None:
    """The controls below show that missing and doubled firings are found."""
    outcome = fired_fast(url, tmp_path, seed=11, firings=FIRINGS, period=PERIOD)
    print(outcome)
    assert outcome.is_good, outcome
    assert outcome.fired >= FIRINGS
    assert outcome.kills


@pytest.mark.control
def test_workers_that_fire_by_their_own_clocks_are_caught(tmp_path: Path) -> None:
    """Each fires every tick, and no fence decides which one may."""
    url = Stores(tmp_path).url("sqlite")
    outcome = fired_fast(
        url, tmp_path, seed=11, firings=10, period=100, cheat="own-clock", kills=False
    )
    assert outcome.doubled or outcome.disordered  # or two of them have not overlapped


@pytest.mark.control
def test_workers_that_record_what_they_do_not_fire_are_caught(tmp_path: Path) -> None:
    """Every tenth tick counts as fired, and its thread does not exist."""
    url = Stores(tmp_path).url("sqlite")
    outcome = fired_fast(url, tmp_path, seed=11, firings=12, period=100, cheat="drops", kills=False)
    assert outcome.missing
