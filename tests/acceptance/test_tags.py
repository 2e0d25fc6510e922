"""Threads have tags: given by the call that starts a run, changed later, listed by."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from threading import Thread as Worker
from typing import Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    Conflict,
    InvalidRequest,
    StateGraph,
    Store,
    ThreadKey,
    interrupt,
)
from milecastle.app.upkeep.copying import copy_threads
from milecastle.model.tags import MAX_TAG_BYTES, MAX_TAGS, TagChange
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing.faulty_stores import WrappedStore
from tests.every_store import EVERY_KIND, Stores

SHARED = ("sqlite", "postgres")
"""Stores with threads that workers can share."""


class Count(TypedDict):
    n: int


def step(state: Count) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def ask(state: Count) -> dict[str, Any]:
    return {"n": interrupt("how many?", answer=int)}


def counting(store: Store | None, node: Any = step) -> App[Count]:
    graph = StateGraph(Count)
    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    return graph.compile(store=store)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


@pytest.fixture(params=EVERY_KIND)
def app(request: pytest.FixtureRequest, stores: Stores) -> App[Count]:
    return counting(stores.open(request.param))


def names(app: App[Count], **wanted: Any) -> list[str]:
    return [info.key.thread for info in app.threads(**wanted)]


def test_a_run_tags_its_thread_and_threads_are_listed_by_tag(app: App[Count]) -> None:
    """Fails if the first commit lacks the tags, or a list ignores one of its conditions."""
    app.invoke({"n": 0}, "a", tags=["eu", "invoice"])
    asyncio.run(app.ainvoke({"n": 0}, "b", tags={"eu"}))
    app.invoke({"n": 0}, "c")
    assert app.tag("a") == ("eu", "invoice")
    assert app.tag("c") == ()
    assert names(app, tag="eu") == ["a", "b"]
    assert names(app, tag="eu", limit=1) == ["a"]
    assert names(app, tag="eu", after="a", status="completed") == ["b"]
    assert names(app, tag="eu", status="failed") == []
    assert names(app, tag="us") == []


def test_tags_are_changed_later(app: App[Count]) -> None:
    app.invoke({"n": 0}, "a", tags=["eu"])
    assert app.tag("a", add=["paid", "eu"]) == ("eu", "paid")
    assert asyncio.run(app.atag("a", ["late"], ["eu"])) == ("late", "paid")
    assert names(app, tag="eu") == []
    assert app.tag("a", remove=["late", "paid", "never"]) == ()
    assert [info.status for info in app.threads()] == ["completed"]


def test_every_call_that_starts_a_run_takes_tags(stores: Stores) -> None:
    """Fails if one of them drops its tags on the way."""
    app = counting(stores.open("sqlite"))
    list(app.stream({"n": 0}, "streamed", tags=["t"]))

    async def astream() -> None:
        async for _ in app.astream({"n": 0}, "astreamed", tags=["t"]):
            pass

    async def asubmit() -> None:
        await app.asubmit({"n": 0}, "asubmitted", tags=["t"])
        await app.asubmit_many({"amany": {"n": 0}}, tags=["t"])

    asyncio.run(astream())
    app.submit({"n": 0}, "submitted", tags=["t"])
    app.submit_many({"many": {"n": 0}}, tags=["t"])
    asyncio.run(asubmit())
    assert names(app, tag="t") == [
        "amany",
        "astreamed",
        "asubmitted",
        "many",
        "streamed",
        "submitted",
    ]


def test_a_call_that_starts_no_run_adds_no_tags(stores: Stores) -> None:
    app = counting(stores.open("sqlite"))
    app.invoke({"n": 0}, "a")
    assert app.invoke({"n": 0}, "a", tags=["t"]).reused
    assert app.tag("a") == ()
    app.submit({"n": 1}, "a", if_absent=True, tags=["t"])
    assert app.tag("a") == ()
    app.invoke({"n": 0}, "a", again=True, tags=["t"])
    assert app.tag("a") == ("t",)


def test_an_input_that_waits_tags_its_thread(stores: Stores) -> None:
    """Fails if ``enqueue`` leaves the tags out."""
    app = counting(stores.open("sqlite"))
    app.submit({"n": 0}, "a", tags=["first"])
    app.submit({"n": 1}, "a", if_busy="queue", tags=["second"])
    assert app.tag("a") == ("first", "second")


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.values[0] in SHARED])
def test_an_input_that_waits_already_adds_no_tags(stores: Stores, kind: str) -> None:
    """Fails if ``enqueue`` tags the thread before it looks for the input."""
    app = counting(stores.open(kind))
    app.submit({"n": 0}, "a")
    first = app.submit({"n": 1}, "a", if_busy="queue", tags=["t"])
    app.tag("a", remove=["t"])
    second = app.submit({"n": 1}, "a", if_busy="queue", tags=["t"])
    assert (second.run_id, second.reused) == (first.run_id, True)
    assert app.tag("a") == ()


def test_a_thread_that_is_resumed_keeps_its_tags(stores: Stores) -> None:
    app = counting(stores.open("sqlite"), ask)
    app.invoke({"n": 0}, "a", tags=["t"])
    assert names(app, tag="t", status="interrupted") == ["a"]
    app.resume("a", answer=3)
    assert names(app, tag="t", status="completed") == ["a"]


def test_a_fork_has_the_tags_of_its_thread(app: App[Count]) -> None:
    """Fails if the fork begins without them, or shares what is changed later."""
    app.invoke({"n": 0}, "a", tags=["t"])
    app.fork("a", 1, "b")
    assert app.tag("b") == ("t",)
    app.tag("b", remove=["t"])
    assert names(app, tag="t") == ["a"]
    app.fork("a", 1)
    app.update_state("a", {"n": 9})
    assert app.tag("a") == ("t",)
    app.invoke({"n": 0}, "plain")
    app.fork("plain", 1, "forked")
    assert app.tag("forked") == ()


def test_deleting_a_thread_removes_its_tags(app: App[Count]) -> None:
    app.invoke({"n": 0}, "a", tags=["t"])
    app.delete("a")
    assert names(app, tag="t") == []
    app.invoke({"n": 0}, "a")
    assert app.tag("a") == ()


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_copy_has_the_tags_and_follows_them(stores: Stores, kind: str) -> None:
    """Fails if tags are not copied, or not removed by a second copy."""
    app, there = counting(stores.open("sqlite")), stores.open(kind, "there")
    app.invoke({"n": 0}, "a", tags=["eu", "late"])
    assert copy_threads(app.store, there, app.tenant).changed == 1
    copy = counting(there)
    assert copy.tag("a") == ("eu", "late")
    app.tag("a", ["paid"], ["late"])
    assert copy_threads(app.store, there, app.tenant).changed == 1
    assert copy.tag("a") == ("eu", "paid")
    assert copy_threads(app.store, there, app.tenant).changed == 0


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_running_thread_can_be_tagged(stores: Stores, kind: str) -> None:
    """The run commits a step after its head was read for the tag, and continues after it.

    Fails if a change of tags moves the head, or gives up at the first conflict.
    """
    at_first, at_second, after_first, after_second = (Event() for _ in range(4))
    refused: list[Conflict] = []

    def first(state: Count) -> dict[str, Any]:
        at_first.set()
        assert after_first.wait(60)
        return {"n": 1}

    def second(state: Count) -> dict[str, Any]:
        at_second.set()
        assert after_second.wait(60)
        return {"n": 2}

    class Meeting(WrappedStore):
        def commit(self, batch: Batch) -> None:
            after_first.set()
            assert at_second.wait(60)
            try:
                super().commit(batch)
            except Conflict as error:
                refused.append(error)
                raise

    graph = StateGraph(Count)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edges(START, "first", "second", END)
    store, results = stores.open(kind), list[Any]()
    app = graph.compile(store=store)
    worker = Worker(target=lambda: results.append(app.invoke({"n": 0}, "a", tags=["mine"])))
    worker.start()
    try:
        assert at_first.wait(60)
        assert counting(Meeting(store)).tag("a", ["yours"]) == ("mine", "yours")
    finally:
        after_first.set()
        after_second.set()
        worker.join()
    assert len(refused) == 1
    assert results[0].state == {"n": 2}
    assert app.tag("a") == ("mine", "yours")


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ("eu", "list of str"),
        (b"eu", "list of str"),
        (7, "list of str"),
        ([""], "empty"),
        ([7], "str"),
        (["a\0b"], "NUL"),
        (["\ud800"], "surrogates"),
        (["x" * (MAX_TAG_BYTES + 1)], "bytes"),
        ([f"{n}" for n in range(MAX_TAGS + 1)], "at most"),
    ],
)
def test_what_is_not_a_tag_is_refused_before_anything_is_written(tags: Any, said: str) -> None:
    app = counting(MemoryStore())
    for call in (
        lambda: app.invoke({"n": 0}, "a", tags=tags),
        lambda: app.submit({"n": 0}, "a", tags=tags),
    ):
        with pytest.raises(InvalidRequest, match=said):
            call()
    assert list(app.threads()) == []
    app.invoke({"n": 0}, "a")
    for given in ({"add": tags}, {"remove": tags}):
        with pytest.raises(InvalidRequest, match=said):
            app.tag("a", **given)


def test_a_thread_has_a_bounded_number_of_tags() -> None:
    app = counting(MemoryStore())
    most = [f"{n:02}" for n in range(MAX_TAGS)]
    app.invoke({"n": 0}, "a", tags=most)
    with pytest.raises(InvalidRequest, match="at most"):
        app.tag("a", add=["more"])
    with pytest.raises(InvalidRequest, match="at most"):
        app.invoke({"n": 5}, "a", tags=["more"])
    assert app.tag("a", ["more"], ["00"]) == (*most[1:], "more")


def exceed(app: App[Count], thread: str) -> tuple[str, ...]:
    """As two callers do that change the tags at the same moment."""
    key = ThreadKey(app.tenant, thread)
    head = app.store.head(key)
    assert head is not None
    tags = tuple(f"{n:02}" for n in range(MAX_TAGS + 8))
    app.store.commit(Batch(key=key, head=head.seq, head_id=head.id, tags=TagChange(tags)))
    return tags


def test_a_thread_with_too_many_tags_can_lose_some(app: App[Count]) -> None:
    """Fails if a change is refused that leaves too many, although it adds none."""
    app.invoke({"n": 0}, "a")
    tags = exceed(app, "a")
    assert app.tag("a", remove=[tags[0]]) == tags[1:]
    assert app.tag("a", [tags[0]], [tags[1]]) == (tags[0], *tags[2:])
    with pytest.raises(InvalidRequest, match="at most"):
        app.tag("a", add=["more"])
    app.invoke({"n": 1}, "a", tags=[tags[2]])


def test_a_thread_with_too_many_tags_is_copied(app: App[Count], stores: Stores) -> None:
    """Fails if a copy is refused because of their number."""
    app.invoke({"n": 0}, "a")
    tags = exceed(app, "a")
    there = counting(stores.open("sqlite", "there"))
    copy_threads(app.store, there.store, app.tenant)
    assert there.tag("a") == tags
    app.fork("a", 1, "b")
    assert app.tag("b") == tags


def test_a_call_that_finds_its_run_is_not_refused_for_its_tags(app: App[Count]) -> None:
    """Fails if the number of tags is compared before it is known that a run starts."""
    app.invoke({"n": 0}, "a", tags=["mine"])
    app.tag("a", [f"{n:02}" for n in range(MAX_TAGS)], ["mine"])
    assert app.invoke({"n": 0}, "a", tags=["mine"]).reused


def test_tags_need_a_thread_and_a_store_that_has_them() -> None:
    with pytest.raises(InvalidRequest, match="need a store"):
        counting(None).invoke({"n": 0}, tags=["t"])
    app = counting(MemoryStore())
    with pytest.raises(InvalidRequest, match="no thread 'nobody'"):
        app.tag("nobody", add=["t"])
    with pytest.raises(InvalidRequest, match="added and removed"):
        app.tag("nobody", add=["t"], remove=["t"])
    assert app.invoke({"n": 0}, tags=["t"]).thread == next(app.threads(tag="t")).key
    without = counting(_without_tags())
    without.invoke({"n": 0}, "a")
    without.fork("a", 1, "b")
    for call in (
        lambda: without.tag("a", ["t"]),
        lambda: without.invoke({"n": 0}, "b", tags=["t"]),
        lambda: list(without.threads(tag="t")),
        lambda: copy_threads(app.store, without.store, app.tenant),
    ):
        with pytest.raises(InvalidRequest, match="need a store"):
            call()


def _without_tags() -> Any:
    class Plain:
        def __init__(self) -> None:
            self._inside = MemoryStore()

        def __getattr__(self, name: str) -> Any:
            return None if name == "tags" else getattr(self._inside, name)

    return Plain()


def test_a_change_that_never_meets_the_head_is_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moving(WrappedStore):
        def commit(self, batch: Batch) -> None:
            if batch.tags and not batch.entries:
                raise Conflict(tenant="t", thread="a", expected=2, head=2)
            super().commit(batch)

    monkeypatch.setattr("milecastle.app.threads.tagging._ATTEMPTS", 3)
    app = counting(Moving(MemoryStore()))
    app.invoke({"n": 0}, "a")
    with pytest.raises(Conflict):
        app.tag("a", ["t"])


def test_changes_of_two_callers_are_both_there() -> None:
    """Fails if a change is the whole set, as one of the two callers saw it."""
    store = MemoryStore()
    app = counting(store)
    app.invoke({"n": 0}, "a", tags=["old"])
    key = ThreadKey(app.tenant, "a")
    head = store.head(key)
    assert head is not None
    for change in (TagChange(("one",)), TagChange(("two",), ("old",))):
        store.commit(Batch(key=key, head=head.seq, head_id=head.id, tags=change))
    assert app.tag("a") == ("one", "two")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_change_returns_what_another_caller_changed_meanwhile(stores: Stores, kind: str) -> None:
    """Fails if the tags are returned as they were read before the commit."""

    class Meeting(WrappedStore):
        def commit(self, batch: Batch) -> None:
            if batch.tags == TagChange(("one",)):
                other.tag("a", ["two"])
            super().commit(batch)

    store = stores.open(kind)
    other, app = counting(store), counting(Meeting(store))
    app.invoke({"n": 0}, "a")
    assert app.tag("a", ["one"]) == ("one", "two")


def test_a_change_for_a_deleted_thread_is_refused(app: App[Count]) -> None:
    """The next thread of the name has as many entries. Fails if only their number is compared."""
    key = ThreadKey(app.tenant, "a")
    app.invoke({"n": 0}, "a")
    head = app.store.head(key)
    assert head is not None
    app.delete("a")
    app.invoke({"n": 0}, "a")
    with pytest.raises(Conflict):
        app.store.commit(
            Batch(key=key, head=head.seq, head_id=head.id, tags=TagChange(("theirs",)))
        )
    assert app.tag("a") == ()
