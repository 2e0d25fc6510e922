"""A primary and its replica, to fail over from one to the other."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from tests.postgres_cluster import Cluster, find_binaries, wait_until


class Replica(Cluster):
    """A server that follows another until it is promoted."""

    def __init__(self, primary: Cluster) -> None:
        self._primary = primary
        super().__init__(primary.binaries, settings={"synchronous_standby_names": "''"})

    def create(self) -> None:
        source = f"host=127.0.0.1 port={self._primary.port} user=postgres application_name=replica"
        self.run("pg_basebackup", "-D", self.data, "-d", source, "-R", "-X", "stream", "-c", "fast")

    def promote(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-w", "-t", "60", "promote")


class Pair:
    """A primary and a replica; ``synchronous`` makes each commit wait for the replica."""

    def __init__(self, *, synchronous: bool) -> None:
        binaries = find_binaries()
        assert binaries, "no PostgreSQL was found: install one, or set MILECASTLE_NO_POSTGRES=1"
        names = "'replica'" if synchronous else "''"
        self.primary = Cluster(binaries, settings={"synchronous_commit": "on"})
        try:
            self.replica = Replica(self.primary)
        except BaseException:
            self.primary.remove()
            raise
        self.primary.execute(b"ALTER SYSTEM SET synchronous_standby_names = " + names.encode())
        self.primary.execute(b"SELECT pg_reload_conf()")
        wait_until(lambda: self.replication() == [("sync" if synchronous else "async",)])

    def url_of(self, schema: str) -> str:
        """One URL for both: whichever takes writes is meant."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.replica.port}"
        options = "target_session_attrs=read-write&connect_timeout=2&timeout=60&max_size=2"
        return f"postgresql://postgres@{hosts}/postgres?schema={schema}&{options}"

    def replication(self) -> list[tuple[object, ...]]:
        return self.primary.execute(
            b"SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
        )

    def part(self) -> None:
        """Cut the replica off: from now on it receives nothing."""
        self.replica.execute(b"ALTER SYSTEM SET primary_conninfo = ''")
        self.replica.execute(b"SELECT pg_reload_conf()")
        wait_until(lambda: not self.replica.execute(b"SELECT pid FROM pg_stat_wal_receiver"))

    def end_waiting(self) -> int:
        """End every backend of the primary that waits for the replica; how many there were."""
        found = self.primary.execute(
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )
        return len(found)

    def end_primary(self) -> None:
        """kill -9 of every process of the primary."""
        pids = [pid for (pid,) in self.primary.execute(b"SELECT pid FROM pg_stat_activity")]
        postmaster = int((self.primary.data / "postmaster.pid").read_text().split()[0])
        for pid in (postmaster, *pids):
            assert isinstance(pid, int)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.primary.data / "postmaster.pid").unlink()

    def fail_over(self) -> None:
        """End the primary and make the replica one."""
        self.end_primary()
        self.replica.promote()

    def remove(self) -> None:
        self.replica.remove()
        self.primary.remove()
