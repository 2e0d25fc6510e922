"""What a notebook shows, among the style rules that JupyterLab has for the output of a cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

from milecastle import END, START, StateGraph
from tests.browser.browsing import SCHEMES, expect, violations

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

JUPYTER = """
.jp-Out dl, .jp-Out dt, .jp-Out dd { display: block }
.jp-Out dl { width: 100%; overflow: hidden; padding: 0; margin: 0 }
.jp-Out dt { font-weight: bold; float: left; width: 20% }
.jp-Out dd { float: left; width: 80% }
.jp-Out table { table-layout: fixed; color: #212121; margin-left: auto }
.jp-Out td, .jp-Out th, .jp-Out tr { vertical-align: middle; white-space: normal }
:not(.jp-Text).jp-Out td, :not(.jp-Text).jp-Out th { text-align: right }
.jp-Out tbody tr:nth-child(odd) { background: #fff }
.jp-Out tbody tr:nth-child(even) { background: #f5f5f5 }
"""
"""As in JupyterLab 4, with other names of classes."""


class Trip(TypedDict):
    town: str
    plan: str


def _choose(state: Trip) -> dict[str, str]:
    return {"plan": f"train to {state['town']}"}


@pytest.fixture(scope="module")
def cells() -> list[str]:
    graph = StateGraph(Trip)
    graph.add_node("choose", _choose)
    graph.add_edges(START, "choose", END)
    app = graph.compile(store="memory://")
    result = app.invoke({"town": "Corbridge"}, "trip")
    shown: list[Any] = [app, result, app.state("trip"), app.history("trip"), app.diff("trip", 1)]
    return [one._repr_html_() for one in shown]


@pytest.fixture(params=["light", "dark"])
def notebook(request: pytest.FixtureRequest, chromium: Browser, cells: list[str]) -> Iterator[Page]:
    """Cells of a notebook with a light or a dark theme."""
    page = chromium.new_page()
    paper = "#fff" if request.param == "light" else "#111"
    output = "".join(f'<section class="jp-Out">{cell}</section>' for cell in cells)
    page.set_content(
        f'<html lang="en"><title>cells</title><style>{JUPYTER} body {{background: {paper}}}</style>'
        f'<body data-jp-theme-light="{str(request.param == "light").lower()}">'
        f"<main><h1 hidden>cells</h1>{output}</main></body></html>"
    )
    yield page
    page.close()


def test_labels_are_on_one_line_and_text_is_on_the_left(notebook: Page) -> None:
    """Labels were broken after each letter, and text was at the right of its column."""
    for label in notebook.locator("dt").all():
        box = label.bounding_box()
        assert box is not None
        assert box["height"] < 30, label.inner_text()
    for cell in notebook.locator("td").all():
        expect(cell).to_have_css("text-align", "left")


def test_colours_are_those_of_the_notebook_and_not_of_the_system(notebook: Page) -> None:
    """A dark system gave a light notebook dark cards, with light text on light rows."""
    seen: set[bytes] = set()
    for scheme in SCHEMES:
        notebook.emulate_media(color_scheme=scheme)
        assert violations(notebook) == []
        seen.add(notebook.screenshot(full_page=True))
    assert len(seen) == 1
