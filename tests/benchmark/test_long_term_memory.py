"""The benchmark of long-term memory, in small."""

from __future__ import annotations

from pathlib import Path

from benchmarks import long_term_memory

SMALL = long_term_memory.Size(steps=2, gets=2, items=1000, rounds=1)


def test_a_figure_without_a_suffix_is_that_of_the_slower_database() -> None:
    """Fails if it is the lesser, or what was not measured has no figure."""
    found = {"put_vs_step_sqlite": 1.0, "put_vs_step_postgres": 2.0}
    figures = long_term_memory.report(found).figures
    assert figures["put_vs_step"] == 2.0
    assert figures["get_vs_bare"] is None


def test_sqlite_has_its_figures(tmp_path: Path) -> None:
    found = long_term_memory.on_sqlite(tmp_path, SMALL)
    assert [*found] == ["put_vs_step_sqlite", "get_vs_bare_sqlite", "search_growth"]
    assert all(value > 0 for value in found.values())
