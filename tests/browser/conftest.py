"""What the tests of pages in a browser get: one server and one browser for those of a module.

Not for the session: playwright has an event loop on this thread until its browser is closed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

    from tests.browser.browsing import Visit

START = 60_000
"""Milliseconds for which Chromium may take to start."""

SAMPLES: dict[str, dict[str, Any]] = {
    "sample-asks": {"then": "ask"},
    "sample-done": {},
    "sample-fails": {"then": "fail"},
    "sample-<b>odd</b>/\u202e name": {"then": "ask"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a thread of each kind."""
    folder = tmp_path_factory.mktemp("server")
    with serving(f"sqlite:///{folder / 'runs.db'}") as found:
        for name, more in SAMPLES.items():
            path = f"/v1/threads/{quote(name, safe='')}/runs?wait=60"
            found.client.post(path, json=journey(3, **more))
        yield found


class Starter:
    """Starts Chromium when a test needs it: one that does not start fails that test alone."""

    def __init__(self, playwright: Playwright, place: str) -> None:
        self._playwright, self._place = playwright, place
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """The one that runs, or a new one; the second try is for a machine that was busy."""
        from playwright.sync_api import Error

        if self._browser is None or not self._browser.is_connected():
            try:
                self._browser = self._start()
            except Error:
                self._browser = self._start()
        return self._browser

    def _start(self) -> Browser:
        from tests.browser.browsing import FLAGS

        launch = self._playwright.chromium.launch
        return launch(executable_path=self._place, args=FLAGS, timeout=START)

    def close(self) -> None:
        if self._browser is not None:
            self._browser.close()


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    """For a Chromium of this machine; playwright brings none."""
    place = os.environ.get("MILECASTLE_CHROMIUM") or shutil.which("chromium")
    if place is None:
        pytest.skip("there is no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = Starter(playwright, place)
        yield found
        found.close()


@pytest.fixture
def chromium(starter: Starter) -> Browser:
    return starter.browser()


@pytest.fixture
def visit(server: Server, chromium: Browser) -> Iterator[Visit]:
    """A page that is logged in by the start URL. Whatever it reports as an error fails the test."""
    with visiting(server, chromium) as found:
        yield found


@pytest.fixture
def visit_without_scripts(server: Server, chromium: Browser) -> Iterator[Visit]:
    """The same in a browser that runs no scripts."""
    with visiting(server, chromium, java_script_enabled=False) as found:
        yield found


@contextmanager
def visiting(server: Server, chromium: Browser, **settings: Any) -> Generator[Visit, None, None]:
    from tests.browser.browsing import WAIT, Visit

    context = chromium.new_context(**settings)
    try:
        context.set_default_timeout(WAIT)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page, errors, sent = context.new_page(), list[str](), list[str]()
        page.on("request", lambda request: sent.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(server.url)
        visit = Visit(page, server, errors)
        yield visit
        assert [url for url in sent if not url.startswith((visit.root, "data:", "blob:"))] == []
        assert errors == []
    finally:
        context.close()
