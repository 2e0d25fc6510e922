"""The benchmark of steps, in small."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from benchmarks import steps
from benchmarks.loop import text, verify


@pytest.fixture
def thawed() -> Iterator[None]:
    """Undo the freezing of the collector, for the tests that follow."""
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_the_figures_are_one_flat_ratio_for_each_kind_of_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("langgraph")
    monkeypatch.setattr(steps, "STEPS", 20)
    monkeypatch.setattr(steps, "QUICK_ROUNDS", 1)
    report = steps.measure(quick=True)
    assert list(report.figures) == ["no_store", "memory", "async_no_store"]
    assert all(isinstance(ratio, float) and ratio > 0 for ratio in report.figures.values())
    assert [line.split()[0] for line in report.table.splitlines()[1:]] == list(report.figures)


def test_a_ratio_is_the_peers_time_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(count: int, *, rounds: int) -> dict[str, tuple[float, float]]:
        del count, rounds
        return {"no_store": (0.3, 0.01)}

    monkeypatch.setattr(steps, "compare", compared)
    report = steps.measure()
    assert report.figures == {"no_store": 30.0}
    assert report.table.splitlines()[1].split() == ["no_store", "300.0", "10.00", "30.0"]


def test_work_that_was_not_done_is_refused() -> None:
    done = {"n": 2, "items": [text(0), text(1)]}
    verify(done, 2)
    for undone in ({"n": 1}, {"items": [text(0)]}, {"items": [text(1), text(0)]}):
        with pytest.raises(AssertionError, match="2 steps"):
            verify(done | undone, 2)


def test_each_text_has_its_100_bytes_and_is_its_own() -> None:
    texts = {text(n) for n in range(1_000)}
    assert len(texts) == 1_000
    assert {len(one.encode()) for one in texts} == {100}
