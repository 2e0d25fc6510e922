"""LangGraph's ``BaseStore`` on long-term memory: for its graphs, and for agents built on them.

Rules:

- A batch's reads see the state before it. If one item is put twice, the last put counts. All puts
  are one transaction, and are validated and embedded before it begins.
- A read extends only the time of the items it returns, if its operation says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

import msgspec.structs
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from milecastle.app.checkpoints import CheckpointStore
from milecastle.app.memory import (
    Memory,
    TenantMemory,
    is_equal,
    is_ordered,
    packed_vectors,
    require_memory,
)
from milecastle.codec.deltas import LogCodec
from milecastle.codec.values import UntypedCodec
from milecastle.errors import InvalidRequest
from milecastle.model.memory import MemoryHit, MemoryItem, MemoryWrite, path_of
from milecastle.ports.store import Store
from milecastle.support.off_loop import off_loop

_PAGE: Final = 1000
_RESERVED: Final = "langgraph"
_OPERATORS: Final = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_Vectors = Mapping[str, Sequence[float]]


class MilecastleStore(BaseStore):
    """A LangGraph store in a tenant's long-term memory. ``store`` is a URL or a store.

    ``ttl`` and ``index`` are LangGraph's; times are in minutes. Items are those in ``app.memory``.
    """

    supports_ttl = True

    def __init__(
        self,
        store: str | Store | CheckpointStore,
        *,
        tenant: str = "default",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        opened = _opened(store)
        self.ttl_config = ttl
        self.index_config = index
        given = cast("dict[str, Any]", index or {})
        self._embeddings = ensure_embeddings(given.get("embed")) if given else None
        dims: int = given.get("dims", 0)
        self._fields: list[str] = given.get("fields") or ["$"]
        self._items = require_memory(opened)
        self._tenant = tenant
        codec = LogCodec(UntypedCodec())
        self._memory = TenantMemory(opened, tenant, Memory(dims=dims, model=_RESERVED), codec, None)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Perform operations: reads first, then all puts in one transaction."""
        asked, texts = self._checked(ops)
        found = self._embeddings.embed_documents(texts) if self._embeddings and texts else []
        return self._perform(asked, dict(zip(texts, found, strict=True)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Async version of ``batch``."""
        asked, texts = self._checked(ops)
        found: Sequence[Sequence[float]] = []
        if self._embeddings and texts:
            found = await self._embeddings.aembed_documents(texts)
        vectors = dict(zip(texts, found, strict=True))
        performed: list[Result] = await off_loop(self._perform, asked, vectors)
        return performed

    def _checked(self, ops: Iterable[Op]) -> tuple[list[Op], list[str]]:
        asked, texts = list(ops), dict[str, None]()
        for op in asked:
            if isinstance(op, PutOp):
                _refuse_reserved(op.namespace)
                texts |= dict.fromkeys(self._texts(op))
            elif isinstance(op, SearchOp) and op.query and self._embeddings:
                texts[op.query] = None
        return asked, [*texts]

    def _texts(self, op: PutOp) -> list[str]:
        if self._embeddings is None or op.value is None or op.index is False:
            return []
        paths = self._fields if op.index is None else op.index
        each = (get_text_at_path(op.value, "$" if p == "$" else tokenize_path(p)) for p in paths)
        return [text for found in each for text in found]

    def _perform(self, ops: Sequence[Op], vectors: _Vectors) -> list[Result]:
        writes = {
            write.place: write
            for op in ops
            if isinstance(op, PutOp)
            for write in [self._write(op, vectors)]
        }
        results = [self._read(op, vectors) for op in ops]
        if writes:
            self._items.write(self._tenant, [*writes.values()])
        return results

    def _write(self, op: PutOp, vectors: _Vectors) -> MemoryWrite:
        if op.value is None:
            return self._memory.removal(op.namespace, op.key)
        ttl = None if op.ttl is None else op.ttl * 60
        write = self._memory.prepare(op.namespace, op.key, dict(op.value), ttl=ttl)
        own = [vectors[text] for text in self._texts(op)]
        if not own:
            return write
        model = self._memory.model
        return msgspec.structs.replace(write, vectors=packed_vectors(own), model=model)

    def _read(self, op: Op, vectors: _Vectors) -> Result:
        if isinstance(op, GetOp):
            item = self._memory.get(op.namespace, op.key)
            self._refresh(op, [item] if item else [])
            return None if item is None else Item(**_fields_of(item))
        if isinstance(op, SearchOp):
            hits = list(islice(self._matching(op, vectors), op.offset, op.offset + op.limit))
            self._refresh(op, [hit.item for hit, _ in hits])
            return [SearchItem(**_fields_of(hit.item), score=score) for hit, score in hits]
        if isinstance(op, ListNamespacesOp):
            found = dict.fromkeys(space[: op.max_depth] for space in self._spaces(op))
            return list(islice(found, op.offset, op.offset + op.limit))
        return None

    def _refresh(self, op: GetOp | SearchOp, items: Sequence[MemoryItem]) -> None:
        places = [(path_of(item.namespace), item.key) for item in items if item.expires_at]
        if op.refresh_ttl and places:
            self._items.touch(self._tenant, places)

    def _matching(
        self, op: SearchOp, vectors: _Vectors
    ) -> Iterator[tuple[MemoryHit, float | None]]:
        """Hits with their scores; after the nearest items come those without a vector."""
        wanted, seen = op.filter or {}, set[tuple[tuple[str, ...], str]]()
        if op.query and self._embeddings:
            for hit in self._memory.each(op.namespace_prefix, near=vectors[op.query]):
                seen.add((hit.item.namespace, hit.item.key))
                if fits(hit.item.value, wanted):
                    yield hit, hit.score
        for hit in self._memory.each(op.namespace_prefix):
            place = hit.item.namespace, hit.item.key
            if place not in seen and fits(hit.item.value, wanted):
                yield hit, None

    def _spaces(self, op: ListNamespacesOp) -> Iterator[tuple[str, ...]]:
        last: tuple[str, ...] = ()
        while page := self._memory.namespaces((), limit=_PAGE, after=last):
            for space in page:
                if all(_matches(space, condition) for condition in op.match_conditions or ()):
                    yield space
            last = page[-1]


def _opened(store: str | Store | CheckpointStore) -> Store:
    if isinstance(store, str):
        from milecastle.stores.opening import find_store

        return find_store(store)
    return store.store if isinstance(store, CheckpointStore) else store


def _refuse_reserved(namespace: Sequence[str]) -> None:
    if namespace and namespace[0] == _RESERVED:
        raise InvalidRequest(f"the first label of a namespace cannot be '{_RESERVED}'")


def _fields_of(item: MemoryItem) -> dict[str, Any]:
    names = ("namespace", "key", "value", "created_at", "updated_at")
    return {name: getattr(item, name) for name in names}


def _matches(space: tuple[str, ...], condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    part = space[: len(path)] if condition.match_type == "prefix" else space[-len(path) :]
    return len(part) == len(path) and all(
        label in ("*", own) for own, label in zip(part, path, strict=True)
    )


def fits(value: Any, wanted: Mapping[str, Any]) -> bool:
    """True if a value has the wanted fields, as LangGraph's filters say; ``a.b`` is nested."""
    return all(_agrees(_at(value, name), one) for name, one in wanted.items())


def _at(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        return None
    fields = cast("Mapping[str, Any]", value)
    if name not in fields and "." in name:
        first, _, rest = name.partition(".")
        return _at(fields.get(first), rest)
    return fields.get(name)


def _agrees(found: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return is_equal(found, wanted)
    asked = cast("Mapping[str, Any]", wanted)
    if not any(name.startswith("$") for name in asked):
        return isinstance(found, Mapping) and fits(found, asked)
    return all(_compares(found, name, one) for name, one in asked.items())


def _compares(found: Any, name: str, wanted: Any) -> bool:
    if name in ("$eq", "$ne"):
        return is_equal(found, wanted) is (name == "$eq")
    if name not in _OPERATORS:
        raise ValueError(f"Unsupported operator: {name}")
    return is_ordered(found, _OPERATORS[name], wanted)
