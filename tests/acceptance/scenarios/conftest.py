"""What scenarios get: each of the four stores, both drivers, nodes of both colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milecastle import Store
from tests.acceptance.scenarios.calling import COLOURS, Caller, Paint
from tests.every_store import EVERY_KIND, Stores


@pytest.fixture(params=EVERY_KIND)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A fresh store of each kind."""
    stores = Stores(tmp_path)
    yield stores.open(request.param)
    stores.close()


@pytest.fixture(params=["blocking", "asynchronous"])
def call(request: pytest.FixtureRequest) -> Caller:
    """Calls an app, from plain code and from an event loop."""
    return Caller(request.param)


@pytest.fixture(params=list(COLOURS.values()), ids=list(COLOURS))
def paint(request: pytest.FixtureRequest) -> Paint:
    """Leaves nodes as they are, or makes them async."""
    colour: Paint = request.param
    return colour
