(
    expires_at IS NULL
    OR expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
)
