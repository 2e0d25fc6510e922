"""What tests get, unless they have their own: a store that processes share, or a map of shards.

Each commit runs its share of the controls, which begin as many processes as what they control, and
a test of kills on one of the stores that processes share.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from milecastle.stores.sharded import ShardedStore
from tests.every_store import POSTGRES, Stores
from tests.seeds import first_seed
from tests.sharded_cluster import new_map

ONE_CONTROL_IN = 4
STORE = re.compile(r"sqlite|postgres")


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave controls, and stores, to other commits and to ``just proof``."""
    same: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        is_slow = item.get_closest_marker("slow")
        if "kills" in item.path.name and STORE.search(item.name) and not is_slow:
            same[STORE.sub("", item.nodeid)].append(item)
    for number, group in enumerate(same.values()):
        kept = (first_seed() + number) % len(group)
        for item in group[:kept] + group[kept + 1 :]:
            item.add_marker(pytest.mark.slow)
    controls = [item for item in items if item.get_closest_marker("control")]
    for number, item in enumerate(controls):
        if number % ONE_CONTROL_IN != first_seed() % ONE_CONTROL_IN:
            item.add_marker(pytest.mark.slow)
