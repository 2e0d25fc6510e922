"""LangGraph's ``BaseStore`` on long-term memory, with each finding reported for its own stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from milecastle import InvalidRequest, Store
from milecastle.integrations.langgraph import MilecastleStore
from milecastle.stores.memory import MemoryStore


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


def keys(found: Any) -> list[str]:
    return sorted(item.key for item in found)


def test_items_are_put_got_and_deleted(store: Store) -> None:
    peer = MilecastleStore(store)
    peer.put(("users", "u7"), "tea", {"text": "likes tea"})
    found = peer.get(("users", "u7"), "tea")
    assert found is not None
    assert (found.namespace, found.key, found.value) == (
        ("users", "u7"),
        "tea",
        {"text": "likes tea"},
    )
    peer.put(("users", "u7"), "tea", {"text": "likes green tea"})
    again = peer.get(("users", "u7"), "tea")
    assert again is not None
    assert again.created_at == found.created_at
    assert again.updated_at > found.updated_at
    peer.delete(("users", "u7"), "tea")
    assert peer.get(("users", "u7"), "tea") is None


def test_siblings_and_wildcards_do_not_leak(store: Store) -> None:
    """CVE-2026-71433: ``("foo",)`` found ``("foobar",)``, and ``_`` and ``%`` any character."""
    peer = MilecastleStore(store)
    for label in ("foo", "foobar", "fo_", "fo%", "FOO"):
        peer.put((label,), label, {"x": 1})
    for label in ("foo", "fo_", "fo%"):
        assert keys(peer.search((label,))) == [label]
        assert peer.list_namespaces(prefix=(label,)) == [(label,)]


def test_expired_items_are_in_no_answer(store: Store) -> None:
    """8902: expired rows were returned until they were swept; 8921: the time was dropped."""
    peer = MilecastleStore(store, ttl={"default_ttl": 1 / 60})
    peer.put(("a",), "short", {"x": 1})
    peer.put(("a",), "long", {"x": 1}, ttl=None)
    assert keys(peer.search(("a",))) == ["long", "short"]
    time.sleep(1.1)
    assert keys(peer.search(("a",))) == ["long"]
    assert peer.get(("a",), "short") is None


def test_only_what_was_read_is_refreshed(store: Store) -> None:
    """8806: reading one item extended those beside it."""
    peer = MilecastleStore(store)
    for key in ("read", "beside", "asked"):
        peer.batch([PutOp(("a",), key, {"x": key}, ttl=0.03)])
    for _ in range(4):
        time.sleep(0.5)
        peer.batch([GetOp(("a",), "read", refresh_ttl=True)])
        peer.batch([GetOp(("a",), "asked", refresh_ttl=False)])
    assert keys(peer.search(("a",), refresh_ttl=False)) == ["read"]
    peer.batch([SearchOp(("a",), filter={"x": "read"}, refresh_ttl=True)])
    assert keys(peer.search(("a",))) == ["read"]


@pytest.mark.parametrize("namespace", [(), ("",), ("a\0b",), ("langgraph", "x")])
def test_a_batch_validates_too(namespace: tuple[str, ...]) -> None:
    """8832: only ``put`` looked at the namespace. 8590: a refused batch left some of its puts."""
    peer = MilecastleStore(MemoryStore())
    with pytest.raises(InvalidRequest):
        peer.batch([PutOp(("a",), "k", {"x": 1}), PutOp(namespace, "k", {"x": 1})])
    assert peer.search(()) == []


def test_filters_have_types(store: Store) -> None:
    """7684: numbers were compared as text; 8759: a list in a filter."""
    peer = MilecastleStore(store)
    for key, value in {"nine": 9, "ten": 10, "text": "10", "true": True, "list": [1, 2]}.items():
        peer.put(("a",), key, {"x": value, "user": {"name": key}, "it's": key})

    def where(wanted: Any) -> list[str]:
        return keys(peer.search(("a",), filter=wanted))

    assert where({"x": {"$gt": 9}}) == ["ten"]
    assert where({"x": {"$gte": 9, "$lt": 10}}) == ["nine"]
    assert where({"x": 10}) == ["ten"]
    assert where({"x": [1, 2]}) == ["list"]
    assert where({"x": {"$ne": 10}}) == ["list", "nine", "text", "true"]
    assert where({"x": {"$lte": "10"}}) == ["text"]
    assert where({"user.name": "ten"}) == where({"user": {"name": "ten"}}) == ["ten"]
    assert where({"it's": "ten"}) == ["ten"]
    with pytest.raises(ValueError, match="Unsupported operator"):
        where({"x": {"$in": [1]}})


def test_reads_of_a_batch_see_the_state_before_it(store: Store) -> None:
    peer = MilecastleStore(store)
    peer.put(("a",), "k", {"x": 1})
    put, get = PutOp(("a",), "k", {"x": 2}), GetOp(("a",), "k")
    results = peer.batch([put, get, PutOp(("a",), "k", {"x": 3}), SearchOp(("a",))])
    assert results[0] is None
    assert getattr(results[1], "value", None) == {"x": 1}
    found = peer.get(("a",), "k")
    assert found is not None
    assert found.value == {"x": 3}


def test_namespaces_match_prefix_suffix_and_depth(store: Store) -> None:
    peer = MilecastleStore(store)
    for space in (("a", "x", "1"), ("a", "y", "1"), ("b", "x", "2"), ("a", "x")):
        peer.put(space, "k", {"x": 1})
    assert peer.list_namespaces(prefix=("a", "*", "1")) == [("a", "x", "1"), ("a", "y", "1")]
    assert peer.list_namespaces(suffix=("1",)) == [("a", "x", "1"), ("a", "y", "1")]
    assert peer.list_namespaces(max_depth=1) == [("a",), ("b",)]
    assert peer.list_namespaces(max_depth=2, limit=1, offset=1) == [("a", "y")]
    asked = ListNamespacesOp(match_conditions=(MatchCondition("suffix", ("x",)),))
    assert peer.batch([asked]) == [[("a", "x")]]


def test_search_by_vector_and_async(store: Store) -> None:
    peer = MilecastleStore(store, index={"dims": 3, "embed": embed, "fields": ["text"]})

    async def scenario() -> None:
        await peer.aput(("a",), "aab", {"text": "aab"})
        await peer.aput(("a",), "bbb", {"text": "bbb"})
        await peer.aput(("a",), "without", {"text": "aaa"}, index=False)
        found = await peer.asearch(("a",), query="aaa")
        assert [(item.key, item.score is None) for item in found] == [
            ("aab", False),
            ("bbb", False),
            ("without", True),
        ]
        assert (await peer.aget(("a",), "aab")) is not None

    asyncio.run(scenario())
    assert [item.key for item in peer.search(("a",), query="bb", limit=1)] == ["bbb"]
