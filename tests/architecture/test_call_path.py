"""Ceilings on the call path: SQL statements, Python calls and modules of one operation on SQLite.

`scripts.measure_house` counts them; lower a ceiling when a figure falls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts import measure_house

if TYPE_CHECKING:
    from collections.abc import Mapping

STATEMENTS = {"invoke": 14, "submit": 8, "wait": 3, "put": 7}
CALLS = 220
MODULES = 40


@pytest.fixture(scope="module")
def traces() -> Mapping[str, measure_house.Trace]:
    return measure_house.traces()


@pytest.mark.parametrize("operation", STATEMENTS)
def test_operation_runs_few_statements(
    traces: Mapping[str, measure_house.Trace], operation: str
) -> None:
    """Seen to fail: `invoke` ran 33 statements, 14 of which looked up the same thread."""
    assert 0 < traces[operation].statements <= STATEMENTS[operation]


def test_invoke_makes_few_calls(traces: Mapping[str, measure_house.Trace]) -> None:
    """Seen to fail: it made 393 calls in 51 modules."""
    assert 0 < traces["invoke"].calls <= CALLS
    assert len(traces["invoke"].modules) <= MODULES
