"""What the tests of the server get: an application on a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.server.browsing import Browser
from tests.unit.server.calling import Api, token_of


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    found = Api(tmp_path)
    yield found
    found.close()


@pytest.fixture
def browser(api: Api) -> Browser:
    """One that is logged in, and may do everything."""
    return Browser(api).log_in(token_of("default"))
