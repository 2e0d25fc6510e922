"""``app.memory``: search, tenants, encryption, erasure, and what is refused."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any, TypedDict, cast
from unittest.mock import patch

import pytest

from milecastle import END, START, App, InvalidRequest, Keyring, Memory, StateGraph, Store
from milecastle.errors import MemoryChanged
from milecastle.stores.memory import MemoryStore

FACTS = ("users", "u7", "facts")


class State(TypedDict, total=False):
    n: int


def an_app(store: Store | None = None, **options: Any) -> App[Any]:
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("node", lambda state: {})
    graph.add_edges(START, "node", END)
    return graph.compile(store=store or MemoryStore(), **options)


def letters(texts: list[str]) -> list[list[float]]:
    """An embedding: how often a text has each of four letters."""
    return [[float(text.count(letter)) for letter in "abcd"] for text in texts]


def keys(found: Any) -> list[str]:
    return [hit.item.key for hit in found]


def test_words_find_items_without_case_and_without_other_tenants(store: Store) -> None:
    """Fails if words are compared as written, or the index has the tenant's neighbours."""
    memory = an_app(store).memory
    memory.put(FACTS, "tea", {"text": "Likes green TEA", "n": 1}, words="text")
    memory.put(FACTS, "cake", {"text": "likes cake", "n": 2}, words=True)
    memory.put(("users", "u8"), "tea", "Tea, and more tea", words=True)
    memory.put(FACTS, "none", {"text": "tea"})
    memory.for_tenant("other").put(FACTS, "theirs", {"text": "likes tea"}, words=True)
    found = memory.search(("users", "u7"), words="likes tea!")
    assert [(hit.item.key, hit.score) for hit in found] == [("tea", 1.0), ("cake", 0.5)]
    assert keys(memory.search(words="TEA")) == ["tea", "tea"]
    assert keys(memory.search(words="tea", where={"n": 1})) == ["tea"]
    assert keys(memory.search(words="likes", where={"n": {">": 1}}, limit=1)) == ["cake"]
    assert keys(memory.search(words="...")) == []
    assert keys(memory.for_tenant("other").search(words="tea")) == ["theirs"]


def test_a_limit_counts_what_the_filter_left(store: Store) -> None:
    """Fails if the limit is applied before the filter, on any of the three paths."""
    memory = an_app(store, memory=Memory(embed=letters, dims=4)).memory
    for number in range(60):
        value = {"text": "a" * (60 - number) + "b", "n": number}
        memory.put(FACTS, f"k{number:02}", value, words=True, embed=True)
        memory.put(FACTS, f"w{number:02}", {"text": "word", "n": number}, words=True)
    late = {"n": {">=": 57}}
    assert keys(memory.search(where=late, limit=2)) == ["k57", "k58"]
    assert keys(memory.search(near="aaaa", where=late, limit=2)) == ["k57", "k58"]
    assert keys(memory.search(words="word", where=late, limit=2)) == ["w57", "w58"]


def test_filters_compare_as_json(store: Store) -> None:
    """Fails if values are compared as text, or True is taken for 1."""
    memory = an_app(store).memory
    values = {"int": 10, "text": "10", "float": 10.0, "true": True, "one": 1, "none": None}
    for key, value in {**values, "list": [1, 2]}.items():
        memory.put(FACTS, key, {"x": value})
    memory.put(FACTS, "absent", {"y": 1})
    memory.put(FACTS, "plain", 10)

    def where(wanted: Any) -> list[str]:
        return sorted(keys(memory.search(where={"x": wanted}, limit=99)))

    assert where(10) == ["float", "int"]
    assert where("10") == ["text"]
    assert where(True) == ["true"]
    assert where(1) == ["one"]
    assert where(None) == ["none"]
    assert where([1, 2]) == ["list"]
    assert where([1, True]) == []
    assert where({">": 1}) == ["float", "int"]
    assert where({">=": 1, "<": 10}) == ["one"]
    assert where({"<=": "10"}) == ["text"]
    for wrong in ({"$gt": 1}, {}, {"a": 1}):
        with pytest.raises(InvalidRequest, match="operators"):
            where(wrong)


