"""The benchmarks of the stores, in small."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from benchmarks import bare, growth, stores
from benchmarks.growing import (
    ITEM,
    KEY,
    VALUE,
    Size,
    SqliteKeeper,
    make_items,
    make_value,
    record_count,
)
from milecastle.stores.memory import MemoryStore

STEPS = 5
SMALL = stores.Size(
    steps=STEPS,
    rounds=1,
    peer_rounds=1,
    runs=3,
    group_steps=2,
    peer_group_steps=2,
    group_rounds=1,
)


def test_the_figures_are_the_rates_of_ours_over_those_of_the_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {
        "sqlite_full": {"bare": 100.0, "milecastle": 90.0},
        "sqlite_normal": {"bare": 1_000.0, "milecastle": 700.0},
        "sqlite_group": {"bare": 100.0, "milecastle": 400.0},
        "jsonl": {"bare": 100.0, "milecastle": 80.0},
        "sqlite_beside": {"milecastle": 100.0, "langgraph": 10.0},
        "postgres": {"bare": 100.0, "milecastle": 90.0},
        "postgres_group": {"bare": 100.0, "milecastle": 300.0},
        "postgres_beside": {"milecastle": 90.0, "langgraph": 10.0},
        "postgres_group_beside": {"milecastle": 300.0, "langgraph": 20.0},
    }

    def compared(size: stores.Size) -> dict[str, stores.Rates]:
        del size
        return rates

    monkeypatch.setattr(stores, "compare", compared)
    report = stores.measure(quick=True)
    assert report.figures == {
        "sqlite_full_vs_bare": 0.9,
        "sqlite_normal_vs_bare": 0.7,
        "sqlite_vs_langgraph": 10.0,
        "jsonl_vs_bare": 0.8,
        "postgres_vs_bare": 0.9,
        "postgres_vs_langgraph": 9.0,
        "postgres_group_vs_bare": 3.0,
        "postgres_group_vs_langgraph": 15.0,
    }
    assert [line.split()[0] for line in report.table.splitlines()[1:]] == list(rates)


def test_what_could_not_be_measured_is_null_and_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compared(size: stores.Size) -> dict[str, stores.Rates]:
        del size
        return {"sqlite_full": {"bare": 100.0, "milecastle": 90.0}}

    monkeypatch.setattr(stores, "compare", compared)
    figures = stores.measure().figures
    assert list(figures) == list(stores.FIGURES)
    assert figures["sqlite_full_vs_bare"] == 0.9
    assert figures["sqlite_vs_langgraph"] is None
    assert figures["postgres_vs_bare"] is None


@pytest.mark.parametrize("synchronous", ["full", "normal"])
def test_sqlite_runs_beside_its_bare_loop(tmp_path: Path, synchronous: bare.Synchronous) -> None:
    rates = stores.sqlite(tmp_path, SMALL, synchronous)
    assert list(rates) == ["bare", "milecastle"]
    assert all(rate > 0 for rate in rates.values())
    assert not list(tmp_path.iterdir())


def test_sqlite_runs_beside_its_peer(tmp_path: Path) -> None:
    pytest.importorskip("langgraph.checkpoint.sqlite")
    rates = stores.sqlite_beside(tmp_path, SMALL)
    assert list(rates) == ["milecastle", "langgraph"]
    assert all(rate > 0 for rate in rates.values())


def test_files_and_groups_run_beside_their_bare_loops(tmp_path: Path) -> None:
    for rates in (stores.jsonl(tmp_path, SMALL), stores.sqlite_group(tmp_path, SMALL)):
        assert list(rates) == ["bare", "milecastle"]
        assert all(rate > 0 for rate in rates.values())


def test_the_bare_loop_leaves_the_very_rows_of_the_run(tmp_path: Path) -> None:
    paths = tmp_path / "run.db", tmp_path / "bare.db"
    stores.ours(f"sqlite:///{paths[0]}", STEPS)
    rows = bare.sqlite_rows(paths[0])
    with sqlite3.connect(paths[0]) as source, sqlite3.connect(paths[1]) as target:
        for (statement,) in source.execute("SELECT sql FROM sqlite_schema WHERE name = 'entries'"):
            target.execute(statement)
    assert bare.sqlite_inserts(paths[1], rows, "normal") > 0
    assert len(rows) > STEPS
    assert bare.sqlite_rows(paths[1]) == rows


def test_the_bare_lines_are_those_of_the_log(tmp_path: Path) -> None:
    lines = [b"one\n", b"two\n"]
    assert bare.file_writes(tmp_path / "log", lines) > 0
    assert bare.file_lines(tmp_path / "log") == lines


def test_growth_reports_a_ratio_for_each_store_and_null_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {
        "sqlite": {"bytes_vs_raw": 2.0, "10x": 10.0, "head_vs_snapshot": 1.5, "page_growth": 1.0},
        "langgraph_sqlite": {"bytes_vs_raw": 500.0, "10x": 90.0, "page_growth": 9.0},
    }

    def compared(size: Size) -> dict[str, growth.Found]:
        del size
        return found

    monkeypatch.setattr(growth, "compare", compared)
    report = growth.measure(quick=True)
    figures = [report.figures[f"{store}_{name}"] for store in found for name in growth.FIGURES]
    assert figures == [2.0, 10.0, 1.5, 1.0, 500.0, 90.0, None, 9.0]
    others = {name: value for name, value in report.figures.items() if "postgres" in name}
    assert len(others) == 8
    assert set(others.values()) == {None}
    assert report.table.splitlines()[1].split() == ["bytes_vs_raw", "2.00", "500.00"]


def test_growth_is_measured_on_a_thread_that_grew(tmp_path: Path) -> None:
    size = Size(steps=20, checkpoints=200, overwrites=3, rounds=1)
    found = growth.study(SqliteKeeper(tmp_path), size)
    assert list(found) == [*growth.FIGURES, growth.OVERWRITE]
    assert found["bytes_vs_raw"] > 1
    assert found["10x"] > 2
    assert found[growth.OVERWRITE] > 1


def test_items_have_their_bytes_and_repeat_nothing() -> None:
    items = make_items(50)
    assert {len(item.encode()) for item in items} == {ITEM}
    assert len(set(items)) == 50
    assert len(make_value(1)) == VALUE
    assert make_value(1) != make_value(2)


def test_a_recorded_thread_can_be_written_in_large_batches() -> None:
    store = MemoryStore()
    for batch in record_count(2_500):
        store.commit(batch)
    (newest,) = store.history(KEY, limit=1)
    assert newest.step == 2_500
    (run,) = store.runs(KEY)
    assert run.status == "completed"
