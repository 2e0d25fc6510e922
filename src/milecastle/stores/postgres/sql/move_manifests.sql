SELECT tenant, fingerprint, manifest FROM {schema}.manifests WHERE tenant = ANY (%(tenants)s)
