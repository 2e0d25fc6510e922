"""`scripts.measure_house` counts by its definitions."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

from scripts import measure_house

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MODULE = '''\
"""What that is of that."""

def used(n: int) -> int:
    """Whether of."""
    return _once(n) + _twice(n) + _twice(n)

def _once(n: int) -> int:
    return n

def _twice(n: int) -> int:
    return n
'''


def figures(package: Path) -> dict[str, float]:
    return {name: value for name, value, _ in measure_house.of_code(package)}


def test_code_is_measured_by_the_definitions(tmp_path: Path) -> None:
    """Fails if helpers with two callers count, or lines of `testing`."""
    (tmp_path / "testing").mkdir()
    (tmp_path / "module.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "testing" / "clock.py").write_text("now = 0\n", encoding="utf-8")
    assert list(figures(tmp_path).values()) == [11, 3, 1, 1, 2, 285.7, 285.7, 142.9, 2]


def test_statements_and_calls_of_the_package_are_counted() -> None:
    """Fails if calls of other packages count, or statements run by `executemany` do not."""
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE t (n)")
        traced = measure_house.traced(
            lambda: (
                database.execute("SELECT 1"),
                database.executemany("DELETE FROM t WHERE n = ?", []),
            )
        )
    database.close()
    assert traced == measure_house.Trace(0, frozenset(), 2)


def test_every_figure_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure_house.main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed) == 16
    assert all(value > 0 for name, value in printed.items() if "begin with" not in name)
