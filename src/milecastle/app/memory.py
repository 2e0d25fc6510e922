"""Long-term memory: values to stored items and back, search, and ``app.memory``.

Rules:

- A value is opaque to stores, except the words and vectors it is put with. With encryption it is
  sealed with its subject's key, which ``erase`` removes.
- Filters compare opened values, here, so they are alike on every store. A search reads items in
  its answer's order, and stops at its limit.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import islice
from math import sqrt
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast

import msgspec

from milecastle.app.encryption.keyring import Keyring
from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import PayloadPlace
from milecastle.codec.files import files_in
from milecastle.errors import InvalidRequest, KeyNotFound
from milecastle.model.checkpoint import to_datetime
from milecastle.model.keys import ThreadKey, check_name, own_key, refuse_reserved
from milecastle.model.memory import (
    ItemPlace,
    MemoryHit,
    MemoryItem,
    MemoryWrite,
    StoredItem,
    check_size,
    namespace_of,
    path_of,
    ttl_of,
    words_of,
)
from milecastle.ports.memory import MemoryItems
from milecastle.ports.store import Store
from milecastle.support.printable import printable

if TYPE_CHECKING:
    from logging import Logger

T = TypeVar("T")
P = ParamSpec("P")

TextFields = bool | str | Sequence[str]
OffLoop = Callable[..., Coroutine[Any, Any, Any]]
_Scored = tuple[float, StoredItem]

_PAGE: Final = 500
_MOST: Final = 10_000
_KEY_BYTES: Final = 512
_SWEPT: Final = 1000
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for long-term memory, for ``compile(memory=...)``.

    ``embed`` turns texts into vectors of ``dims`` numbers; another ``model``'s vectors are not
    compared. ``subject`` is the place of the label that names the person, for encryption and
    ``erase``. With encryption, ``index_plain`` allows words and vectors, which stay readable.
    """

    embed: Callable[[list[str]], Sequence[Sequence[float]]] | None = None
    dims: int = 0
    model: str = ""
    subject: int = 1
    index_plain: bool = False


