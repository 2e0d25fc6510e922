"""Long-term memory in PostgreSQL: a write is one statement, beside its batch or alone."""

from __future__ import annotations

from collections.abc import Sequence

from milecastle.errors import MemoryChanged, Unavailable
from milecastle.model.keys import checks_keys
from milecastle.model.memory import ItemPlace, MemoryWrite, StoredItem, above
from milecastle.ports.fencing import memory_changed
from milecastle.ports.store import Batch
from milecastle.stores.postgres import writing
from milecastle.stores.postgres.claiming import Repeat
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.rows import Row
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost, Taken, is_undone

_MOST = 2**31 - 1


@checks_keys
class PostgresMemory:
    def __init__(self, pool: Pool, statements: Statements, retry: Repeat) -> None:
        self._pool = pool
        self._sql = statements
        self._retry = retry

    def get(self, tenant: str, path: bytes, key: str) -> StoredItem | None:
        found = self._run(self._sql.memory_get, tenant, path=path, key=key)
        return _item(found[0]) if found else None

    def scan(
        self, tenant: str, under: bytes, *, after: ItemPlace | None = None, limit: int
    ) -> Sequence[StoredItem]:
        path, key = max(after, (under, "")) if after else (under, "")
        asked = {"path": path, "key": key, "end": above(under), "limit": _count(limit)}
        return [_item(row) for row in self._run(self._sql.memory_scan, tenant, **asked)]

    def paths(
        self, tenant: str, under: bytes, *, after: bytes = b"", limit: int
    ) -> Sequence[bytes]:
        last = max(after, under[:-1])
        asked = {"after": last, "end": above(under), "limit": _count(limit)}
        return [row[0] for row in self._run(self._sql.memory_paths, tenant, **asked)]

    def with_words(
        self, tenant: str, under: bytes, words: Sequence[str], *, limit: int
    ) -> Sequence[StoredItem]:
        asked = {"under": under, "end": above(under), "words": [*words], "limit": _count(limit)}
        return [_item(row) for row in self._run(self._sql.memory_words, tenant, **asked)]

    def write(self, tenant: str, writes: Sequence[MemoryWrite]) -> None:
        self._pool.check_open()
        sql = self._sql.memory_put if writing.only_puts(writes) else self._sql.memory_write
        statement = sql, writing.memory_values(tenant, writes)
        for _ in self._pool.attempts():
            try:
                if not writing.needs_lock(writes):
                    self._pool.write(*statement, tenant)
                    return
                lock = self._sql.memory_lock, writing.memory_lock_values(tenant, writes)
                self._pool.write_together([(tenant, [lock, statement])])
            except Taken:
                changed = self.changed(tenant, writes)
                raise changed or memory_changed(_expecting(writes)[0]) from None
            except Lost as lost:
                if is_undone(lost):
                    continue
                raise Unavailable(
                    f"the connection to PostgreSQL was lost while memory was written: {lost}; "
                    "read the items before writing them again"
                ) from lost
            return
        raise Unavailable("other writers of the same items had to be served first; try again")

    def touch(self, tenant: str, places: Sequence[ItemPlace]) -> None:
        paths, keys = [path for path, _ in places], [key for _, key in places]
        self._run(self._sql.memory_touch, tenant, paths=paths, keys=keys)

    def erase(self, tenant: str, subject: str) -> int:
        return len(self._run(self._sql.memory_erase, tenant, subject=subject))

    def sweep(self, tenant: str, *, limit: int) -> int:
        return len(self._run(self._sql.memory_sweep, tenant, limit=_count(limit)))

    def changed(self, tenant: str, writes: Sequence[MemoryWrite]) -> MemoryChanged | None:
        """The error for refused writes: the first that expects another version."""
        for write in _expecting(writes):
            found = self.get(tenant, *write.place)
            if write.if_version != (found.version if found else 0):
                return memory_changed(write)
        return None

    def of_batch(self, batch: Batch) -> MemoryChanged | None:
        changed = self.changed(batch.key.tenant, batch.memory)
        if changed is None and not (batch.unless or batch.consumes):
            expecting = _expecting(batch.memory)  # it had another version for a moment
            return memory_changed(expecting[0]) if expecting else None
        return changed

    def _run(self, query: bytes, tenant: str, **asked: object) -> list[Row]:
        self._pool.check_open()
        return self._retry(query, {"tenant": tenant, **asked}, tenant)


def _expecting(writes: Sequence[MemoryWrite]) -> list[MemoryWrite]:
    return [write for write in writes if write.if_version is not None]


def _item(row: Row) -> StoredItem:
    path, key, subject, value, words, *rest = row
    more = dict(zip(StoredItem.__struct_fields__[5:], rest, strict=True))
    return StoredItem(
        path=path, key=key, subject=subject, value=value, words=tuple(words.split()), **more
    )


def _count(limit: int) -> int:
    return max(0, min(limit, _MOST))
