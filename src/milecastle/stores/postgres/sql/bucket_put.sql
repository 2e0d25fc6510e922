INSERT INTO {schema}.buckets (tenant, name, rate, period, burst)
VALUES (%(tenant)s, %(name)s, %(rate)s, %(period)s, %(burst)s)
ON CONFLICT (tenant, name) DO UPDATE SET
    rate = excluded.rate, period = excluded.period, burst = excluded.burst
RETURNING 1
