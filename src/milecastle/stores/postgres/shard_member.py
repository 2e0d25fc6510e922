"""A PostgreSQL store, one among several behind a map: it has some shards.

Its statements compare each written shard's placement, under a lock that whoever moves
the shard has to wait for. A thread elsewhere is refused with ``ShardMoved``, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from milecastle.errors import InvalidRequest, ShardMoved, StoreError
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo
from milecastle.ports.fairness import Group, LanePosition, Rotation
from milecastle.ports.limits import ClaimPlace, Meter
from milecastle.ports.store import Batch, Opened
from milecastle.stores.postgres.claiming import Look, Shut, WithinLimits
from milecastle.stores.postgres.migrating import Connection, version_of
from milecastle.stores.postgres.placements import (
    Membership,
    Placement,
    membership_of,
    placements_of,
)
from milecastle.stores.postgres.rows import Parameters, Row
from milecastle.stores.postgres.store import Located, PostgresStore, prepare


@checks_keys
class ShardMember(PostgresStore):
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
        if address.replica is not None:
            raise InvalidRequest(
                f"database '{self.name}' has replica= in its URL: a map's databases cannot be read "
                "from replicas yet"
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
        return frozenset(s for s, placement in self.placements.items() if placement.state == "here")

    def placement(self, shard: int) -> Placement | None:
        (row,) = self._retry(self._sql.placement, {"shard": shard}, "")
        return None if row[1] is None else Placement(shard, *row[1:])

    def reload(self) -> Mapping[int, Placement]:
        found = self._retry(self._sql.placements, {}, "")
        self.placements = {row[0]: Placement(*row) for row in found}
        return self.placements

    def mark(self) -> tuple[int, int]:
        """A value changing whenever a shard leaves or comes, and the shard count."""
        ((version, count),) = self._retry(self._sql.mark, {}, "")
        return version, count

    def promote(self, shard: int, move: int) -> bool:
        return bool(self._retry(self._sql.promote, {"shard": shard, "move": move}, ""))

    def is_written(self, batch: Batch) -> bool:
        return self._is_there(batch)

    def has_results(self, batch: Batch) -> bool:
        return self._has_results(batch)

    def bury(self, key: ThreadKey, head: int | None, head_id: str | None) -> bool:
        return self._end(key, head, head_id)

    def sweep(self, key: ThreadKey) -> None:
        """Delete rows left by ended incarnations, if the shard is here until done."""
        self._sweep(key)
        self._check_here(key)

    def _prune_on(self, key: ThreadKey, life: int, page: Parameters) -> int:
        count = super()._prune_on(key, life, page)
        self._check_here(key)
        return count

    def _read(self, query: bytes, key: ThreadKey, **parameters: object) -> list[Row]:
        found = super()._read(query, key, **parameters)
        if not found:
            self._check_here(key)
        return found

    def count_results(self, key: ThreadKey, task: str) -> int:
        count = super().count_results(key, task)
        if not count:
            self._check_here(key)
        return count

    def _read_many(self, keys: Sequence[ThreadKey]) -> Mapping[ThreadKey, Opened]:
        found = super()._read_many(keys)
        self._check_all_here(key for key in keys if key not in found)
        return found

    def tags_of_keys(self, keys: Sequence[ThreadKey]) -> Mapping[str, tuple[str, ...]]:
        found = self.tags.of(keys[0].tenant, [key.thread for key in keys])
        self._check_all_here(key for key in keys if key.thread not in found)
        return found

    def _check_all_here(self, keys: Iterable[ThreadKey]) -> None:
        by_shard = {key.shard: key for key in keys}
        if not by_shard:
            return
        self.reload()
        for shard in by_shard.keys() - self.shards:
            self._check_here(by_shard[shard])

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        given = super().give_back(worker, key, delay=delay)
        if not given:
            self._check_here(key)
        return given

    def _check_here(self, key: ThreadKey) -> None:
        found = self._elsewhere(key)
        if found is not None:
            raise found

    def recent_lines(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> list[Located[ThreadInfo]]:
        return self._recent_lines(tenant, status, limit, after)

    def waking_lines(
        self, tenant: str, until: int | None, limit: int | None, after: str | None
    ) -> list[Located[ThreadInfo]]:
        return self._waking_lines(tenant, until, limit, after)

    def recent_records(
        self, tenant: str, status: RunStatus | None, limit: int | None, after: str | None
    ) -> list[Located[RunRecord]]:
        return self._recent_records(tenant, status, limit, after)

    def look(
        self, behind: Mapping[str, LanePosition], limit: int, rotation: Rotation, shut: Shut = ()
    ) -> Look:
        return self._claims.look(behind, limit, rotation, shut)

    def first_due(self, groups: Sequence[Group]) -> list[list[int]]:
        return self._claims.first_due(groups)

    def take(
        self, worker: str, groups: Sequence[Group], until: int | None = None
    ) -> list[ThreadInfo]:
        return self._claims.take(worker, groups, until)

    def running(self) -> tuple[int, Mapping[ClaimPlace, int]]:
        return self._claims.running()

    def within_limits(self, lanes: Sequence[str], work: WithinLimits) -> None:
        self._claims.within_limits(lanes, work)

    def charge(self, meters: Sequence[Meter], served: Mapping[ClaimPlace, int]) -> None:
        self._claims.charge(meters, served)
