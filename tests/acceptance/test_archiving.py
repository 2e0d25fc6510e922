"""Archived threads: users notice nothing but the extra time (Retention(archive_after=))."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Retention,
    StateGraph,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.app.upkeep import retention
from milecastle.app.upkeep.archiving import archive_thread
from milecastle.errors import InvalidRequest, NoObjects
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import OffloadingStore, SharedObjects, offload
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import with_store
from milecastle.views.listing import history_document

ALL = Retention(archive_after=timedelta(0))
STEPS = 30


class Count(TypedDict):
    n: int
    seen: Annotated[list[str], append]
    ok: bool


def add(state: Count) -> dict[str, object]:
    return {"n": state["n"] + 1, "seen": [f"step {state['n'] + 1} " + "x" * 50]}


def review(state: Count) -> dict[str, object]:
    return {"ok": interrupt("Fine?", answer=bool)}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OffloadingStore]:
    inner = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")
    setattr(inner, "rollup_after", 4)  # noqa: B010  # threads that wait have something to archive
    yield offload(inner, SharedObjects(f"file://{tmp_path}/objects"))
    inner.close()


def an_app(store: OffloadingStore) -> App[Count]:
    graph = StateGraph(Count)
    graph.add_node("add", add)
    graph.add_node("review", review)
    graph.add_edge(START, "add")
    graph.add_conditional_edges(
        "add", lambda state: "add" if state["n"] % STEPS else "review", ["add", "review"]
    )
    graph.add_edge("review", END)
    return graph.compile(store=store)


def archive(store: OffloadingStore, tenant: str = "default") -> int:
    return CheckpointStore(store).apply_retention(tenant, ALL).archived


def rows(store: OffloadingStore, thread: str = "t") -> int:
    return len(store.inner.entries(ThreadKey("default", thread)))


def test_a_completed_thread_is_archived_up_to_its_head(store: OffloadingStore) -> None:
    """Fails if the head keeps the rows of its chain, or if the copy of the head is another age."""
    app = an_app(store)
    app.invoke({"n": 0}, thread="t")
    app.resume("t", answer=True)
    before = list(app.history("t"))
    states = {one.seq: app.state("t", at=one.seq).state for one in before}
    record = store.runs(ThreadKey("default", "t"))
    foreseen = CheckpointStore(store).apply_retention("default", ALL, dry_run=True).archived
    assert foreseen == len(before) - 1
    assert archive(store) == len(before)
    assert rows(store) == 1
    assert archive(store) == 0
    after = list(app.history("t"))
    assert after[1:] == before
    assert (after[0].note, after[0].timestamp) == ("archived", before[0].timestamp)
    for seq, state in states.items():
        assert app.state("t", at=seq).state == state
        assert app.state("t", at=before[-seq].id).state == state
    assert app.state("t").state == states[before[0].seq]
    assert app.state("t").status == "completed"
    assert store.runs(ThreadKey("default", "t")) == record


def test_what_follows_an_archived_thread_works(store: OffloadingStore) -> None:
    """Fails if invoke starts again, a fork or a difference cannot read below the rows, or the next
    run writes deltas on entries that are gone."""
    app = an_app(store)
    app.invoke({"n": 0}, thread="t")
    result = app.resume("t", answer=True)
    assert archive(store)
    assert app.invoke({"n": 0}, thread="t").run_id == result.run_id
    changed = app.diff("t", 3, 5)
    assert changed
    app.fork("t", at=7, as_thread="other")
    assert app.state("other").state["n"] == 6
    app.fork("t", at=9)
    assert app.state("t").state["n"] == 8
    assert app.resume("t").status == "interrupted"
    assert app.state("t").state["n"] == STEPS
    assert archive(store)
    assert app.state("t", at=4).state["n"] == 3
    assert app.resume("t", answer=False)["ok"] is False
    app.update_state("t", {"ok": True}, at=5)
    assert [one.seq for one in app.history("t")][-1] == 1


def test_a_waiting_thread_keeps_what_its_head_needs(store: OffloadingStore) -> None:
    app = an_app(store)
    app.invoke({"n": 0}, thread="t")
    head = store.head(ThreadKey("default", "t"))
    assert head is not None
    assert archive(store)
    assert rows(store) == head.seq - head.roll_seq + 1
    assert app.resume("t", answer=True)["ok"] is True


def test_a_thread_that_continued_meanwhile_is_not_closed(
    store: OffloadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: a checkpoint was appended to a thread that asked by then, and its workers lost
    it. Fails if the head at which the thread was over is not compared."""
    app, honest = an_app(store), archive_thread
    app.invoke({"n": 0}, thread="t")
    app.resume("t", answer=True)

    def continue_first(*given: Any, **named: Any) -> int:
        monkeypatch.undo()
        assert app.invoke({"n": 7}, thread="t").status == "interrupted"
        later = named["before"] + 3_600_000_000  # by a clock that is an hour ahead
        return honest(*given, **named | {"before": later})

    monkeypatch.setattr(retention, "archive_thread", continue_first)
    archive(store)
    assert next(app.history("t")).source == "interrupt"
    assert app.resume("t", answer=False)["ok"] is False


