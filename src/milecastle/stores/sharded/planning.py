"""Shards to move, by size and by write rate.

A shard weighs its part of all entries and, if rates were measured, its part of all that was written
meanwhile, both alike. A plan moves the shard making the two databases with the most and the
least most equal, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic, sleep

import msgspec

from milecastle.errors import StoreError
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.migrating import LATEST, version_of
from milecastle.stores.postgres.statements import compose, file_text
from milecastle.stores.sharded.joining import connected
from milecastle.stores.sharded.map import ShardMap

_WORTH = 0.9
"""A move is not worth its copy if it turns the difference of two databases around."""

_Counts = Mapping[str, Mapping[int, int]]
"""How many entries each shard of each database has, those that were pruned included."""


class PlannedMove(msgspec.Struct, frozen=True):
    shard: int
    source: str
    to: str
    entries: int
    rate: float = 0.0


def plan_moves(
    shards: ShardMap,
    *,
    seconds: float = 0.0,
    most: int = 20,
    wait: Callable[[float], object] = sleep,
) -> list[PlannedMove]:
    """Moves making a map's databases about equally large and busy.

    Rates are measured over so many ``seconds``; if these are 0, sizes decide alone.
    """
    began, before = monotonic(), _counted(shards)
    if not seconds:
        return _planned(before, before, 1.0, most)
    wait(seconds)
    after = _counted(shards)
    return _planned(before, after, monotonic() - began, most)


def _counted(shards: ShardMap) -> _Counts:
    counts: dict[str, dict[int, int]] = {}
    for name, url in shards.urls.items():
        schema = parse(url).schema
        with connected(name, url) as connection:
            if version_of(connection, schema) < LATEST:
                raise StoreError(f"database '{name}' belongs to no map: run milecastle shards init")
            found = connection.execute(compose(file_text("shard_sizes"), schema=schema)).fetchall()
            counts[name] = dict(found)
    return counts


def _planned(before: _Counts, after: _Counts, seconds: float, most: int) -> list[PlannedMove]:
    rates = {
        name: {
            shard: max(0, count - before[name].get(shard, count)) for shard, count in own.items()
        }
        for name, own in after.items()
    }
    parts = [(each, sum(sum(own.values()) for own in each.values())) for each in (after, rates)]
    weights = {
        name: {
            shard: sum(each[name][shard] / total for each, total in parts if total) for shard in own
        }
        for name, own in after.items()
    }
    totals = {name: sum(own.values()) for name, own in weights.items()}
    moves: list[PlannedMove] = []
    while len(moves) < most:
        source, to = max(totals, key=totals.__getitem__), min(totals, key=totals.__getitem__)
        gap = totals[source] - totals[to]
        fitting = [shard for shard, weight in weights[source].items() if 0 < weight < _WORTH * gap]
        if not fitting:
            break
        shard = min(fitting, key=lambda shard: abs(weights[source][shard] - gap / 2))
        weight = weights[to][shard] = weights[source].pop(shard)
        totals[source], totals[to] = totals[source] - weight, totals[to] + weight
        found = next(name for name, own in after.items() if shard in own)
        rate = round(rates[found][shard] / seconds, 1)
        moves.append(PlannedMove(shard, source, to, after[found][shard], rate))
    return moves