class TenantMemory:
    """One tenant's items, as apps and nodes use them."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        settings: Memory,
        codec: LogCodec,
        keyring: Keyring | None,
    ) -> None:
        self.tenant = tenant
        self._store = store
        self._items = require_memory(store)
        self._settings = settings
        self._codec = codec
        self._keyring = keyring

    @property
    def waits(self) -> bool:
        """True if preparing a write may wait: for a key, or for an embedding."""
        return self._keyring is not None or self._settings.embed is not None

    def prepare(
        self,
        namespace: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        words: TextFields = False,
        embed: TextFields = False,
        if_version: int | None = None,
    ) -> MemoryWrite:
        """A write that puts an item, checked, sealed and with its index."""
        path = _place(namespace, key)[0]
        if if_version is not None and (type(if_version) is not int or if_version < 0):
            raise InvalidRequest("if_version= is the version of an item, or 0 if there is none")
        labels, at = namespace_of(path), self._settings.subject
        subject = labels[at] if at < len(labels) else ""
        if (words or embed) and self._keyring and not self._settings.index_plain:
            raise InvalidRequest(
                "words= and embed= would store an encrypted value's text and vectors readable: "
                "compile(memory=Memory(index_plain=True)) allows that"
            )
        vectors = self._vectors(_texts(value, embed)) if embed else b""
        return MemoryWrite(
            path=path,
            key=key,
            value=self._seal(subject, path, key, value),
            subject=subject,
            words=words_of(" ".join(_texts(value, words))) if words else (),
            vectors=vectors,
            model=self.model if vectors else "",
            ttl=ttl_of(ttl),
            if_version=if_version,
        )

    def removal(self, namespace: Sequence[str], key: str) -> MemoryWrite:
        """The write that deletes an item."""
        path, key = _place(namespace, key)
        return MemoryWrite(path=path, key=key)

    def get(
        self, namespace: Sequence[str], key: str, *, pending: Sequence[MemoryWrite] = ()
    ) -> MemoryItem | None:
        """An item, or ``None``."""
        place = _place(namespace, key)
        stored = self._items.get(self.tenant, *place)
        for write in pending:
            if write.place == place:
                stored = self._shown(write, stored)
        return self._opened(stored) if stored else None

    def list(
        self,
        under: Sequence[str] = (),
        *,
        limit: int = 100,
        after: MemoryItem | None = None,
        pending: Sequence[MemoryWrite] = (),
    ) -> Sequence[MemoryItem]:
        """Items in the namespaces that begin with these labels, by namespace and key.

        ``after`` is the previous page's last item.
        """
        last = _place(after.namespace, after.key) if after else None
        found = self._hits(self._candidates(path_of(under, least=0), pending, last))
        return [hit.item for hit in islice(found, _checked(limit))]

    def namespaces(
        self,
        under: Sequence[str] = (),
        *,
        limit: int = 100,
        after: Sequence[str] = (),
        pending: Sequence[MemoryWrite] = (),
    ) -> Sequence[tuple[str, ...]]:
        """Namespaces that have items and begin with these labels."""
        prefix, last = path_of(under, least=0), path_of(after, least=0)
        own = {one.path for one in pending if one.path.startswith(prefix) and one.path > last}
        most = _checked(limit) + len(own)  # the task may have emptied as many
        found = {*self._items.paths(self.tenant, prefix, after=last, limit=most)} - own
        for path in own:
            _, first = next(self._candidates(path, pending), (0, None))
            if first is not None and first.path == path:
                found.add(path)
        return [namespace_of(path) for path in sorted(found)[:limit]]

    def search(
        self,
        under: Sequence[str] = (),
        *,
        words: str | None = None,
        near: str | Sequence[float] | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int = 10,
        pending: Sequence[MemoryWrite] = (),
    ) -> Sequence[MemoryHit]:
        """Items under these labels by words, by nearness or in order, if they are as ``where``.

        ``words`` finds items with at least one of them, those with most first; ``near`` is a text
        or a vector, compared by cosine. ``where`` compares top-level fields: ``{"kind": "fact"}``,
        ``{"age": {">=": 18}}``.
        """
        if words is not None and near is not None:
            raise InvalidRequest("search by words= or by near=; merge the two lists by rank")
        prefix, wanted = path_of(under, least=0), _checked_filter(where or {})
        if words is not None:
            found = self._with_words(prefix, words_of(words), pending, limit)
        elif near is not None:
            found = self._near(prefix, near, pending)
        else:
            found = self._candidates(prefix, pending)
        hits = self._hits(found)
        return list(islice((hit for hit in hits if _fits(hit.item.value, wanted)), _checked(limit)))

    def each(
        self, under: Sequence[str] = (), *, near: Sequence[float] | None = None
    ) -> Iterator[MemoryHit]:
        """All items under these labels, read as they are taken: in order, or by nearness."""
        prefix = path_of(under, least=0)
        return self._hits(self._candidates(prefix) if near is None else self._near(prefix, near))

    def _hits(self, found: Iterable[_Scored]) -> Iterator[MemoryHit]:
        opened = ((self._opened(item), score) for score, item in found)
        return (MemoryHit(item, score) for item, score in opened if item is not None)

    # ---- in the order of an answer

    def _candidates(
        self, prefix: bytes, pending: Sequence[MemoryWrite] = (), after: ItemPlace | None = None
    ) -> Iterator[_Scored]:
        own = self._own(prefix, pending)
        left = deque(sorted(one.place for one in own.values() if one))
        for item in self._scanned(prefix, after):
            while left and left[0] < item.place:
                yield from self._next_own(own, left, after)
            if item.place not in own:
                yield 1.0, item
        while left:
            yield from self._next_own(own, left, after)

    def _next_own(
        self,
        own: Mapping[ItemPlace, StoredItem | None],
        left: deque[ItemPlace],
        after: ItemPlace | None,
    ) -> Iterator[_Scored]:
        item = own[left.popleft()]
        if item is not None and (after is None or item.place > after):
            yield 1.0, item

    def _scanned(self, prefix: bytes, after: ItemPlace | None) -> Iterator[StoredItem]:
        size = 100
        while page := self._items.scan(self.tenant, prefix, after=after, limit=size):
            yield from page
            if len(page) < size:
                return
            after, size = page[-1].place, _PAGE

    def _with_words(
        self, prefix: bytes, words: tuple[str, ...], pending: Sequence[MemoryWrite], limit: int
    ) -> Iterator[_Scored]:
        if not words:
            return
        own, wanted = self._own(prefix, pending), {*words}

        def score(item: StoredItem) -> float:
            return len(wanted.intersection(item.words)) / len(words)

        mine = [(score(item), item) for item in own.values() if item]
        mine = sorted((one for one in mine if one[0]), key=_rank, reverse=True)
        for item in self._pages_with_words(prefix, words, limit):
            if item.place in own:
                continue
            found = score(item), item
            while mine and _rank(mine[-1]) < _rank(found):
                yield mine.pop()
            yield found
        yield from reversed(mine)

    def _pages_with_words(
        self, prefix: bytes, words: tuple[str, ...], limit: int
    ) -> Iterator[StoredItem]:
        """All items with any of these words: each page repeats those before it, and is larger."""
        size, seen = limit + 10, 0
        while True:
            page = self._items.with_words(self.tenant, prefix, words, limit=size)
            yield from page[seen:]
            if len(page) < size:
                return
            seen, size = size, 4 * size

    def _near(
        self, prefix: bytes, near: str | Sequence[float], pending: Sequence[MemoryWrite] = ()
    ) -> Iterator[_Scored]:
        query = self._vectors([near]) if isinstance(near, str) else packed_vectors([near])
        model = self.model if isinstance(near, str) else self._model_of(len(near))
        items = [item for _, item in self._candidates(prefix, pending) if item.model == model]
        yield from sorted(zip(_cosines(query, items), items, strict=True), key=_rank)

    def _own(
        self, prefix: bytes, pending: Sequence[MemoryWrite]
    ) -> dict[ItemPlace, StoredItem | None]:
        return {
            write.place: self._shown(write, self._items.get(self.tenant, *write.place))
            for write in pending
            if write.path.startswith(prefix)
        }

    def _shown(self, write: MemoryWrite, stored: StoredItem | None) -> StoredItem | None:
        """The item after an uncommitted write; its times are not known yet."""
        shown = write.result(stored, stored.updated_at if stored else 0)
        return shown and msgspec.structs.replace(shown, expires_at=None)

    # ---- values and vectors

    def _seal(self, subject: str, path: bytes, key: str, value: Any) -> bytes:
        body, place = self._codec.encode_state({"value": value}), _payload_place(path, key)
        if files_in(body):
            raise InvalidRequest(
                f"item {key!r} has a File, whose content is removed with the last checkpoint that "
                "names it: keep its name or an address of your own, and the File in the state"
            )
        if self._keyring is None:
            return self._codec.seal(body, place)
        owner = self._owner(subject)
        try:
            return self._codec.for_thread(owner).seal(body, place)
        except KeyNotFound:
            return self._codec.for_thread(owner, new=True).seal(body, place)

    def _opened(self, item: StoredItem) -> MemoryItem | None:
        """An item; ``None`` if it was sealed before its subject was erased, and written after."""
        codec = (
            self._codec
            if self._keyring is None
            else self._codec.for_thread(self._owner(item.subject))
        )
        try:
            body = codec.unseal(item.value, _payload_place(item.path, item.key))
        except KeyNotFound:
            codec.digest(b"")  # refused if the subject has no key: then the keyring is another
            _logger().warning(
                "tenant '%s': an item is left out that was sealed before its subject '%s' was "
                "erased, and written after: erase the subject again",
                printable(self.tenant),
                printable(item.subject),
            )
            return None
        over = item.expires_at
        return MemoryItem(
            namespace=namespace_of(item.path),
            key=item.key,
            value=codec.decode_state(body)["value"],
            version=item.version,
            created_at=to_datetime(item.created_at),
            updated_at=to_datetime(item.updated_at),
            expires_at=None if over is None else to_datetime(over),
            written_by=(item.thread, item.seq) if item.seq else None,
        )

    def _owner(self, subject: str) -> ThreadKey:
        return own_key(self.tenant, "memory", subject)

    @property
    def model(self) -> str:
        """The model and dimensions of the compared vectors."""
        return self._model_of(self._settings.dims)

    def _model_of(self, dims: int) -> str:
        return f"{self._settings.model}:{dims}"

    def _vectors(self, texts: Sequence[str]) -> bytes:
        embed, dims = self._settings.embed, self._settings.dims
        if embed is None or not dims:
            raise InvalidRequest(
                "vectors need a function: compile(memory=Memory(embed=function, dims=1536))"
            )
        found: Sequence[Sequence[float]] = embed([*texts]) if texts else []
        if len(found) != len(texts) or any(len(vector) != dims for vector in found):
            raise InvalidRequest(
                f"embed= returned something else than {len(texts)} vectors of {dims} numbers"
            )
        return packed_vectors(found)


def _async_version(
    method: Callable[Concatenate[AppMemory, P], T],
) -> Callable[Concatenate[AppMemory, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def called(self: AppMemory, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self.off_loop(partial(getattr(self, name), *args, **kwargs))
        return found

    name = method.__name__
    called.__name__, called.__qualname__ = f"a{name}", f"AppMemory.a{name}"
    called.__doc__ = f"Async version of ``{name}``."
    return called


class AppMemory(TenantMemory):
    """A tenant's long-term memory outside runs: each call is its own transaction."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        settings: Memory,
        codec: LogCodec,
        keyring: Keyring | None,
        off_loop: OffLoop,
    ) -> None:
        refuse_reserved(tenant)
        check_name("tenant id", tenant)
        super().__init__(store, tenant, settings, codec, keyring)
        self.off_loop = off_loop

    def for_tenant(self, tenant: str) -> AppMemory:
        """Another tenant's memory."""
        given = self._store, tenant, self._settings, self._codec, self._keyring
        return AppMemory(*given, self.off_loop)

    def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        words: TextFields = False,
        embed: TextFields = False,
        if_version: int | None = None,
    ) -> None:
        """Put an item. ``MemoryChanged`` if it has another version than ``if_version``.

        ``ttl`` is in seconds. ``words`` and ``embed`` name the fields whose text can be searched,
        or are ``True`` for all.
        """
        write = self.prepare(
            namespace, key, value, ttl=ttl, words=words, embed=embed, if_version=if_version
        )
        self.write([write])

    def delete(self, namespace: Sequence[str], key: str) -> None:
        """Delete an item."""
        self.write([self.removal(namespace, key)])

    def write(self, writes: Sequence[MemoryWrite]) -> None:
        """Write prepared items in one transaction, each at most once."""
        check_size(writes, "this call")
        self._items.write(self.tenant, writes)

    def touch(self, namespace: Sequence[str], key: str) -> None:
        """Restart an item's expiry time."""
        self._items.touch(self.tenant, [_place(namespace, key)])

    def erase(self, *, subject: str) -> int:
        """Remove all a subject's items, and the key they are sealed with; return how many.

        The subject's threads are not touched: delete those by tag. What a running task has sealed
        before cannot be read if it is written later: reads leave it out, with a warning.
        """
        check_name("subject", subject)
        count, owner = self._items.erase(self.tenant, subject), self._owner(subject)
        if self._keyring is not None:
            self._keyring.erase(owner)
            self._codec.for_thread(owner, new=True)  # by another key it is seen what was late
        return count

    def sweep(self) -> int:
        """Remove items whose time is over; return how many."""
        return sum(iter(lambda: self._items.sweep(self.tenant, limit=_SWEPT), 0))

    aput = _async_version(put)
    adelete = _async_version(delete)
    atouch = _async_version(touch)
    aerase = _async_version(erase)
    asweep = _async_version(sweep)

    async def aget(self, namespace: Sequence[str], key: str) -> MemoryItem | None:
        """Async version of ``get``."""
        found: MemoryItem | None = await self.off_loop(self.get, namespace, key)
        return found

    async def alist(
        self, under: Sequence[str] = (), *, limit: int = 100, after: MemoryItem | None = None
    ) -> Sequence[MemoryItem]:
        """Async version of ``list``."""
        found: Sequence[MemoryItem] = await self.off_loop(
            partial(self.list, under, limit=limit, after=after)
        )
        return found

    async def anamespaces(
        self, under: Sequence[str] = (), *, limit: int = 100, after: Sequence[str] = ()
    ) -> Sequence[tuple[str, ...]]:
        """Async version of ``namespaces``."""
        asked = partial(self.namespaces, under, limit=limit, after=after)
        found: Sequence[tuple[str, ...]] = await self.off_loop(asked)
        return found

    async def asearch(
        self,
        under: Sequence[str] = (),
        *,
        words: str | None = None,
        near: str | Sequence[float] | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int = 10,
    ) -> Sequence[MemoryHit]:
        """Async version of ``search``."""
        asked = partial(self.search, under, words=words, near=near, where=where, limit=limit)
        found: Sequence[MemoryHit] = await self.off_loop(asked)
        return found


