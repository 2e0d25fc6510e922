"""Screens and names: nothing is wider than the window, whatever it is called."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.browser.browsing import SEEN, Visit

LONG = "n" * 220
CLIPPED = ".scroll, .tabs, .nav, .drawn, .json, pre, svg, .cut, dialog, .pop, .sr, .find"
"""What scrolls by itself, ends with an ellipsis or is not seen."""
WIDE = f"""() => [...document.querySelectorAll("main *, header *, footer *")]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 1
        && !one.closest("{CLIPPED}"))
    .map(one => one.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("path", SEEN)
def test_a_page_fits_the_window(visit: Visit, path: str, width: int) -> None:
    """With a name of 220 characters in every list. Tried: names that do not wrap."""
    if visit.server.client.get(f"/v1/threads/{LONG}").status_code == 404:
        for name, then in ((LONG, "ask"), (f"fails-{LONG}", "fail")):
            visit.submit(name, then=then, steps=2)
            visit.server.client.post(f"/v1/threads/{name}/tags", json={"add": ["t" * 64]})
            visit.server.rests(name, "interrupted", "failed")
    visit.page.set_viewport_size({"width": width, "height": 800})
    for thread in (LONG, f"fails-{LONG}") if "{thread}" in path else ("",):
        place = visit.path_of(path)
        page = visit.go(place.replace("sample-asks", quote(thread)) if thread else place)
        assert page.evaluate(WIDE) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_check_of_widths_finds_what_is_too_wide(visit: Visit) -> None:
    """The control: a text that does not wrap is reported."""
    page = visit.go("/threads")
    page.evaluate(
        """() => {
            const one = document.createElement("span");
            one.textContent = "w".repeat(400);
            one.className = "nowrap";
            document.querySelector("main").append(one);
        }"""
    )
    assert page.evaluate(WIDE) != []
