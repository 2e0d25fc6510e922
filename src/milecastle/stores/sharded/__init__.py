"""Many PostgreSQL databases behind one face: a map gives each shard to one."""

from milecastle.stores.sharded.joining import MapServers, initialise
from milecastle.stores.sharded.map import ShardMap, read_map
from milecastle.stores.sharded.moving import move_shard
from milecastle.stores.sharded.opening import Shards
from milecastle.stores.sharded.planning import PlannedMove, plan_moves
from milecastle.stores.sharded.store import ShardedStore

__all__ = [
    "MapServers",
    "PlannedMove",
    "ShardMap",
    "ShardedStore",
    "Shards",
    "initialise",
    "move_shard",
    "plan_moves",
    "read_map",
]