@pytest.mark.parametrize("with_numpy", [True, False])
def test_near_is_the_exact_cosine(store: Store, with_numpy: bool) -> None:
    """Fails if vectors of other dimensions are compared, or an item has only its first vector."""
    memory = an_app(store, memory=Memory(embed=letters, dims=4)).memory
    for key in ("aab", "abb", "bbb", "ccc"):
        memory.put(FACTS, key, {"text": key}, embed="text")
    memory.put(FACTS, "both", {"one": "ccc", "two": "aaa"}, embed=("one", "two"))
    memory.put(FACTS, "without", {"text": "aaa"})
    other = an_app(store, memory=Memory(embed=lambda texts: [[1.0, 0.0]], dims=2)).memory
    other.put(FACTS, "other", {"text": "aaa"}, embed=True)
    with patch.dict(sys.modules, {} if with_numpy else {"numpy": None}):
        found = memory.search(FACTS, near="aaaa", limit=4)
        same = memory.search(FACTS, near=[1, 0, 0, 0], limit=4)
    assert [hit.item.key for hit in found] == ["both", "aab", "abb", "bbb"]
    assert [round(hit.score, 6) for hit in found] == [1.0, 0.894427, 0.447214, 0.0]
    assert [hit.item.key for hit in same] == ["both", "aab", "abb", "bbb"]
    assert keys(other.search(near="x")) == ["other"]


def test_embeddings_are_checked() -> None:
    memory = an_app(memory=Memory(embed=lambda texts: [[1.0]], dims=4)).memory
    with pytest.raises(InvalidRequest, match="1 vectors of 4 numbers"):
        memory.put(FACTS, "k", "text", embed=True)
    for call in (
        lambda: an_app().memory.put(FACTS, "k", "text", embed=True),
        lambda: an_app().memory.search(near="text"),
    ):
        with pytest.raises(InvalidRequest, match="vectors need a function"):
            call()
    with pytest.raises(InvalidRequest, match="sequence of numbers"):
        memory.search(near=cast("Any", ["a"]))


def test_pages_and_namespaces(store: Store) -> None:
    memory = an_app(store).memory
    for number in range(25):
        memory.put(("a", f"{number:02}"), "k", number)
    memory.put(("ab",), "k", 0)
    first = memory.list(("a",), limit=10)
    rest = memory.list(("a",), after=first[-1])
    assert [item.value for item in (*first, *rest)] == [*range(25)]
    spaces = memory.namespaces(("a",), limit=20)
    more = memory.namespaces(("a",), after=spaces[-1])
    assert [space[1] for space in (*spaces, *more)] == [f"{number:02}" for number in range(25)]
    assert memory.namespaces(("ab",)) == [("ab",)]


def test_time_is_over_by_itself(store: Store) -> None:
    memory = an_app(store).memory
    memory.put(FACTS, "k", 1, ttl=0.5)
    item = memory.get(FACTS, "k")
    assert item is not None
    assert item.expires_at is not None
    time.sleep(0.55)
    assert memory.get(FACTS, "k") is None
    assert memory.list() == []
    assert memory.sweep() == 1
    memory.put(FACTS, "k", 1, ttl=100)
    memory.touch(FACTS, "k")
    assert memory.sweep() == 0


def test_ten_thousand_hostile_namespaces_leak_nothing() -> None:
    """Fails if a read path compares text: then sibling namespaces are found."""
    rng = random.Random(34)
    alphabet = ["a", "b", "A", ".", "%", "_", "*", "\\", "\n", "\u00e9", "e\u0301", "\uffff"]

    def label() -> str:
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 4)))

    spaces = sorted({tuple(label() for _ in range(rng.randint(1, 4))) for _ in range(10_000)})
    memory = an_app().memory
    for first in range(0, len(spaces), 200):
        some = spaces[first : first + 200]
        memory.write([memory.prepare(space, "k", {"s": "x"}, words=True) for space in some])
    for prefix in rng.sample(spaces, 12):
        wanted = [space for space in spaces if space[: len(prefix)] == prefix]
        ways = [
            [item.namespace for item in memory.list(prefix, limit=10_000)],
            [hit.item.namespace for hit in memory.search(prefix, where={"s": "x"}, limit=10_000)],
            [hit.item.namespace for hit in memory.search(prefix, words="x", limit=10_000)],
            memory.namespaces(prefix, limit=10_000),
        ]
        for found in ways:
            assert sorted(found) == wanted


