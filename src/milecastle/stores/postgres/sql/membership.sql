SELECT id, name, version, is_complete FROM {schema}.membership
