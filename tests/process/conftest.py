"""What tests of shards get, unless they have their own: a new map of three databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.stores.sharded import ShardedStore
from tests.sharded_cluster import new_map


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The map."""
    return new_map(tmp_path)


@pytest.fixture
def store(path: Path) -> Iterator[ShardedStore]:
    """The store of these databases."""
    with closing(ShardedStore(path)) as store:
        yield store
