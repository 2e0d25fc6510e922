"""Names and values that disks and databases trip over: the same verdict on every store.

`MILECASTLE_NAMES` is the number of names.
"""

from __future__ import annotations

import os
import random
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, cast

import msgspec.structs
import pytest

from milecastle import END, START, InvalidRequest, MilecastleError, StateGraph
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunStatus
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing.entries import Writer, a_failure, a_result, a_run
from tests.broken_stores.lists import (
    LimitsFromTheEnd,
    LimitsWithinAWord,
    StumblesOverTheStatus,
)
from tests.every_store import EVERY_KIND, Stores

TEXT = 2
"""The place of free text in a verdict."""

NAMES = int(os.environ.get("MILECASTLE_NAMES", "60"))

PIECES = (
    "a", "A", "b", "/", "\\", "_", ":", "*", "?", '"', "<", ">", "|", ".", "..", " ", "\n", "\r",
    "\t", "\0", "\x01", "\x1b", "\x1b0000", "\x7f", "\x85", "\ud800", "\udfff", "\ud83c\udff0",
    "caf\u00e9", "cafe\u0301", "\u2028", "\u2029", "\ufeff", "\u200b", "\u202e", "\uffff",
    "\U0001f3f0", "\u0130", "i", "\u00df", "ss", "\u212a", "k", "CON", "con", "NUL", "COM1", "aux",
    ".jsonl", ".tmp", "'", "''", ";--", "'; DROP TABLE entries; --", "%", "%s", "%(tenant)s", "%2F",
    "{schema}", "{}", "$1", "$HOME", "`id`", "~", "#", "&", "null", "None", "0", "00", "-1", "1e9",
    "x" * 100, "x" * 255, "\u00e9" * 130,
)  # fmt: skip


@cache
def names() -> tuple[str, ...]:
    """Names that differ, each put together from pieces that are trouble."""
    chance = random.Random(3)
    found = dict.fromkeys(PIECES)
    while len(found) < NAMES:
        found["".join(chance.choices(PIECES, k=chance.randint(1, 4)))] = None
    return tuple(found)[:NAMES]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path)
    yield stores
    stores.close()


def verdict(store: Store, name: str, number: int) -> list[Any]:
    """Use a name wherever a name can be used; what came of each."""
    plain = ThreadKey("plain", f"thread {number}")
    return [
        _kept(store, name, "as a thread", lambda: ThreadKey("hostile", name), number),
        _kept(store, name, "as a tenant", lambda: ThreadKey(name, "thread"), number),
        _kept(store, name, name, lambda: plain, number),
        _looked_for(store, plain, name),
    ]


def _kept(store: Store, name: str, text: str, key_of: Any, number: int) -> Any:
    try:
        key = key_of()
        store.commit(batch_of(key, text, number))
        store.commit(Batch(key=key, head=1, results=(a_result(1, text),)))
        return seen(store, key)
    except MilecastleError as error:
        return type(error)


def batch_of(key: ThreadKey, text: str, number: int) -> Batch:
    """A batch that has the text wherever free text may stand."""
    writer = Writer(key, number + 1)
    entry = writer.plan(note=text, nodes=(text, "n"), next=(text,), route=(text,), fingerprint=text)
    run = msgspec.structs.replace(writer.run, graph=text, metadata={text: text}, input_digest=text)
    failure = a_failure(run.run_id, message=text, node=text, causes=(text,), traceback=(text,))
    return writer.batch(entry, runs=(run,), failure=failure, manifest=(text, b"\0"))


def seen(store: Store, key: ThreadKey) -> Any:
    """All that can be seen of a thread with one run."""
    chain = store.read(key)
    runs = list(store.runs(key))
    entry = chain.entries[-1] if chain else None
    found = [store.manifest(key, entry.fingerprint), store.locate(key, entry.id)] if entry else []
    failures = [store.failure(key, run.run_id) for run in runs]
    return [chain, list(store.history(key)), runs, failures, found]


def _looked_for(store: Store, key: ThreadKey, name: str) -> Any:
    """What is found under a name that nothing has."""
    wanted = name + "\u2603"
    return [
        store.locate(key, wanted),
        store.run(key, wanted),
        store.failure(key, wanted),
        store.manifest(key, wanted),
        list(store.threads(wanted)),
    ]


@cache
def expected() -> tuple[MemoryStore, list[list[Any]]]:
    """What the memory store makes of every name."""
    memory = MemoryStore()
    return memory, [verdict(memory, name, number) for number, name in enumerate(names())]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_store_gives_the_same_verdict(stores: Stores, kind: str) -> None:
    store = stores.open(kind)
    memory, verdicts = expected()
    for number, name in enumerate(names()):
        wanted = verdicts[number].copy()
        if kind == "jsonl" and not is_unicode(name):
            wanted[TEXT] = InvalidRequest  # what is not Unicode cannot be in a line of JSON
        assert verdict(store, name, number) == wanted, ascii(name)
    assert list(store.threads("hostile")) == list(memory.threads("hostile"))
    for after in random.Random(5).sample(names(), 20):
        assert _after(store, after) == _after(memory, after), ascii(after)
    for name in names():
        try:
            keys = [ThreadKey("hostile", name), ThreadKey(name, "thread")]
        except MilecastleError:
            continue
        for key in keys:
            assert seen(store, key) == seen(memory, key), ascii(name)