REFUSED: list[Callable[[Any], object]] = [
    lambda memory: memory.put((), "k", 1),
    lambda memory: memory.put("users", "k", 1),
    lambda memory: memory.put(("a",) * 17, "k", 1),
    lambda memory: memory.put(("a\0b",), "k", 1),
    lambda memory: memory.put(("",), "k", 1),
    lambda memory: memory.put(("\ud800",), "k", 1),
    lambda memory: memory.put((7,), "k", 1),
    lambda memory: memory.put(("a" * 257,), "k", 1),
    lambda memory: memory.put(("a",), "", 1),
    lambda memory: memory.put(("a",), "k" * 513, 1),
    lambda memory: memory.put(("a",), "k", 1, ttl=0),
    lambda memory: memory.put(("a",), "k", 1, ttl=True),
    lambda memory: memory.put(("a",), "k", 1, ttl="1"),
    lambda memory: memory.put(("a",), "k", 1, ttl=1e12),
    lambda memory: memory.put(("a",), "k", 1, if_version=-1),
    lambda memory: memory.put(("a",), "k", 1, if_version=True),
    lambda memory: memory.put(("a",), "k", 1, words=True),
    lambda memory: memory.put(("a",), "k", {"x": 1}, words="x"),
    lambda memory: memory.put(("a",), "k", os.urandom(1 << 20)),
    lambda memory: memory.list(limit=0),
    lambda memory: memory.list(limit=True),
    lambda memory: memory.search(words="a", near="b"),
    lambda memory: memory.for_tenant(""),
    lambda memory: memory.for_tenant("milecastle.keys"),
    lambda memory: memory.erase(subject=""),
]


@pytest.mark.parametrize("call", REFUSED)
def test_what_cannot_be_is_refused(call: Any) -> None:
    memory = an_app().memory
    with pytest.raises(InvalidRequest):
        call(memory)
    assert memory.list() == []


def test_versions_are_compared(store: Store) -> None:
    memory = an_app(store).memory
    memory.put(FACTS, "k", 1, if_version=0)
    with pytest.raises(MemoryChanged, match="item 'k'") as refused:
        memory.put(FACTS, "k", 2, if_version=0)
    assert (refused.value.namespace, refused.value.key) == (FACTS, "k")
    memory.put(FACTS, "k", 2, if_version=1)
    assert memory.list()[0].version == 2


def a_ring() -> Keyring:
    return Keyring({"k": os.urandom(32)}, store=MemoryStore())


def test_encrypted_values_are_sealed_with_their_subjects_key(store: Store) -> None:
    """Fails if the value is stored readable, or one subject's erasure takes another's values."""
    ring = a_ring()
    memory = an_app(store, encryption=ring).memory
    memory.put(FACTS, "k", {"text": "a secret"})
    memory.put(("users", "u8"), "k", {"text": "another"})
    memory.put(("shared",), "k", {"text": "of nobody"})
    assert store.memory is not None
    kept = store.memory.get("default", b"users\0u7\0facts\0", "k")
    assert kept is not None
    assert b"secret" not in kept.value
    found = an_app(store, encryption=ring).memory.get(FACTS, "k")
    assert found is not None
    assert found.value == {"text": "a secret"}
    assert keys(memory.search(where={"text": "another"})) == ["k"]
    copy = [kept]
    assert memory.erase(subject="u7") == 1
    assert memory.get(FACTS, "k") is None
    with patch.object(type(store.memory), "get", return_value=copy[0]):
        assert memory.get(FACTS, "k") is None  # no key opens it
    assert [item.value for item in memory.list()] == [{"text": "of nobody"}, {"text": "another"}]
    memory.put(FACTS, "k", "again")
    assert memory.list(FACTS)[0].value == "again"


def test_encrypted_words_and_vectors_are_refused_unless_allowed(store: Store) -> None:
    """Fails if text of an encrypted value is stored readable unasked."""
    memory = an_app(store, encryption=a_ring()).memory
    with pytest.raises(InvalidRequest, match="index_plain"):
        memory.put(FACTS, "k", "a secret", words=True)
    with pytest.raises(InvalidRequest, match="index_plain"):
        memory.put(FACTS, "k", "a secret", embed=True)
    settings = Memory(index_plain=True, embed=letters, dims=4)
    memory = an_app(store, encryption=a_ring(), memory=settings).memory
    memory.put(FACTS, "k", "abba rules", words=True, embed=True)
    assert keys(memory.search(words="rules")) == keys(memory.search(near="ab")) == ["k"]


def test_erasing_is_of_one_tenant_and_subject(store: Store) -> None:
    memory = an_app(store).memory
    other = memory.for_tenant("other")
    for one in (memory, other):
        one.put(FACTS, "k", "text", words=True)
        one.put(("users", "u8"), "k", "text")
    assert memory.erase(subject="u7") == 1
    assert memory.namespaces() == [("users", "u8")]
    assert memory.search(words="text") == []
    assert other.namespaces() == [FACTS, ("users", "u8")]


def test_the_subject_is_where_settings_say(store: Store) -> None:
    memory = an_app(store, memory=Memory(subject=0)).memory
    memory.put(("u7", "facts"), "k", 1)
    assert memory.erase(subject="facts") == 0
    assert memory.erase(subject="u7") == 1
