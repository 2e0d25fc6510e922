"""The benchmark of imports, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import import_time


def with_peer(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    def is_installed(package: str) -> bool:
        assert package == "langgraph"
        return installed

    monkeypatch.setattr(import_time, "is_installed", is_installed)


def test_imports_are_timed_in_turns_after_an_untimed_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def import_once(module: str) -> float:
        asked.append(module)
        return float(len(asked))

    monkeypatch.setattr(import_time, "import_once", import_once)
    assert import_time.import_times(["a", "b"], rounds=2) == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert asked == ["a", "b"] * 3


def test_an_import_is_timed_in_a_fresh_interpreter() -> None:
    assert 0 < import_time.import_once("colorsys") < 5


def test_our_own_name_and_the_installers_are_not_counted() -> None:
    listed = ["milecastle", "msgspec", "pip", "setuptools", "wheel", "click"]
    assert import_time.besides_ours(listed) == ["click", "msgspec"]


def test_the_figures_are_both_medians_and_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"milecastle": [0.05, 0.01, 0.02], "langgraph.graph": [1.0, 2.0, 3.0]}

    def import_times(modules: list[str], *, rounds: int) -> dict[str, list[float]]:
        del rounds
        return {module: seconds[module] for module in modules}

    def installed_besides(project: Path) -> list[str]:
        assert (project / "benchmarks").is_dir()
        return ["msgspec"]

    monkeypatch.setattr(import_time, "import_times", import_times)
    monkeypatch.setattr(import_time, "installed_besides", installed_besides)
    with_peer(monkeypatch, installed=True)
    report = import_time.measure(quick=True)
    assert report.figures == {"import_ms": 20.0, "langgraph_import_ms": 2000.0, "packages": 1}
    assert "msgspec" in report.table


def test_without_the_peer_its_figure_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_times(modules: list[str], *, rounds: int) -> dict[str, list[float]]:
        del rounds
        return {module: [0.02] for module in modules}

    def installed_besides(project: Path) -> list[str]:
        del project
        return []

    monkeypatch.setattr(import_time, "import_times", import_times)
    monkeypatch.setattr(import_time, "installed_besides", installed_besides)
    with_peer(monkeypatch, installed=False)
    figures = import_time.measure(quick=True).figures
    assert figures == {"import_ms": 20.0, "langgraph_import_ms": None, "packages": 0}
