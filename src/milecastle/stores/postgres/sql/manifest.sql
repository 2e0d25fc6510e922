SELECT manifest FROM {schema}.manifests
WHERE tenant = %(tenant)s AND fingerprint = %(fingerprint)s AND {readable}