def require_memory(store: Store) -> MemoryItems:
    if store.memory is None:
        raise InvalidRequest(
            f"long-term memory needs a store that has it, and {type(store).__name__} has none: "
            "compile(store='sqlite:///...') or 'postgresql://...'"
        )
    return store.memory


def _logger() -> Logger:
    import logging

    return logging.getLogger("milecastle")


def _place(namespace: Sequence[str], key: str) -> ItemPlace:
    check_name("memory key", key, _KEY_BYTES)
    return path_of(namespace), key


def _payload_place(path: bytes, key: str) -> PayloadPlace:
    return PayloadPlace(task=f"memory {path.hex()} {key}")


def _checked(limit: int) -> int:
    if type(limit) is not int or not 0 < limit <= _MOST:
        raise InvalidRequest(f"limit= is from 1 to {_MOST:,}")
    return limit


def _texts(value: Any, fields: TextFields) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Mapping):
        raise InvalidRequest("words= and embed= need a text, or a mapping with texts")
    channels = cast("Mapping[str, Any]", value)
    if fields is True:
        return [text for text in channels.values() if isinstance(text, str)]
    names = [fields] if isinstance(fields, str) else fields or []
    found = [channels.get(name) for name in names]
    if not all(isinstance(text, str | None) for text in found):
        raise InvalidRequest("words= and embed= name fields that are text")
    return [text for text in found if text is not None]


