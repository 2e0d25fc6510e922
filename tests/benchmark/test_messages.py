"""The benchmark of messages, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bare, messages
from benchmarks.postgres_server import postgres_server
from tests.postgres_cluster import needs_postgres

SMALL = messages.Size(messages=5, rounds=1, pings=2, threads=1, each=3, peer_rounds=1)


def test_a_figure_without_a_suffix_is_that_of_the_slower_database() -> None:
    """Fails if it is the lesser, or what was not measured has no figure."""
    found = {f"{name}_sqlite": 1.0 for name in ("send_vs_insert", "receive_vs_step")}
    figures = messages.report(found | {"send_vs_insert_postgres": 2.00049}).figures
    assert figures["send_vs_insert"] == figures["send_vs_insert_postgres"] == 2.0
    assert figures["receive_vs_step"] == 1.0
    assert figures["vs_dbos"] is None


def test_the_bare_loop_leaves_the_very_rows_of_the_messages(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / name}" for name in ("sent.db", "bare.db")]
    for url in urls:
        assert messages.sent(0, url) >= 0
    assert messages.sent(5, urls[0]) > 0
    rows = messages.sqlite_rows(urls[0])[-5:]
    assert bare.sqlite_inserts_with_room(tmp_path / "bare.db", rows, "mailbox") > 0
    assert messages.sqlite_rows(urls[1])[-5:] == rows


def test_sqlite_has_both_figures(tmp_path: Path) -> None:
    found = messages.on_sqlite(tmp_path, SMALL)
    assert [*found] == ["send_vs_insert_sqlite", "receive_vs_step_sqlite"]
    assert all(value > 0 for value in found.values())
    assert not list(tmp_path.iterdir())


@needs_postgres
def test_postgres_has_all_figures() -> None:
    pytest.importorskip("dbos")
    with postgres_server() as cluster:
        assert cluster is not None
        found = messages.on_postgres(cluster, SMALL)
    missing = {*messages.FIGURES} - {*found}
    assert {name for name in missing if "sqlite" not in name} == {
        "send_vs_insert",
        "receive_vs_step",
    }
    assert all(value > 0 for value in found.values())
