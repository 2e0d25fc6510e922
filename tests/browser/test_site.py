"""The documentation site, as `just site` built it, on a wide and on a narrow screen.

`MILECASTLE_SITE_PAGES=all` looks at every page instead of a few.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from milecastle import __version__
from scripts.site import NOT_FOUND, PUBLIC, ROOT, publish
from tests.browser.browsing import SCHEMES, WAIT, expect, violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


SITE = ROOT / PUBLIC
BUILT = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*/*.html"))
FEW = (
    "index",
    "quickstart",
    "explanation/comparison",
    "how-to/async",
    "reference/api/inside-a-node",
)
PAGES = (
    BUILT
    if os.environ.get("MILECASTLE_SITE_PAGES") == "all"
    else [f"{__version__}/{page}.html" for page in FEW]
)
HOME = f"{__version__}/index.html"
WIDTHS = (1280, 400)
LEGIBLE = """() => {
  const found = [], article = document.querySelector("article");
  const say = (what, node) => found.push(`${what}: ${node.textContent.trim().slice(0, 60)}`);
  for (const cell of article.querySelectorAll("table:not([class]) :is(td, th)"))
    if (cell.textContent.trim().length > 30 && cell.clientWidth < 150) say("squeezed", cell);
  for (const node of article.querySelectorAll("p, li, td, th, code, a"))
    if (node.className !== "headerlink" && parseFloat(getComputedStyle(node).fontSize) < 11)
      say("small", node);
  for (const code of article.querySelectorAll("pre > code"))
    if (code.scrollWidth > code.clientWidth && getComputedStyle(code).overflowX !== "auto")
      say("cut off", code);
  for (const image of article.querySelectorAll("img"))
    if (image.complete && !image.naturalWidth) found.push(`not loaded: ${image.src}`);
  return found;
}"""
"""What on a page cannot be read: squeezed cells, small text, code that is cut off, lost images."""
STILL = "*, ::before, ::after { animation: none !important; transition: none !important }"


class Host(SimpleHTTPRequestHandler):
    """Serves a folder, answers with the 404 page of the site, and prints nothing."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the page, whatever the address was; browsers ask every host for its icon."""
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
            return
        body = (ROOT / NOT_FOUND).read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Leave the line out."""


@contextmanager
def serving(folder: Path) -> Generator[str, None, None]:
    """Serve a folder as static hosts do, with its 404 page; yields the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Host, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """The address of the site, on this machine."""
    if not BUILT:
        pytest.skip("the site is not built: run `just site`")
    with serving(SITE) as address:
        yield address


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


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a folder below the top of a host, the site as two versions."""
    if not BUILT:
        pytest.skip("the site is not built: run `just site`")
    host = tmp_path_factory.mktemp("host")
    for version in ("0.0.9", "0.0.10"):
        publish(SITE / __version__, host / "docs", version)
    with serving(host) as root:
        yield f"{root}/docs"


@pytest.mark.parametrize("path", PAGES)
def test_page_of_the_site_fits_and_keeps_nobody_out(
    chromium: Browser, root: str, path: str
) -> None:
    """Fails with the theme's own colour of the open page, and if a wide table takes no focus.

    Also without the least width of cells with sentences, and with code in tables at 0.85em.
    """
    with looking(chromium, root) as page:
        page.goto(f"{root}/{path}")
        page.add_style_tag(content=STILL)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(LEGIBLE) == [], width
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


def test_other_version_is_chosen_and_the_older_one_says_that_it_is_older(
    chromium: Browser, versions: str
) -> None:
    """Fails without the block in ``main.html``, and with the theme's own script of the banner."""
    with looking(chromium, versions) as page:
        page.goto(f"{versions}/index.html")
        page.wait_for_url(f"{versions}/0.0.10/index.html")
        expect(page.locator(".md-version__current")).to_have_text("0.0.10")
        page.goto(f"{versions}/0.0.10/how-to/async.html")
        expect(page.locator(".md-version__current")).to_have_text("0.0.10")
        expect(page.locator("[data-md-component=outdated]")).to_be_hidden()
        page.locator(".md-version__current").focus()
        page.locator(".md-version__link", has_text="0.0.9").click()
        page.wait_for_url(f"{versions}/0.0.9/")
        banner = page.locator("[data-md-component=outdated]")
        expect(banner).to_be_visible()
        label = (
            "label-content-name-mismatch"  # the copy has the label of the version it was built as
        )
        assert [one for one in violations(page) if not one.startswith(label)] == []
        banner.get_by_role("link").click()
        page.wait_for_url(f"{versions}/0.0.10/index.html")


def test_missing_page_leads_to_the_versions(chromium: Browser, versions: str) -> None:
    """Fails if only the top of the host is looked at: the site is in a folder there."""
    context = chromium.new_context()
    context.set_default_timeout(WAIT)
    page = context.new_page()
    answer = page.goto(f"{versions}/0.0.9/how-to/gone.html")
    assert answer is not None
    assert answer.status == 404
    page.get_by_role("link", name="0.0.10").click()
    page.wait_for_url(f"{versions}/0.0.10/index.html")
    context.close()


def test_request_to_another_host_is_noticed(chromium: Browser, root: str) -> None:
    """The control of the tests above."""
    with (
        pytest.raises(AssertionError, match=r"192\.0\.2\.1"),
        looking(chromium, root) as page,
        page.expect_request("http://192.0.2.1/"),
    ):
        page.evaluate("fetch('http://192.0.2.1/').catch(() => 0); 0")
