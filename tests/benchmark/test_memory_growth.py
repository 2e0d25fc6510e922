"""The benchmark of memory, in small."""

from __future__ import annotations

import pytest

from benchmarks import memory_growth


def test_twice_the_steps_hold_at_most_2_2_times_the_bytes() -> None:
    once, twice = memory_growth.held_bytes(200), memory_growth.held_bytes(400)
    assert once > 200 * 100
    assert twice <= 2.2 * once


def test_the_figures_are_both_sizes_and_their_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    def held_bytes(steps: int) -> int:
        return steps * steps

    monkeypatch.setattr(memory_growth, "held_bytes", held_bytes)
    assert memory_growth.measure().figures == {
        "bytes_1000": 1_000_000,
        "bytes_2000": 4_000_000,
        "ratio": 4.0,
    }
