SELECT tenant, fingerprint FROM {schema}.manifests WHERE tenant = ANY (%(tenants)s)
