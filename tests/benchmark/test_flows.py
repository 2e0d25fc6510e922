"""The benchmark of flows, in small."""

from __future__ import annotations

from pathlib import Path

from benchmarks import flows
from benchmarks.postgres_server import postgres_server
from tests.postgres_cluster import needs_postgres

SMALL = flows.Size(calls=5, rounds=1, resumed=3, flows=2, each=3, peer_rounds=1)


def test_sqlite_has_its_figures(tmp_path: Path) -> None:
    found = flows.on_sqlite(tmp_path, SMALL)
    assert all(value > 0 for value in found.values())
    assert flows.report(found).figures["vs_dbos"] is None


@needs_postgres
def test_postgres_has_its_figures() -> None:
    with postgres_server() as cluster:
        assert cluster is not None
        found = flows.on_postgres(cluster, SMALL)
    assert found["call_vs_step_postgres"] > 0
    assert found["vs_dbos"] == min(found["one_vs_dbos"], found["many_vs_dbos"])
    assert found["vs_temporal"] > 0
