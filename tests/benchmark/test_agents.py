"""The benchmark of agents, in small."""

from __future__ import annotations

from pathlib import Path

from benchmarks import agents


def test_quickstart_has_at_most_25_lines() -> None:
    assert 15 < agents.quickstart_lines() <= 25


def test_our_agent_stores_a_turn_in_few_bytes(tmp_path: Path) -> None:
    """The long run is beside LangGraph's, with ``python -m benchmarks agents``."""
    assert agents.ours(3, tmp_path / "a.db") > 0
    assert agents.size(agents.ours, 40) < 200_000
