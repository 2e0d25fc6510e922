"""What the tests of servers get: one server on SQLite for each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.server.processes import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(f"sqlite:///{folder / 'runs.db'}") as found:
        yield found
