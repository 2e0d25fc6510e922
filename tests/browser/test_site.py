"""The documentation site, as `just site` built it, on a wide and on a narrow screen.

`MILECASTLE_SITE_PAGES=all` looks at every page instead of a few.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from scripts.site import PUBLIC, ROOT
from tests.browser.browsing import SCHEMES, WAIT, expect, violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.no_cover

SITE = ROOT / PUBLIC
BUILT = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*/*.html"))
FEW = ("/index.html", "/quickstart.html", "/reference/api/graphs-and-apps.html", "/errors.html")
PAGES = BUILT if os.environ.get("MILECASTLE_SITE_PAGES") == "all" else [p for p in BUILT if p.endswith(FEW)]
WIDTHS = (1280, 400)
STILL = "*, ::before, ::after { animation: none !important; transition: none !important }"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Leave the line out."""


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """The address of the site, on this machine."""
    if not BUILT:
        pytest.skip("the site is not built: run `just site`")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def looking(chromium: Browser, root: str, width: int) -> Generator[Page, None, None]:
    """A window of a width. What leaves the host, and what is reported as an error, fails the test."""
    context = chromium.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(WAIT)
    wrong: list[str] = []
    page = context.new_page()
    page.on("request", lambda sent: None if sent.url.startswith((root, "data:", "blob:")) else wrong.append(sent.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    try:
        yield page
        assert wrong == []
    finally:
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PAGES)
def test_page_of_the_site_fits_and_keeps_nobody_out(
    chromium: Browser, root: str, path: str, width: int
) -> None:
    """Fails with text of too little contrast, and with a picture wider than the window."""
    with looking(chromium, root, width) as page:
        page.goto(f"{root}/{path}")
        page.add_style_tag(content=STILL)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == [], scheme


def test_search_finds_a_name_and_the_version_is_shown(chromium: Browser, root: str) -> None:
    """Fails without the search plugin, and without versions.json."""
    with looking(chromium, root, 1280) as page:
        page.goto(root)
        expect(page.locator(".md-version")).to_contain_text("0.")
        page.keyboard.press("Control+k")
        page.keyboard.type("crash_everywhere")
        expect(page.get_by_role("link", name="crash_everywhere").first).to_be_visible()


def test_request_to_another_host_is_noticed(chromium: Browser, root: str) -> None:
    """The control of the test above."""
    with pytest.raises(AssertionError, match=r"192\.0\.2\.1"), looking(chromium, root, 400) as page:
        page.goto(root)
        page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://192.0.2.1/'}))")
        page.wait_for_timeout(500)
