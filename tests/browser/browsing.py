"""Pages in a real browser: which there are, what is on them, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest

from milecastle.server.pages.table import PAGES
from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import Server
from tests.postgres_cluster import wait_until

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, Page, expect

__all__ = ["FLAGS", "SCHEMES", "SEEN", "WAIT", "Browser", "Visit", "expect", "violations"]

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WAIT = 60_000
"""Milliseconds for which a condition may take to come true."""

expect.set_options(timeout=WAIT)
AXE = Path(__file__).parent / "vendor" / "axe.js"
OTHER = re.compile(r"^/static/|\.svg$|^/builds/|^/login/oidc")
SEEN = [page.path for page in PAGES if page.method == "GET" and not OTHER.search(page.path)]
"""The paths of the pages that are HTML, without those that need a workspace or an issuer."""


class Visit:
    """A page that is open in a browser, and the server that it is of."""

    def __init__(self, page: Page, server: Server, errors: list[str]) -> None:
        self.page, self.server, self.errors = page, server, errors
        self.root = server.url.partition("?")[0].rstrip("/")

    def go(self, path: str) -> Page:
        """Open a path of the server."""
        response = self.page.goto(self.root + path)
        assert response is not None
        assert response.status == 200, path
        return self.page

    def content(self, path: str) -> str:
        """The text of a page, but for what scripts say about themselves, and how long is waited."""
        page = self.go(path)
        helpers = page.locator("#liveness, [data-copy], button[data-opens], .scrub .btn")
        helpers.evaluate_all("found => found.forEach(one => one.remove())")
        return re.sub(
            r"\d+(\.\d+)? (ms|s|min|h|d)\b( \d+ (s|min|h)\b)?|\bnow\b",
            "a while",
            page.locator("body").inner_text(),
        )

    def submit(self, thread: str, steps: int = 1, **more: Any) -> None:
        """Start a run by the API."""
        body = journey(steps, **more)
        answer = self.server.client.post(f"/v1/threads/{thread}/runs", json=body)
        assert answer.status_code == 202, answer.text

    def path_of(self, path: str) -> str:
        """A page of the table, with the names of samples in its path."""
        job = self._job() if "{job}" in path else ""
        return path.format(thread="sample-asks", graph="journey", job=job)

    def _job(self) -> str:
        """A job that is over."""
        client = self.server.client
        job: str = client.post("/v1/runs/cancel", json={"status": "queued"}).json()["job"]
        wait_until(lambda: client.get(f"/v1/jobs/{job}").json()["status"] == "completed", 60)
        return job


def violations(page: Page) -> list[str]:
    """What axe finds that is serious: the rule, and where."""
    page.evaluate(AXE.read_text("utf-8"))
    found: list[dict[str, Any]] = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
    )
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {node['html']}" for one in serious for node in one["nodes"]]
