"""The primary dies, the replica is promoted, the client continues through the same URL.

`MILECASTLE_FAILOVERS` is the number of times that this is done.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator
from contextlib import contextmanager

from milecastle.stores.postgres import PostgresStore
from tests.postgres_cluster import needs_postgres, wait_until
from tests.process.postgres_pair import Pair
from tests.process.test_postgres_outcomes import Writing

pytestmark = needs_postgres

FAILOVERS = int(os.environ.get("MILECASTLE_FAILOVERS", "1"))


@contextmanager
def writing_to(pair: Pair) -> Generator[Writing, None, None]:
    """Somebody who appends for as long as this lasts."""
    store = PostgresStore(pair.url_of("failover"))
    writing = Writing(store)
    writing.start()
    try:
        wait_until(lambda: len(writing.acknowledged) > 50)
        yield writing
    finally:
        writing.enough.set()
        writing.join()
        store.close()


def lost_by_failing_over(pair: Pair, *, ended_while_waiting: bool = False) -> int:
    """How many entries that a writer was sure of are not there afterwards.

    The replica is cut off for a moment before the primary dies, as when a network goes first.
    """
    with writing_to(pair) as writing:
        time.sleep(random.uniform(0, 0.2))
        pair.part()
        if ended_while_waiting:
            wait_until(lambda: bool(pair.end_waiting()))
        time.sleep(random.uniform(0.05, 0.2))
        sure = list(writing.acknowledged)
        pair.fail_over()
        wait_until(
            lambda: len(writing.acknowledged) > len(sure) + 20 or writing.error is not None, 60
        )
        writing.enough.set()
        writing.join()
        kept = [entry.id for entry in writing.store.history(writing.writer.key)][::-1]
        lost = [each for each in sure if each not in set(kept)]
        if not lost:
            assert writing.error is None
            assert kept[: len(writing.acknowledged)] == writing.acknowledged
            assert len(kept) <= len(writing.acknowledged) + 1
        return len(lost)


def test_nothing_acknowledged_is_lost_by_failing_over() -> None:
    for _ in range(FAILOVERS):
        pair = Pair(synchronous=True)
        try:
            assert lost_by_failing_over(pair) == 0
        finally:
            pair.remove()


def test_a_commit_that_was_ended_while_it_waited_is_not_taken_for_safe() -> None:
    """Its entry can be read on the primary then, though the replica does not have it."""
    pair = Pair(synchronous=True)
    try:
        assert lost_by_failing_over(pair, ended_while_waiting=True) == 0
    finally:
        pair.remove()


def test_a_replica_that_nobody_waits_for_is_caught() -> None:
    pair = Pair(synchronous=False)
    try:
        assert lost_by_failing_over(pair) > 0
    finally:
        pair.remove()
