"""Opening sharded stores: ``shards.toml`` or ``shards:///absolute/shards.toml``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from milecastle.stores.sharded.joining import MapServers, initialise
from milecastle.stores.sharded.map import ShardMap, read_map
from milecastle.stores.sharded.moving import move_shard
from milecastle.stores.sharded.planning import PlannedMove, plan_moves
from milecastle.stores.sharded.store import ShardedStore


def open_url(url: str) -> ShardedStore:
    return ShardedStore(_path(url))


def unopened(url: str) -> MapServers:
    return MapServers(read_map(_path(url)))


def shards_of(url: str) -> Shards:
    return Shards(read_map(_path(url)))


def _path(url: str) -> str:
    _, found, place = url.partition("://")
    return place if found else url


class Shards:
    def __init__(self, shards: ShardMap) -> None:
        self._map = shards

    def initialise(self) -> Sequence[str]:
        return initialise(self._map)

    def move(self, numbers: Iterable[int], to: str) -> Iterator[tuple[int, bool]]:
        return ((number, move_shard(self._map, number, to)) for number in numbers)

    def plan(self, seconds: float) -> Sequence[PlannedMove]:
        return plan_moves(self._map, seconds=seconds)
