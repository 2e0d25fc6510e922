"""Calls that look at a thread again after a conflict give up in the end, with the conflict."""

from __future__ import annotations

import asyncio

import pytest

from milecastle import Conflict, InvalidRequest
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import line, note, start


class Contested(MemoryStore):
    """Somebody else is always faster, once it is told so."""

    contested = False

    def commit(self, batch: Batch) -> None:
        if self.contested:
            raise Conflict(
                tenant=batch.key.tenant, thread=batch.key.thread, expected=1, head=batch.head
            )
        super().commit(batch)


def test_submit_and_cancel_give_up_after_many_conflicts() -> None:
    """Broken on purpose: the conflict of the last look is ignored."""
    store = Contested()
    app = line(store, ("a", note("a")))
    app.submit(start(), "t")
    store.contested = True
    with pytest.raises(Conflict):
        app.submit(start(), "other")
    with pytest.raises(Conflict):
        asyncio.run(app.asubmit(start(), "other"))
    with pytest.raises(Conflict):
        app.cancel("t")
    with pytest.raises(InvalidRequest, match="no thread 'other'"):
        app.compatibility("other")
