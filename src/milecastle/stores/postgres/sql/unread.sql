SELECT number, topic, mark, payload, sent_at
FROM {schema}.mailbox
WHERE tenant = %(tenant)s AND thread = %(thread)s AND number > %(after)s AND consumed IS NULL
    AND {readable}
ORDER BY number
LIMIT %(limit)s::bigint
