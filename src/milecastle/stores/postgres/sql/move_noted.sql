-- The last move that the database which has a shard has noted. It notes no other, and does not switch,
-- until the transaction ends; writers do not wait.
SELECT move FROM {schema}.placements
WHERE shard = %(shard)s AND state = 'here'
FOR NO KEY UPDATE
