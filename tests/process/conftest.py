"""What tests get, unless they have their own: a store that processes share, or a map of shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.stores.sharded import ShardedStore
from tests.every_store import POSTGRES, Stores
from tests.sharded_cluster import new_map


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=POSTGRES)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh store that processes can share."""
    stores = Stores(tmp_path)
    stores.open(request.param)
    stores.close()
    return stores.url(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The map."""
    return new_map(tmp_path)


@pytest.fixture
def store(path: Path) -> Iterator[ShardedStore]:
    """The store of these databases."""
    with closing(ShardedStore(path)) as store:
        yield store
