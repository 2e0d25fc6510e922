"""Long-term memory in SQLite: each call is one transaction.

A row's checksum covers everything except its id. A row that ``memory_words`` names must have the
word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec.json
import msgspec.structs

from milecastle.model.keys import checks_keys
from milecastle.model.memory import ItemPlace, MemoryWrite, StoredItem, above
from milecastle.ports.fencing import check_version
from milecastle.stores.sqlite.connections import Connections
from milecastle.stores.sqlite.rows import Damaged, Row, checked, summed
from milecastle.stores.sqlite.transaction import NO_LIMIT, Transaction

_read_words = msgspec.json.Decoder(tuple[str, ...]).decode


@checks_keys
class SqliteMemory:
    def __init__(self, connections: Connections, path: str, now: Callable[[], int]) -> None:
        self._connections = connections
        self._path = path
        self._now = now

    def get(self, tenant: str, path: bytes, key: str) -> StoredItem | None:
        with self._connections.reading(whole=False) as cursor:
            found = _find(Transaction(cursor, self._path), tenant, (path, key))
        return found[1] if found and found[1].is_live(self._now()) else None

    def scan(
        self, tenant: str, under: bytes, *, after: ItemPlace | None = None, limit: int
    ) -> Sequence[StoredItem]:
        first, key = after if after and after[0] >= under else (under, "")
        values = tenant, first, key, above(under), self._now(), _count(limit)
        with self._connections.reading(whole=False) as cursor:
            return _read(Transaction(cursor, self._path), tenant, "memories", values)

    def paths(
        self, tenant: str, under: bytes, *, after: bytes = b"", limit: int
    ) -> Sequence[bytes]:
        last, found = max(after, under[:-1]), list[bytes]()
        with self._connections.reading() as cursor:
            transaction, now = Transaction(cursor, self._path), self._now()
            while len(found) < limit:
                row = transaction.one("memory_path", (tenant, last, above(under), now))
                if row is None:
                    break
                found.append(last := row[0])
        return found

    def with_words(
        self, tenant: str, under: bytes, words: Sequence[str], *, limit: int
    ) -> Sequence[StoredItem]:
        asked = msgspec.json.encode(words).decode()
        values = tenant, asked, under, above(under), self._now(), _count(limit)
        with self._connections.reading(whole=False) as cursor:
            transaction = Transaction(cursor, self._path)
            found = _read(transaction, tenant, "memories_with_words", values)
            if not all({*words}.intersection(item.words) for item in found):
                raise transaction.damage("a word is not its item's", "memory_words")
        return found

    def write(self, tenant: str, writes: Sequence[MemoryWrite]) -> None:
        with self._connections.writing() as cursor:
            write_items(Transaction(cursor, self._path), tenant, writes, self._now())

    def touch(self, tenant: str, places: Sequence[ItemPlace]) -> None:
        with self._connections.writing() as cursor:
            transaction, now = Transaction(cursor, self._path), self._now()
            for place in places:
                found = _find(transaction, tenant, place)
                if found and found[1].ttl is not None and found[1].is_live(now):
                    later = msgspec.structs.replace(found[1], expires_at=now + found[1].ttl)
                    _replace(transaction, tenant, found, later)

    def erase(self, tenant: str, subject: str) -> int:
        return self._remove("memories_of_subject", (tenant, subject))

    def sweep(self, tenant: str, *, limit: int) -> int:
        return self._remove("memories_over", (tenant, self._now(), _count(limit)))

    def _remove(self, which: str, values: Row) -> int:
        with self._connections.writing() as cursor:
            transaction, tenant = Transaction(cursor, self._path), values[0]
            with transaction.reading(f"memories, tenant '{tenant}'"):
                found = [(row[0], _item(row, tenant)) for row in transaction.all(which, values)]
            for id, item in found:
                _drop(transaction, tenant, id, item)
        return len(found)


def write_items(
    transaction: Transaction,
    tenant: str,
    writes: Sequence[MemoryWrite],
    now: int,
    thread: str = "",
    seq: int = 0,
) -> None:
    for write in writes:
        found = _find(transaction, tenant, write.place)
        old = found[1] if found and found[1].is_live(now) else None
        check_version(write, old)
        item = write.result(old, now, thread, seq)
        if item is None:
            if found:
                _drop(transaction, tenant, *found)
            continue
        if found:
            _replace(transaction, tenant, found, item)
        else:
            _put(transaction, tenant, item)


def _replace(
    transaction: Transaction, tenant: str, found: tuple[int, StoredItem], item: StoredItem
) -> None:
    id, old = found
    if (old.subject, old.words) == (item.subject, item.words):
        transaction.run("replace_memory", (*_row(tenant, item)[4:], id))
    else:
        _drop(transaction, tenant, id, old)
        _put(transaction, tenant, item)


def _put(transaction: Transaction, tenant: str, item: StoredItem) -> None:
    transaction.run("put_memory", _row(tenant, item))
    _write_words(transaction, "put_memory_word", tenant, item)


def _drop(transaction: Transaction, tenant: str, id: int, item: StoredItem) -> None:
    _write_words(transaction, "drop_memory_word", tenant, item)
    transaction.run("drop_memory", (id,))


def _write_words(transaction: Transaction, how: str, tenant: str, item: StoredItem) -> None:
    if item.words:
        transaction.run_each(how, [(tenant, word, *item.place) for word in item.words])


def _find(transaction: Transaction, tenant: str, place: ItemPlace) -> tuple[int, StoredItem] | None:
    with transaction.reading(f"memories, tenant '{tenant}'"):
        row = transaction.one("memory", (tenant, *place))
        return None if row is None else (row[0], _item(row, tenant))


def _read(transaction: Transaction, tenant: str, which: str, values: Row) -> list[StoredItem]:
    with transaction.reading(f"memories, tenant '{tenant}'"):
        return [_item(row, tenant) for row in transaction.all(which, values)]


def _item(row: Row, tenant: str) -> StoredItem:
    own, path, key, subject, value, words, *rest = checked(row[1:])
    if own != tenant:
        raise Damaged
    names = StoredItem.__struct_fields__[5:]
    more = dict(zip(names, rest, strict=True))
    return StoredItem(
        path=path, key=key, subject=subject, value=value, words=_read_words(words), **more
    )


def _row(tenant: str, item: StoredItem) -> Row:
    path, key, subject, value, words, *rest = msgspec.structs.astuple(item)
    text = msgspec.json.encode(words).decode()
    return summed((tenant, path, key, subject, value, text, *rest))


def _count(limit: int) -> int:
    return max(0, min(limit, NO_LIMIT))
