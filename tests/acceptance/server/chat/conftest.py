"""What the tests of chat front ends get: one server for all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.server.processes import Server, serving

REFERENCE = "tests.acceptance.server.chat.graphs:graph"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("chat")
    with serving(f"sqlite:///{folder / 'runs.db'}", reference=REFERENCE) as found:
        yield found
