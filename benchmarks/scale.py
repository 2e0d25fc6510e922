"""What a database costs when it is full, and what more databases bring: the basis of a plan.

``scale_growth`` has the growth of calls beside ten million checkpoints, ``scale_databases`` the
same work on 1, 2 and 4 databases, beside the simulation of it, and ``scale_routing`` what a commit
through a map of databases costs.
"""

from __future__ import annotations

from benchmarks import scale_databases, scale_growth, scale_routing
from benchmarks.postgres_server import postgres_server
from benchmarks.report import Report, columns

NAMES = (
    *("put_growth", "get_growth", "claim_growth", "page_growth"),
    *("routing_overhead", "simulation_error"),
)
_SERVER = {"shared_buffers": "1GB", "max_wal_size": "4GB"}


def measure(*, quick: bool = False) -> Report:
    """Measure on private servers; no figures where there is no PostgreSQL."""
    found: dict[str, float | None] = dict.fromkeys(NAMES)
    found |= scale_databases.compare(scale_databases.QUICK if quick else scale_databases.Scale())
    with postgres_server(**_SERVER) as cluster:
        if cluster is not None:
            size = scale_growth.QUICK if quick else scale_growth.Scale()
            found |= scale_growth.growth(cluster, size)
            routing = scale_routing.QUICK if quick else scale_routing.Scale()
            found |= scale_routing.overhead(cluster, routing)
    rows = [("figure", "")]
    rows += [(name, "-" if value is None else f"{value:.3f}") for name, value in found.items()]
    return Report(figures=found, table=columns(rows))
