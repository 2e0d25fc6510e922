"""Answers and deadlines race: never both, and each caller gets the correct result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.every_store import Stores
from tests.process.answer_races import Size, answer_without_commit, node_with_a_clock, raced

QUICK = Size(close=40, rounds=1, at_once=40)
ANSWERS = int(os.environ.get("MILECASTLE_ANSWER_RACES", "1000"))
LONG = Size(close=ANSWERS, rounds=ANSWERS // 20, at_once=50)


@pytest.mark.parametrize(
    "size", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["quick", "long"]
)
def test_an_answer_at_its_deadline_is_accepted_or_timed_out_and_never_both(
    url: str, size: Size
) -> None:
    """Any mix is right. Was broken: deadlines that end though an answer is given."""
    outcome = raced(url, size, seed=29)
    print(outcome)
    assert outcome.is_good, outcome


@pytest.mark.parametrize(
    ("cheat", "within"),
    [({"node": node_with_a_clock}, 3600), ({"answer": answer_without_commit}, 0.1)],
    ids=["node-judges-by-a-clock", "answer-without-a-commit"],
)
@pytest.mark.control
def test_an_accepted_answer_that_the_node_does_not_get_is_caught(
    tmp_path: Path, cheat: dict[str, Any], within: float
) -> None:
    """Neither control depends on who is first."""
    url = Stores(tmp_path).url("sqlite")
    size = Size(close=4, rounds=1, at_once=4, workers=1)
    outcome = raced(url, size, seed=29, within=within, **cheat)
    assert outcome.accepted == 4
    assert len(outcome.wrong) == 4, outcome
