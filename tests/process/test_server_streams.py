"""A reader of events that reconnects, to whatever server, misses nothing and sees nothing twice.

``MILECASTLE_READERS=1000`` is the long form: 1,000 readers on 100 runs, 10,000 reconnects.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.postgres_cluster import needs_postgres, new_schema, the_cluster
from tests.process.server_streams import FULL, Scale, prove

LONG = "MILECASTLE_READERS" in os.environ
SCALE = FULL if LONG else Scale()
SMALL = Scale(readers=8, runs=2, steps=15, kills=0)


def test_readers_of_a_killed_server_get_each_checkpoint_once(tmp_path: Path) -> None:
    """The server is killed while it runs them. See the controls below."""
    found = prove(f"sqlite:///{tmp_path / 'runs.db'}", tmp_path, SCALE)
    print(found)
    assert found.is_good, found
    assert found.kills == SCALE.kills
    assert found.reconnects >= (10_000 if LONG else SCALE.readers)


@needs_postgres
def test_readers_of_a_killed_server_get_each_checkpoint_once_postgres(tmp_path: Path) -> None:
    """A worker in another process runs them, and is not killed."""
    found = prove(the_cluster().url_of(new_schema()), tmp_path, SCALE, worker=True)
    print(found)
    assert found.is_good, found
    assert found.kills == SCALE.kills


@pytest.mark.parametrize(
    ("how", "missed", "doubled"), [("drops-one", True, False), ("doubles-one", False, True)]
)
@pytest.mark.control
def test_server_that_drops_or_doubles_one_is_caught(
    tmp_path: Path, how: str, missed: bool, doubled: bool
) -> None:
    """The controls: the same readers, on a server that begins one checkpoint off."""
    found = prove(f"sqlite:///{tmp_path / 'runs.db'}", tmp_path, SMALL, how=how)
    assert (found.missed > 0, found.doubled > 0) == (missed, doubled), found
