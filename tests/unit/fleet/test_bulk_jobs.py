"""A job that changes many runs keeps its limit, also if a step of it is repeated."""

from __future__ import annotations

from milecastle import Unavailable
from milecastle.fleet.bulk import Bulk
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import line, note, start, work


class Losing(MemoryStore):
    """A store that once fails to save what a job has changed."""

    lost = 0

    def commit(self, batch: Batch) -> None:
        """Fail the first commit after threads were changed."""
        is_changed = any(entry.nodes == ("change",) for entry in batch.entries)
        if batch.key.thread.startswith("bulk@") and is_changed and not self.lost:
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
