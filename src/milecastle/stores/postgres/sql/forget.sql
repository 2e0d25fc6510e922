DELETE FROM {schema}.workers WHERE id = %(worker)s RETURNING 1
