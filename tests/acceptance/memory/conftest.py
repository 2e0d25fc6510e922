"""What the tests of memory get: each store that has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milecastle import Store
from tests.every_store import Stores


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A fresh store of each kind that has long-term memory."""
    stores = Stores(tmp_path)
    yield stores.open(request.param)
    stores.close()
