"""The tenant of encryption keys is for keyrings: every other call on it is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    InvalidRequest,
    Keyring,
    Retention,
    StateGraph,
    ThreadKey,
)
from milecastle.stores.memory import MemoryStore

KEYS = "milecastle.keys"
OF_STORES: list[Callable[[CheckpointStore, ThreadKey], object]] = [
    lambda store, key: store.put(key, {"key_id": "mine"}),
    lambda store, key: store.get_latest(key),
    lambda store, key: store.get_by_id(key, next(store.store.history(key)).id),
    lambda store, key: list(store.list_history(key)),
    lambda store, key: store.update_state(key, next(store.store.history(key)).id, new_state={}),
    lambda store, key: store.list_threads(key.tenant),
    lambda store, key: store.delete_thread(key),
    lambda store, key: store.cancel(key),
    lambda store, key: store.prune(key, keep_last=1),
    lambda store, key: store.apply_retention(key.tenant, Retention(older_than=timedelta(0))),
    lambda store, key: store.erase(key.tenant, [key.thread]),
]
OF_APPS: list[Callable[[App[Any], ThreadKey], object]] = [
    lambda app, key: app.invoke({"n": 1}, key),
    lambda app, key: app.state(key),
    lambda app, key: list(app.history(key)),
    lambda app, key: app.delete(key),
    lambda app, key: app.cancel(key),
    lambda app, key: list(app.threads(tenant=key.tenant)),
]


class Count(TypedDict):
    n: int


def a_graph() -> StateGraph[Count]:
    graph = StateGraph(Count)
    graph.add_node("add", lambda state: {"n": state["n"] + 1})
    graph.add_edges(START, "add", END)
    return graph


@pytest.fixture
def store() -> MemoryStore:
    """A store with the key of a thread."""
    store = MemoryStore()
    keyring = Keyring({"2026": os.urandom(32)}, store=store)
    CheckpointStore(store, encryption=keyring).put(ThreadKey("acme", "t"), {"n": 1})
    return store


@pytest.mark.parametrize("place", range(len(OF_STORES)))
def test_calls_of_a_store_refuse_the_tenant_of_keys(store: MemoryStore, place: int) -> None:
    """Fails if the call does not look at the tenant."""
    (info,) = store.threads(KEYS)
    with pytest.raises(InvalidRequest, match="reserved for encryption keys"):
        OF_STORES[place](CheckpointStore(store), info.key)
    assert len(store.threads(KEYS)) == 1


@pytest.mark.parametrize("place", range(len(OF_APPS)))
def test_calls_of_an_app_refuse_the_tenant_of_keys(store: MemoryStore, place: int) -> None:
    """Fails if the call does not look at the tenant of a key that it is given."""
    (info,) = store.threads(KEYS)
    with pytest.raises(InvalidRequest, match="reserved for encryption keys"):
        OF_APPS[place](a_graph().compile(store=store), info.key)
    assert len(store.threads(KEYS)) == 1


def test_an_app_of_the_tenant_of_keys_is_refused(store: MemoryStore) -> None:
    """Fails if ``compile`` does not look at its tenant."""
    with pytest.raises(InvalidRequest, match="reserved for encryption keys"):
        a_graph().compile(store=store, tenant=KEYS)
