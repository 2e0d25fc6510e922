"""A job that changes many runs keeps its limit and what it was not meant for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milecastle import ThreadKey, Unavailable
from milecastle.fleet.bulk import Bulk
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import line, note, start, work


class Losing(MemoryStore):
    """A store that once fails to save what a job has changed."""

    lost = 0

    def commit(self, batch: Batch) -> None:
        """Fail the first commit after threads were changed."""
        is_changed = any(entry.nodes == ("change",) for entry in batch.entries)
        if batch.key.thread.startswith("bulk@@") and is_changed and not self.lost:
            self.lost = 1
            raise Unavailable("on purpose")
        super().commit(batch)


def test_a_page_that_is_repeated_changes_nothing_else() -> None:
    """Seen to fail with one step that finds and changes: it cancelled two more."""
    store = Losing()
    app = line(store, ("a", note("a")))
    for number in range(6):
        app.submit(start(), f"{number}", delay=1000)
    bulk = Bulk(app)
    job = bulk.submit("cancel", "default", "queued", limit=2)
    while bulk.info("default", job.id).status != "completed":
        work(app)
    cancelled = store.threads("default", status="cancelled")
    assert store.lost == 1
    assert [info.key.thread for info in cancelled] == ["0", "1"]
    assert bulk.info("default", job.id).found == 2


class Busy(MemoryStore):
    """A store where somebody else runs a thread again right after a job has looked at its line."""

    again: Callable[[], object] | None = None

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        """Look, and be overtaken once."""
        info = super().thread(key)
        if key.thread == "1" and info is not None and self.again is not None:
            again, self.again = self.again, None
            again()
        return info


@pytest.mark.parametrize("meanwhile", [False, True])
def test_thread_that_is_run_again_meanwhile_is_not_deleted(meanwhile: bool) -> None:
    """Fails if only the line is compared: then what was run since is lost."""
    store = Busy()
    app = line(store, ("a", note("a")))
    for name in ("0", "1", "2"):
        app.submit(start(), name)
    work(app)
    bulk = Bulk(app)
    job = bulk.submit("delete", "default", "completed")
    if meanwhile:
        store.again = lambda: app.invoke({"log": ["again"]}, "1")
    work(app)
    left = [info.key.thread for info in store.threads("default") if info.graph == app.graph.name]
    done = bulk.info("default", job.id)
    assert left == (["1"] if meanwhile else [])
    assert (done.status, done.changed, done.skipped) == ("completed", 3 - meanwhile, int(meanwhile))


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_threads_of_a_status_are_deleted(status: RunStatus) -> None:
    """Fails if the run of the line is not the one that wrote the head."""
    store = MemoryStore()
    app = line(store, ("a", note("a")))
    for name in ("0", "1"):
        app.submit(start(), name, delay=0 if status == "completed" else 1000)
        if status == "cancelled":
            app.cancel(name)
    work(app)
    bulk = Bulk(app)
    job = bulk.submit("delete", "default", status)
    work(app)
    assert bulk.info("default", job.id).changed == 2