def packed_vectors(vectors: Iterable[Sequence[float]]) -> bytes:
    try:
        return b"".join(array("f", vector).tobytes() for vector in vectors)
    except (TypeError, OverflowError):
        raise InvalidRequest("a vector is a sequence of numbers") from None


def _cosines(query: bytes, items: Sequence[StoredItem]) -> list[float]:
    wanted = array("f", query)
    norm, dims = _norm(wanted), len(wanted)
    try:
        return _cosines_of_arrays(wanted, items)
    except ImportError:  # numpy is not installed
        pass
    found: list[float] = []
    for item in items:
        each = array("f", item.vectors)
        parts = (each[first : first + dims] for first in range(0, len(each), dims))
        found.append(max(_dot(wanted, part) / (norm * _norm(part)) for part in parts))
    return found


def _cosines_of_arrays(wanted: array[float], items: Sequence[StoredItem]) -> list[float]:
    import numpy as np

    query = np.frombuffer(wanted, dtype="f4").astype("f8")
    each = [len(item.vectors) // len(wanted) // 4 for item in items]
    table = np.frombuffer(b"".join(item.vectors for item in items), dtype="f4")
    rows = table.reshape(-1, len(wanted)).astype("f8")
    norms = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    scores = iter((rows @ query / np.where(norms == 0, 1, norms)).tolist())
    return [max(islice(scores, count)) for count in each]


def _dot(one: array[float], other: array[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _norm(vector: array[float]) -> float:
    return sqrt(_dot(vector, vector)) or 1.0


def _rank(found: _Scored) -> tuple[float, ItemPlace]:
    return -found[0], found[1].place


def _checked_filter(where: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, wanted in where.items():
        if isinstance(wanted, Mapping) and not (wanted and wanted.keys() <= _ORDERS.keys()):
            raise InvalidRequest(
                f"where= of {name!r} is a value to be equal to, or has the operators "
                f"{', '.join(_ORDERS)}"
            )
    return where


def _fits(value: Any, where: Mapping[str, Any]) -> bool:
    if not where:
        return True
    return isinstance(value, Mapping) and all(
        name in value and _agrees(value[name], wanted) for name, wanted in where.items()
    )


def _agrees(found: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return is_equal(found, wanted)
    orders = cast("Mapping[str, Any]", wanted)
    return all(is_ordered(found, name, one) for name, one in orders.items())


def is_ordered(found: Any, operator: str, other: Any) -> bool:
    is_alike = _kind(found) == _kind(other) in ("number", "text")
    return is_alike and _ORDERS[operator](found, other)


def is_equal(one: Any, other: Any) -> bool:
    """Equal as JSON: 10 is 10.0 and neither "10" nor True."""
    if _kind(one) != _kind(other):
        return False
    if isinstance(one, list | tuple):
        items, others = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        return len(items) == len(others) and all(map(is_equal, items, others))
    return bool(one == other)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list | tuple):
        return "list"
    return "text" if isinstance(value, str) else type(value).__name__
