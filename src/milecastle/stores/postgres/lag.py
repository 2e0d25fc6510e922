"""Replication lag: how far a standby is behind its primary.

Rules:

- The position in the log is compared, not what the standby has received: a standby that was cut off
  has replayed all that it received.
- The age is the primary's time minus the commit time of the last replayed transaction: no clock of
  another machine is involved. It may be too high after a pause of the primary, never too low.
"""

from __future__ import annotations

import time
from typing import Protocol

from milecastle.errors import Unavailable
from milecastle.stores.postgres.rows import Parameters, Row

_SETTLES = 0.05
"""Seconds after which an idle primary's log is replayed by a standby that is not behind."""

_PRIMARY = b"""
    SELECT system_identifier::text || ' ' || current_database(),
        pg_current_wal_flush_lsn()::text,
        extract(epoch FROM clock_timestamp())::float8
    FROM pg_control_system()
"""
_STANDBY = b"""
    SELECT system_identifier::text || ' ' || current_database(),
        pg_is_in_recovery(),
        pg_last_wal_replay_lsn() >= %(position)s::pg_lsn,
        %(now)s::float8 - extract(epoch FROM pg_last_xact_replay_timestamp())::float8
    FROM pg_control_system()
"""


class LagQuery(Protocol):
    def __call__(self, query: bytes, parameters: Parameters, tenant: str, /) -> list[Row]: ...


def seconds_behind(primary: LagQuery, standby: LagQuery) -> float:
    """How many seconds ago the standby's state was the primary's; 0.0 if it has all of it.

    Raises:
        Unavailable: it must not be read: it is not a standby of this database, or its age is
            unknown.
    """
    ((name, position, now),) = primary(_PRIMARY, {}, "")
    for pause in (_SETTLES, 0.0):
        ((other, is_standby, is_current, age),) = standby(
            _STANDBY, {"position": position, "now": now}, ""
        )
        if other != name or not is_standby:
            raise Unavailable("the server in replica= is not a standby of this database")
        if is_current:
            return 0.0
        time.sleep(pause)
    if age is None:
        raise Unavailable("the replica has replayed nothing since it was started: its age is open")
    return max(float(age), _SETTLES)
