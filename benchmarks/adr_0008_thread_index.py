"""The measurement behind ADR 0008: a page of a tenant's threads, by tenant and by shard.

The table of threads as it is, and the same rows under a key that begins with the shard. The
figures are pages of 8 KB that PostgreSQL looks at, and its time, for a hundred threads from the
middle of a tenant that has 200,000.

    python -m benchmarks.adr_0008_thread_index
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.postgres_server import postgres_server
from benchmarks.report import columns

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

_FILL = """
INSERT INTO milecastle.threads
SELECT number, number, NULL, 'tenant ' || number % 3, md5(number::text), 'run', 'running', 'graph'
FROM generate_series(1, 600000) AS number;
CREATE TABLE milecastle.by_shard AS
SELECT (hashtext(tenant || thread) & 1023)::smallint AS shard, * FROM milecastle.threads;
ALTER TABLE milecastle.by_shard ADD PRIMARY KEY (shard, tenant, thread);
VACUUM ANALYZE milecastle.threads;
VACUUM ANALYZE milecastle.by_shard;
"""
_PAGE = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT thread, status, run_id, graph, started_at, ended_at
FROM {table}
WHERE tenant = 'tenant 1' AND run_id IS NOT NULL AND thread >= '8'
ORDER BY thread
LIMIT 100
"""


def measure(cluster: Cluster, table: str) -> tuple[str, ...]:
    """The pages and the time of one page of threads, the best of five."""
    from psycopg import sql

    query = sql.SQL(_PAGE).format(table=sql.Identifier("milecastle", table))
    answers: list[Any] = [cluster.execute(query) for _ in range(5)]
    found = [answer[0][0][0] for answer in answers]
    best = min(found, key=lambda each: each["Execution Time"])
    pages = best["Plan"]["Shared Hit Blocks"] + best["Plan"]["Shared Read Blocks"]
    return table, f"{pages:,}", f"{best['Execution Time']:.2f}"


def main() -> None:
    """Print a line for each key."""
    with postgres_server() as cluster:
        if cluster is None:
            raise SystemExit("this needs PostgreSQL")
        from milecastle.stores.postgres import migrate

        migrate(cluster.url)
        for statement in _FILL.split(";\n")[:-1]:
            cluster.execute(statement.encode())
        rows = [measure(cluster, table) for table in ("threads", "by_shard")]
        print(columns([("table", "pages", "ms"), *rows]))


if __name__ == "__main__":
    main()
