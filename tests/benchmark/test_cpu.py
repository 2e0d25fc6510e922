"""The benchmark of processor time, in small."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from time import process_time
from typing import Literal

import pytest

from benchmarks import cpu
from benchmarks.milecastle_loop import memory, no_store
from benchmarks.stores import BARE, OURS, Rates, Size
from scripts import flames

SMALL = cpu.Scale(Size(20, 1, clock=process_time), 1, 20, 5)


def test_a_figure_is_our_time_over_that_of_the_bare_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the ratio is turned round, or what was not measured has no figure."""

    def compared(scale: cpu.Scale) -> dict[str, Rates]:
        assert scale is cpu.QUICK
        return {"memory": {BARE: 500_000.0, OURS: 100_000.0}}

    monkeypatch.setattr(cpu, "compare", compared)
    report = cpu.measure(quick=True)
    assert report.figures["memory"] == 5.0
    assert report.figures["memory_us"] == 10.0
    assert report.figures["postgres"] is None
    assert report.table.splitlines()[1].split() == ["memory", "2.00", "10.00", "5.00"]


@pytest.mark.parametrize(("ours", "bare"), [(no_store, cpu.bare_loop), (memory, cpu.bare_writes)])
def test_both_loops_do_their_work_in_processor_time(ours: cpu.OurLoop, bare: cpu.BareLoop) -> None:
    rates = cpu.in_memory(SMALL, bare, ours)
    assert rates[BARE] > 0
    assert rates[OURS] > 0


@pytest.mark.parametrize("verb", ["invoke", "submit"])
def test_new_threads_are_measured_in_processor_time(
    tmp_path: Path, verb: Literal["invoke", "submit"]
) -> None:
    rates = cpu.new_threads(tmp_path, SMALL, verb)
    assert 0 < rates[OURS] < rates[BARE]


def test_a_flame_graph_has_a_box_for_each_function_that_took_time() -> None:
    """Fails if boxes are not as wide as their share, or names are not escaped."""
    inner, outer = ("a.py", "<lambda>", 2), ("a.py", "outer", 1)
    drawn = flames.draw("memory", Counter({(outer, inner): 3, (outer,): 1}))
    assert "outer, a.py: 100.0%, most at line 1" in drawn
    assert "&lt;lambda&gt;, a.py: 75.0%, most at line 2" in drawn
    assert 'width="540.0"' in drawn
