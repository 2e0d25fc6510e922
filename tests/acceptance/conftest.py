"""What acceptance tests get: both drivers, and nodes of every colour."""

from __future__ import annotations

import pytest

from tests.acceptance.running import Every, Runner, Wrap


@pytest.fixture(params=["blocking", "asynchronous"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Calls an app, from plain code and from an event loop."""
    return Runner(request.param)


@pytest.fixture(params=[0, 1, 2], ids=["sync nodes", "async nodes", "mixed nodes"])
def wrap(request: pytest.FixtureRequest) -> Wrap:
    """Makes functions async: none, all, or every second one."""
    return Every(request.param)
