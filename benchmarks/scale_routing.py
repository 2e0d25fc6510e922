"""What a map costs: commits through it on one database, against the same without a map.

``routing_overhead`` is the part that a commit of a step takes longer; at most 0.05 is wanted. It
has the routing and the comparison of the placement in the statement. Both stores are in schemas of
one server and take turns, block by block; of each, the quicker half of the blocks counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.alternating import without_collector
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.testing.entries import Writer

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many blocks of how many commits; each block is a new thread."""

    blocks: int = 300
    commits: int = 40


QUICK = Scale(blocks=6, commits=5)


def overhead(cluster: Cluster, scale: Scale) -> Mapping[str, float]:
    """The overhead, as a part of a commit without a map."""
    from milecastle.stores.postgres import PostgresStore
    from milecastle.stores.sharded import ShardedStore, initialise, read_map

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shards.toml"
        url = cluster.url_of("bench_map")
        file.write_text(f'version = 1\n[databases]\na = "{url}"\n[shards]\n"0-1023" = "a"\n')
        initialise(read_map(file))
        plain, routed = PostgresStore(cluster.url_of("bench_plain")), ShardedStore(file)
        with closing(plain), closing(routed):
            alone, mapped = _in_turn((plain, routed), scale)
    return {"commit_us": round(alone * 1e6), "routing_overhead": round(mapped / alone - 1, 3)}


def _in_turn(stores: tuple[Store, Store], scale: Scale) -> tuple[float, float]:
    """Seconds of a commit in each, by the quicker half of its blocks."""
    times: tuple[list[float], list[float]] = [], []
    for number in range(scale.blocks):
        for place in (0, 1) if number % 2 else (1, 0):
            times[place].append(_block(stores[place], scale.commits))
    alone, mapped = (sorted(each)[: max(1, len(each) // 2)] for each in times)
    return sum(alone) / len(alone) / scale.commits, sum(mapped) / len(mapped) / scale.commits


def _block(store: Store, commits: int) -> float:
    number = next(_numbers)
    writer = Writer(ThreadKey("bench", f"thread {number}"), number).begin(store)
    batches: list[Batch] = []
    for _ in range(commits):
        entry = writer.plan()
        batches.append(writer.batch(entry))
        writer.keep(entry)
    with without_collector():
        began = perf_counter()
        for batch in batches:
            store.commit(batch)
        return perf_counter() - began