def test_retention_deletes_archived_checkpoints(store: OffloadingStore) -> None:
    """Fails if `keep_last` counts rows only, or a deleted thread leaves segments that are named."""
    app, checkpoints = an_app(store), CheckpointStore(store)
    app.invoke({"n": 0}, thread="t")
    app.resume("t", answer=True)
    archive(store)
    assert len(list(app.history("t"))) > 20
    assert checkpoints.apply_retention("default", Retention(keep_last=20)).dropped
    assert len(list(app.history("t"))) == 20
    oldest = list(app.history("t"))[-1].seq
    assert app.state("t", at=oldest).state["n"] == oldest - 1
    assert checkpoints.apply_retention("default", Retention(keep_last=1)).dropped == 19
    assert len(list(app.history("t"))) == 1
    assert checkpoints.apply_retention("default", Retention(older_than=timedelta(0))).deleted


def test_copy_verify_and_restore(store: OffloadingStore) -> None:
    app, checkpoints = an_app(store), CheckpointStore(store)
    app.invoke({"n": 0}, thread="t")
    app.resume("t", answer=True)
    archive(store)
    history = list(app.history("t"))
    copied = CheckpointStore(MemoryStore())
    checkpoints.copy_to(copied, "default")
    assert [one.id for one in copied.list_history(ThreadKey("default", "t"))] == [
        one.id for one in history
    ]
    assert checkpoints.restore_thread(ThreadKey("default", "t")) == len(history) - 1
    assert rows(store) == len(history)
    assert list(app.history("t")) == history
    assert app.state("t", at=9).state["n"] == 8


def test_an_archived_thread_is_not_copied_without_objects(store: OffloadingStore) -> None:
    """Fails if the target gets a row that names segments of the source."""
    app = an_app(store)
    app.invoke({"n": 0}, thread="t")
    app.resume("t", answer=True)
    archive(store)
    target = MemoryStore()
    with pytest.raises(NoObjects, match="objects="):
        CheckpointStore(store.inner).copy_to(CheckpointStore(target), "default")
    assert not any(entry.payload for entry in target.entries(ThreadKey("default", "t")))


def test_a_history_without_objects_does_not_end_silently(store: OffloadingStore) -> None:
    """Was broken: it ended where the archive begins, and a checkpoint below was said not to exist.

    Fails if any of these reads asks only for the rows that there are.
    """
    app, key = an_app(store), ThreadKey("default", "t")
    app.invoke({"n": 0}, thread="t")
    assert archive(store)
    archived = list(app.history("t"))[-2]
    bare = with_store(app, store.inner)
    rest, left = bare.history("t"), rows(store)
    assert len(list(islice(rest, left))) == left
    advice = "objects=.*MILECASTLE_OBJECTS"
    reads: list[Callable[[], object]] = [
        lambda: next(rest),
        lambda: list(CheckpointStore(store.inner).list_history(key)),
        lambda: CheckpointStore(store.inner).get_by_id(key, archived.id),
        lambda: bare.state("t", at=archived.seq),
        lambda: bare.state("t", at=archived.id),
        lambda: bare.fork("t", at=archived.seq, as_thread="other"),
        lambda: bare.answers("t"),
        lambda: history_document(store.inner, key, limit=100, before=archived.seq + 1),
    ]
    for read in reads:
        with pytest.raises(NoObjects, match=advice):
            read()
    page = history_document(store.inner, key, limit=100, before=None)
    assert (len(page.checkpoints), page.next) == (left, page.checkpoints[-1].seq)
    assert len(list(bare.history("t", limit=left))) == left
    with pytest.raises(InvalidRequest, match="no checkpoint 99"):
        bare.state("t", at=99)


def test_archiving_needs_object_storage() -> None:
    with pytest.raises(InvalidRequest, match="objects="):
        CheckpointStore(MemoryStore()).apply_retention("default", ALL)
