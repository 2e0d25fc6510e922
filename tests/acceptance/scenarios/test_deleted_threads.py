"""A deleted thread and the next one of its name: nothing of the first is left or found."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NotRequired, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    CheckpointStore,
    Keyring,
    Retention,
    StateGraph,
    Store,
    ThreadKey,
)
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore

KEY = ThreadKey("default", "t")

Delete = Callable[[Store, Keyring | None], object]


class Looked(TypedDict):
    who: str
    secret: NotRequired[str]


class Killed(BaseException):
    """The process ends here."""


def lookup(state: Looked) -> dict[str, str]:
    return {"secret": f"secret of {state['who']}"}


def within(node: Any, **options: Any) -> App[Looked]:
    graph: StateGraph[Looked] = StateGraph(Looked)
    graph.add_node("inside", node)
    graph.add_edges(START, "inside", END)
    return graph.compile(**options)


def nested(store: Any, ring: Keyring | None = None, **config: Any) -> App[Looked]:
    """A node in a subgraph in a subgraph."""
    checkpoint = CheckpointConfig(store=store, **config)
    return within(within(within(lookup)), checkpoint=checkpoint, encryption=ring)


def delete_thread(store: Store, ring: Keyring | None) -> None:
    CheckpointStore(store, encryption=ring).delete_thread(KEY)


def erase(store: Store, ring: Keyring | None) -> None:
    CheckpointStore(store, encryption=ring).erase("default", ["t"])


def retain_nothing(store: Store, ring: Keyring | None) -> None:
    retention = Retention(older_than=timedelta(0))
    CheckpointStore(store, encryption=ring).apply_retention("default", retention)


def only_the_thread(store: Store, ring: Keyring | None) -> None:
    """What a process leaves that is killed after it deleted the thread: its subgraphs."""
    store.delete(KEY)


WAYS: list[Delete] = [delete_thread, erase, retain_nothing]


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def ring(request: pytest.FixtureRequest) -> Keyring | None:
    return Keyring({"main": b"k" * 32}, store=MemoryStore()) if request.param else None


def names(store: Store) -> list[str]:
    return [info.key.thread for info in store.threads("default")]


@pytest.mark.parametrize("delete", [*WAYS, only_the_thread])
def test_next_thread_of_the_name_does_not_find_the_subgraphs_of_a_deleted_one(
    store: Store, ring: Keyring | None, delete: Delete
) -> None:
    """Fails when a child is named by the seq of the step instead of the id of its entry."""
    app = nested(store, ring)
    app.invoke({"who": "alice"}, "t")
    delete(store, ring)
    assert app.invoke({"who": "mallory"}, "t")["secret"] == "secret of mallory"


@pytest.mark.parametrize("delete", WAYS)
def test_deletion_takes_the_subgraphs_along(
    store: Store, ring: Keyring | None, delete: Delete
) -> None:
    """Fails when delete_thread deletes the thread alone."""
    nested(store, ring).invoke({"who": "alice"}, "t")
    assert len(names(store)) == 3
    delete(store, ring)
    assert names(store) == []


class Dying(WrappedStore):
    """Kills the process at the n-th deletion."""

    def __init__(self, store: Store, at: int) -> None:
        super().__init__(store)
        self.deletions = 0
        self._at = at

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        self.deletions += 1
        if self.deletions == self._at:
            raise Killed
        return super().delete(key, head=head, head_id=head_id)


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("delete", WAYS)
def test_deletion_killed_anywhere_is_completed_by_deleting_again(
    ring: Keyring | None, delete: Delete, at: int
) -> None:
    """Fails when a deletion looks for subgraphs only of threads that exist."""
    store = MemoryStore()
    nested(store, ring).invoke({"who": "alice"}, "t")
    with pytest.raises(Killed):
        delete(Dying(store, at), ring)
    assert names(store) != []
    delete(store, ring)
    assert names(store) == []
    assert nested(store, ring).invoke({"who": "eve"}, "t")["secret"] == "secret of eve"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_clean_end_killed_while_it_deletes_leaves_no_subgraph_to_be_found(
    ring: Keyring | None, at: int
) -> None:
    """Fails when a deletion looks for subgraphs only of threads that exist."""
    store = MemoryStore()
    with pytest.raises(Killed):
        nested(Dying(store, at), ring, preserve=False).invoke({"who": "alice"}, "t")
    assert names(store) != []
    delete_thread(store, ring)
    assert names(store) == []


def test_subgraph_that_begins_while_its_thread_is_deleted_is_deleted_too(store: Store) -> None:
    """Fails when delete_with_children does not look again once the thread is gone."""

    class Late(WrappedStore):
        def delete(
            self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
        ) -> bool:
            if key == KEY:
                nested(self._store).invoke({"who": "alice"}, "other")
                nested(self._store).invoke({"who": "late"}, "t")
            return super().delete(key, head=head, head_id=head_id)

    nested(store).invoke({"who": "alice"}, "t")
    assert CheckpointStore(Late(store)).delete_thread(KEY)
    assert [name.partition("\x1f")[0] for name in names(store)] == ["other"] * 3


def test_subgraph_of_the_next_thread_of_the_name_is_not_deleted(store: Store) -> None:
    """Fails when what is found after the deletion is deleted whatever it belongs to."""

    class Early(WrappedStore):
        def delete(
            self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
        ) -> bool:
            found = super().delete(key, head=head, head_id=head_id)
            if key == KEY:
                nested(self._store).invoke({"who": "next"}, "t")
            return found

    nested(store).invoke({"who": "alice"}, "t")
    CheckpointStore(Early(store)).delete_thread(KEY)
    assert len(names(store)) == 3


def test_idempotency_keys_differ_between_a_thread_and_the_next_of_its_name(store: Store) -> None:
    """Fails when the key holds the seq of the step instead of the id of its entry."""
    keys: list[str] = []

    def pay(state: Looked, ctx: Any) -> dict[str, str]:
        keys.append(ctx.idempotency_key)
        return {}

    app = within(within(pay), store=store)
    for who in ("alice", "bob"):
        app.invoke({"who": who}, "t")
        delete_thread(store, None)
    assert len(set(keys)) == 2
