"""The local web view, from a browser's point of view."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.server.browsing import Browser
from tests.unit.server.calling import Api, token_of


@pytest.mark.requirement("U2", api="milecastle serve")
def test_the_web_view_shows_threads_their_graph_and_their_history(tmp_path: Path) -> None:
    """Threads, the way through the graph, older checkpoints with differences, open questions."""
    api = Api(tmp_path)
    browser = Browser(api).log_in(token_of("default"))
    api.run("t", 42)
    assert [one.text for one in browser.page("/threads").all("a", href="/threads/t")] == ["t"]
    shown = browser.page("/threads/t")
    assert shown.one("div", id="questions").text
    older = browser.page("/threads/t?at=1")
    assert {one.get("data-node") for one in older.all("a")} >= {"begin", "ask"}
    assert browser.page("/threads/t?at=2&tab=changes").all("ins")
    assert "sure?" in browser.ask("GET", "/inbox").text
    api.close()
