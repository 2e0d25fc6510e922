"""A PostgreSQL store that is one of several behind a map: it has some of the shards, and no others.

Its statements compare the placement of each shard that they write, under a lock that whoever moves
the shard has to wait for. What is not here is refused with ``ShardMoved`` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from milecastle.errors import InvalidRequest, ShardMoved, StoreError
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.claims import WaitingInput
from milecastle.ports.fairness import Group
from milecastle.ports.limits import Meter
from milecastle.ports.store import Batch, Opened
from milecastle.stores.postgres.claiming import Look, Shut
from milecastle.stores.postgres.migrating import Connection, version_of
from milecastle.stores.postgres.placements import (
    Membership,
    Placement,
    membership_of,
    placements_of,
)
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.store import Located, PostgresStore, prepare

__all__ = ["ShardMember"]


@checks_keys
class ShardMember(PostgresStore):
    """The database ``name`` of a map. ``member`` and ``placements`` are what it said at first."""

    _is_placed = True
    member: Membership
    placements: Mapping[int, Placement]

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        super().__init__(url)

    def _prepare(self, connection: Connection) -> None:
        address = self._address
        if address.rls:
            raise InvalidRequest(
                f"database '{self.name}' has rls=on in its URL: a map cannot be opened with "
                "row-level security yet"
            )
        if version_of(connection, address.schema) == 0:
            self._refuse_empty()
        prepare(connection, address)
        member = membership_of(connection, address.schema)
        if member is None:
            self._refuse_empty()
        self.member = member
        self.placements = placements_of(connection, address.schema)

    def _refuse_empty(self) -> NoReturn:
        raise StoreError(
            f"database '{self.name}' belongs to no map: if the map is new, run milecastle shards "
            "init; otherwise its URL names another database than before"
        )

    def _elsewhere(self, key: ThreadKey) -> StoreError | None:
        asked = {"shard": key.shard}
        ((version, state, _, destination, _),) = self._retry(self._sql.placement, asked, "")
        if state == "here":
            return None
        return ShardMoved(
            thread=key.thread,
            tenant=key.tenant,
            shard=key.shard,
            database=self.name,
            version=version or 0,
            destination=destination,
        )

    @property
    def shards(self) -> frozenset[int]:
        """The shards that it had when it was opened, or last asked for all of them."""
        return frozenset(s for s, placement in self.placements.items() if placement.state == "here")

    def placement(self, shard: int) -> Placement | None:
        """What it says of a shard now; ``None`` if it never had it."""
        (row,) = self._retry(self._sql.placement, {"shard": shard}, "")
        return None if row[1] is None else Placement(shard, *row[1:])

    def reload(self) -> Mapping[int, Placement]:
        """What it says of all its shards now."""
        found = self._retry(self._sql.placements, {}, "")
        self.placements = {row[0]: Placement(*row) for row in found}
        return self.placements

    def mark(self) -> tuple[int, int]:
        """What changes whenever a shard leaves or comes, and how many shards it has."""
        ((version, count),) = self._retry(self._sql.mark, {}, "")
        return version, count

    def promote(self, shard: int, move: int) -> bool:
        """Serve a shard that arrived by a move, which its source says is made."""
        return bool(self._retry(self._sql.promote, {"shard": shard, "move": move}, ""))

    def is_written(self, batch: Batch) -> bool:
        """Whether a batch was written here, or came with its shard."""
        return self._is_there(batch)

    def has_results(self, batch: Batch) -> bool:
        """Whether the results of a batch were written here, or came with their shard."""
        return self._has_results(batch)

    def bury(self, key: ThreadKey, head: int | None, head_id: str | None) -> bool:
        """End the thread's life; return whether there was anything."""
        return self._end(key, head, head_id)

    def sweep(self, key: ThreadKey) -> None:
        """Delete what lives that ended have left, if the shard is here until that is done."""
        self._sweep(key)
        self._check_here(key)

    def _prune_on(self, key: ThreadKey, life: int, dropped: int, page: Parameters) -> int:
        """Go on dropping; if the shard was moved, the rest is to be dropped where it is."""
        count = super()._prune_on(key, life, dropped, page)
        if dropped == page["limit"]:
            self._check_here(key)
        return count

    def _read(self, query: bytes, key: ThreadKey, **parameters: object) -> list[Row]:
        """What is found of a thread; if that is nothing, its shard must be here."""
        found = super()._read(query, key, **parameters)
        if not found:
            self._check_here(key)
        return found

    def count_results(self, key: ThreadKey, task: str) -> int:
        """How many results that go with the head are of a task or its items."""
        count = super().count_results(key, task)
        if not count:
            self._check_here(key)
        return count

    def _read_many(self, keys: Sequence[ThreadKey]) -> Mapping[ThreadKey, Opened]:
        found = super()._read_many(keys)
        self._check_all_here(key for key in keys if key not in found)
        return found

    def tags_of_keys(self, keys: Sequence[ThreadKey]) -> Mapping[str, tuple[str, ...]]:
        """The tags of threads of one tenant."""
        found = self.tags.of(keys[0].tenant, [key.thread for key in keys])
        self._check_all_here(key for key in keys if key.thread not in found)
        return found

    def _check_all_here(self, keys: Iterable[ThreadKey]) -> None:
        """The shards of threads of which nothing was found must be here."""
        by_shard = {key.shard: key for key in keys}
        if not by_shard:
            return
        self.reload()
        for shard in by_shard.keys() - self.shards:
            self._check_here(by_shard[shard])

    def inputs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[WaitingInput]:
        """The inputs that wait, in their order."""
        found = super().inputs(key, limit=limit)
        if not found:
            self._check_here(key)
        return found

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        """Make a thread due again after ``delay`` seconds."""
        given = super().give_back(worker, key, delay=delay)
        if not given:
            self._check_here(key)
        return given

    def enqueue(
        self,
        record: RunRecord,
        mark: str,
        payload: bytes,
        *,
        unless: str | None = None,
        known: bool = False,
    ) -> str:
        """Let an input wait until its thread is free; the id of the run that it starts."""
        try:
            return super().enqueue(record, mark, payload, unless=unless, known=known)
        except InvalidRequest:
            self._check_here(record.key)
            raise

    def _check_here(self, key: ThreadKey) -> None:
        found = self._elsewhere(key)
        if found is not None:
            raise found

    def recent_lines(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> list[Located[ThreadInfo]]:
        """``recent_threads`` with the place of each."""
        return self._recent_lines(tenant, status, limit, after)

    def waking_lines(
        self, tenant: str, until: int | None, limit: int | None, after: str | None
    ) -> list[Located[ThreadInfo]]:
        """``waking_threads`` with the place of each."""
        return self._waking_lines(tenant, until, limit, after)

    def recent_records(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> list[Located[RunRecord]]:
        """``recent_runs`` with the place of each."""
        return self._recent_records(tenant, status, limit, after)

    def look(self, behind: Mapping[str, str], limit: int, shut: Shut = ()) -> Look:
        """What is due in lanes, each from behind a tenant on."""
        return self._claims.look(behind, limit, shut)

    def first_due(self, groups: Sequence[Group]) -> list[list[int]]:
        """When the first threads of each group were due, as many as its size."""
        return self._claims.first_due(groups)

    def take(
        self, worker: str, groups: Sequence[Group], until: int | None = None
    ) -> list[ThreadInfo]:
        """Give so many threads of each group to a worker, or none after ``until``."""
        return self._claims.take(worker, groups, until)

    def running(self) -> tuple[int, Mapping[tuple[str, str], int]]:
        """The time, and how many threads have a worker by then, by lane and tenant."""
        return self._claims.running()

    def within_limits(
        self, lanes: Sequence[str], work: Callable[[Sequence[Meter], Callable[[], object]], None]
    ) -> None:
        """Call ``work`` with the limits of lanes while no other claim under limits is under way."""
        self._claims.within_limits(lanes, work)

    def charge(self, meters: Sequence[Meter], served: Mapping[tuple[str, str], int]) -> None:
        """Count claims, by lane and tenant, against rates."""
        self._claims.charge(meters, served)
