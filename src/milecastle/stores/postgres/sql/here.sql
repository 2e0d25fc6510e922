shard <> ALL (ARRAY(SELECT away.shard FROM {schema}.placements AS away WHERE away.leftovers))
