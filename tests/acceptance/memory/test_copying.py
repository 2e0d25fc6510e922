"""Copying long-term memory to another store."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle import InvalidRequest, Keyring, Memory, Store
from milecastle.app.upkeep.copying_memory import copy_memory
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from tests.acceptance.memory.test_app_memory import FACTS, an_app, keys, letters


def test_items_are_copied_with_their_index_and_without_other_tenants(store: Store) -> None:
    """Fails if words, vectors, the subject or the tenant are left out of the write."""
    settings = Memory(embed=letters, dims=4, model="letters")
    target, source = an_app(MemoryStore(), memory=settings), an_app(store, memory=settings)
    memory = source.memory
    memory.put(FACTS, "tea", {"text": "aab"}, words="text", embed="text", ttl=1000)
    memory.put(FACTS, "cake", {"text": "ccc"}, words="text", embed="text")
    memory.put(FACTS, "cake", {"text": "ccd"}, words="text", embed="text")
    memory.for_tenant("other").put(FACTS, "theirs", {"text": "aab"}, words="text")
    assert copy_memory(store, target.store, "default") == 2
    copied = target.memory
    assert keys(copied.search(FACTS, words="aab")) == ["tea"]
    assert keys(copied.search(FACTS, near="ccc"))[0] == "cake"
    tea, cake = copied.get(FACTS, "tea"), copied.get(FACTS, "cake")
    assert tea is not None
    assert tea.expires_at is not None
    assert cake is not None
    assert (cake.value, cake.version) == ({"text": "ccd"}, 1)
    assert copied.for_tenant("other").list(FACTS) == []
    assert copied.erase(subject="u7") == 2


def test_what_the_target_has_is_left_as_it_is(store: Store) -> None:
    """Across a page's end. Fails if an item is overwritten, or keeps others of its page out."""
    source, target = an_app(store).memory, an_app(MemoryStore())
    for number in range(130):
        source.put(FACTS, f"{number:03}", number)
    target.memory.put(FACTS, "007", "mine")
    target.memory.put(FACTS, "zzz", "mine")
    assert copy_memory(store, target.store, "default") == 129
    assert copy_memory(store, target.store, "default") == 0
    values = [item.value for item in target.memory.list(FACTS, limit=1000)]
    assert values == [*range(7), "mine", *range(8, 130), "mine"]


def test_sealed_values_are_copied_sealed(store: Store) -> None:
    keyring = Keyring({"k": b"k" * 32}, store=MemoryStore())
    source, target = an_app(store, encryption=keyring), an_app(MemoryStore(), encryption=keyring)
    source.memory.put(FACTS, "tea", "likes tea")
    assert copy_memory(store, target.store, "default") == 1
    found = target.memory.get(FACTS, "tea")
    assert found is not None
    assert found.value == "likes tea"
    assert target.memory.erase(subject="u7") == 1
    assert source.memory.get(FACTS, "tea") is None  # its key is gone


def test_a_store_without_memory_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="long-term memory needs a store that has it"):
        copy_memory(store, JsonlStore(tmp_path / "kept"), "default")
