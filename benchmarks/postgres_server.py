"""A PostgreSQL server for the benchmarks: private, and durable unless told otherwise."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

_numbers = count(1)


@contextmanager
def postgres_server(**settings: str) -> Generator[Cluster | None]:
    """A running server that ends with the block; ``None`` where there is no PostgreSQL."""
    try:
        from tests.postgres_cluster import SKIPPED, Cluster, find_binaries
    except ModuleNotFoundError:
        yield None
        return
    binaries = None if SKIPPED else find_binaries()
    if binaries is None:
        yield None
        return
    cluster = Cluster(binaries, settings=settings)
    try:
        yield cluster
    finally:
        cluster.remove()


@contextmanager
def fresh_schema(cluster: Cluster) -> Generator[str]:
    """The name of a schema that nobody has used; whatever is made there goes with the block."""
    from psycopg import sql

    schema = f"bench_{next(_numbers)}"
    try:
        yield schema
    finally:
        drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE")
        cluster.execute(drop.format(sql.Identifier(schema)))
