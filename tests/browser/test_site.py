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

from milecastle import __version__
from scripts.site import PUBLIC, ROOT
from tests.browser.browsing import SCHEMES, WAIT, expect, violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.no_cover

SITE = ROOT / PUBLIC
BUILT = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*/*.html"))
FEW = ("index", "quickstart", "how-to/async", "reference/api/graphs-and-apps")
PAGES = (
    BUILT
    if os.environ.get("MILECASTLE_SITE_PAGES") == "all"
    else [f"{__version__}/{page}.html" for page in FEW]
)
HOME = f"{__version__}/index.html"
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
def looking(chromium: Browser, root: str) -> Generator[Page, None, None]:
    """A window. What leaves the host, and what is reported as an error, fails the test."""
    context = chromium.new_context(viewport={"width": WIDTHS[0], "height": 900})
    context.set_default_timeout(WAIT)
    page, sent, errors = context.new_page(), list[str](), list[str]()
    page.on("request", lambda request: sent.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    try:
        yield page
        assert [url for url in sent if not url.startswith((root, "data:", "blob:"))] == []
        assert errors == []
    finally:
        context.close()


@pytest.mark.parametrize("path", PAGES)
def test_page_of_the_site_fits_and_keeps_nobody_out(
    chromium: Browser, root: str, path: str
) -> None:
    """Fails with the theme's own colour of the open page, and if a wide table takes no focus."""
    with looking(chromium, root) as page:
        page.goto(f"{root}/{path}")
        page.add_style_tag(content=STILL)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                assert violations(page) == [], (width, scheme)


def test_search_finds_a_name_and_the_version_is_shown(chromium: Browser, root: str) -> None:
    """Fails without the search plugin, and without versions.json."""
    with looking(chromium, root) as page:
        page.goto(f"{root}/{HOME}")
        expect(page.locator(".md-version")).to_contain_text(__version__)
        page.locator(".md-search__button").click()
        page.locator("dialog[open] input").fill("crash_everywhere")
        expect(page.locator("dialog[open]")).to_contain_text("milecastle.testing")


def test_request_to_another_host_is_noticed(chromium: Browser, root: str) -> None:
    """The control of the tests above."""
    with (
        pytest.raises(AssertionError, match=r"192\.0\.2\.1"),
        looking(chromium, root) as page,
        page.expect_request("http://192.0.2.1/"),
    ):
        page.evaluate("fetch('http://192.0.2.1/').catch(() => 0); 0")