def is_unicode(name: str) -> bool:
    return name.encode(errors="replace").decode() == name


def _after(store: Store, name: str) -> list[str]:
    return [info.key.thread for info in store.threads("hostile", after=name, limit=3)]


class Normalizing(MemoryStore):
    """Takes names for one another that only look the same."""

    def commit(self, batch: Batch) -> None:
        name = unicodedata.normalize("NFC", batch.key.thread)
        key = ThreadKey(batch.key.tenant, name)
        super().commit(msgspec.structs.replace(batch, key=key))


def test_a_store_that_changes_names_is_caught() -> None:
    store, memory = Normalizing(), MemoryStore()
    found = [
        name
        for number, name in enumerate(["a", "caf\u00e9", "cafe\u0301"])
        if verdict(store, name, number) != verdict(memory, name, number)
    ]
    assert found == ["cafe\u0301"]


LIMITS = (
    0, 1, 2, 3, 4, -1, -2, -3, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**63 - 1, 2**63,
    -(2**63) - 1, 2**64, 2**70, -(2**70), 10**40, -(10**40),
)  # fmt: skip


def wrongly_listed(store: Store) -> Iterator[str]:
    """Lists that are not what a limit or a status means, of three threads with three runs each."""
    keys = [ThreadKey("limits", name) for name in "abc"]
    for number, key in enumerate(keys):
        writer = Writer(key, 10 * number + 1).begin(store, 3)
        runs = tuple(a_run(key, 10 * number + place, status="failed") for place in (2, 3))
        store.commit(writer.batch(runs=runs))
    everything = _listed(store, keys[1], None)
    if [len(found) for found in everything] != [3, 3, 3, 3, 3]:
        yield "without a limit"
    for limit in LIMITS:
        if _listed(store, keys[1], limit) != [found[: max(0, limit)] for found in everything]:
            yield f"limit {limit}"
    for status in names():
        if _listed(store, keys[1], None, status)[-1] != []:
            yield f"status {status!a}"


def _listed(store: Store, key: ThreadKey, limit: int | None, status: str = "failed") -> list[Any]:
    wanted = cast("RunStatus", status)
    try:
        return [
            list(store.history(key, limit=limit)),
            list(store.entries(key, limit=limit)),
            list(store.runs(key, limit=limit)),
            list(store.threads(key.tenant, limit=limit)),
            list(store.threads(key.tenant, limit=limit, status=wanted)),
        ]
    except MilecastleError as error:
        return [type(error)]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_any_limit_and_any_status_mean_the_same_on_every_store(stores: Stores, kind: str) -> None:
    assert list(wrongly_listed(stores.open(kind))) == []


def test_stores_that_stumble_over_limits_and_statuses_are_caught() -> None:
    assert "limit -1" in set(wrongly_listed(LimitsFromTheEnd()))
    assert "limit 9223372036854775808" in set(wrongly_listed(LimitsWithinAWord()))
    assert "status '\\ud800'" in set(wrongly_listed(StumblesOverTheStatus()))


class Bag(TypedDict):
    value: Any


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "NUL": "a\0b",
    "lone surrogate": "\ud800",
    "surrogates": "\ud83c\udff0",
    "NaN": float("nan"),
    "minus zero": -0.0,
    "infinity": float("-inf"),
    "2**63": 2**63,
    "-2**63-1": -(2**63) - 1,
    "2**64": 2**64,
    "2**200": 2**200,
    "20,000 levels": deep(20_000),
    "100 levels": deep(100),
    "NFC and NFD": {"caf\u00e9": 1, "cafe\u0301": 2},
    "U+2028": "a\u2028b\u2029c",
    "a/b and a_b": {"a/b": 1, "a_b": 2},
    "CON": {"CON": "con"},
    "bytes": b"\0\xff",
    "no text as key": {1: "a", "1": "b", (1, 2): "c", None: "d"},
    "a tag of ours": {"__type__": "set", "$": [1], "b64": "x"},
    "a function": len,
    "a long text": "\u00e9" * 1_000_000,
}


def outcome(store: Store, name: str, value: Any) -> str:
    """What a store makes of a value: how it comes back, or which error is raised."""
    graph = StateGraph(Bag)

    def keep(state: Bag) -> dict[str, Any]:
        return {"value": value}

    graph.add_node("keep", keep)
    graph.add_edges(START, "keep", END)
    app = graph.compile(store=store)
    try:
        app.invoke({"value": None}, thread=name)
        found = app.state(name).state["value"]
    except MilecastleError as error:
        return f"{type(error).__name__} caused by {type(error.__cause__).__name__}"
    return f"{type(found).__name__} {found!r}"


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_values_that_trip_databases_come_back_or_are_refused_alike(
    stores: Stores, kind: str
) -> None:
    store = stores.open(kind)
    found = {name: outcome(store, name, value) for name, value in VALUES.items()}
    memory = {name: outcome(MemoryStore(), name, value) for name, value in VALUES.items()}
    assert found == memory
    kept = {name for name, value in VALUES.items() if found[name].endswith(repr_of(value))}
    refused = {"lone surrogate", "surrogates", "20,000 levels", "a function"}
    print({name: found[name][:60] for name in set(VALUES) - kept})
    assert kept | refused >= set(VALUES)


def repr_of(value: Any) -> str:
    return repr(value) if value is not VALUES["20,000 levels"] else "too deep to be shown"
