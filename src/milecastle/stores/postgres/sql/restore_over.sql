-- Messages with these numbers or marks make room for restored ones. lock_thread.sql comes first.
DELETE FROM {schema}.mailbox
WHERE tenant = %(tenant)s AND thread = %(thread)s
    AND (number = ANY (%(numbers)s::bigint[]) OR mark = ANY (%(marks)s::text[]))
    AND {placed}
RETURNING 1
