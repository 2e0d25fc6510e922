"""Every page, as a person meets it: with a screen reader, without scripts, in the dark."""

from __future__ import annotations

import pytest

from tests.acceptance.server.processes import Server
from tests.browser.browsing import SCHEMES, SEEN, Browser, Visit, expect, violations
from tests.browser.conftest import visiting

OPEN = "all => all.forEach(one => one.open = true)"
TABS = (
    *(f"/threads/sample-asks?at=2&tab={tab}" for tab in ("changes", "raw", "about")),
    "/threads/sample-asks?axis=clock",
    "/threads/sample-done?do=fork",
    "/threads?status=failed",
    "/threads?do=save",
    "/failures?state=settled",
    "/overview?since=7d",
    "/inbox?sort=kind",
    "/compare?a=sample-asks@1&b=sample-asks",
    "/graphs/journey?by=time",
    "/graphs/journey/versions?tab=replay",
)
"""Pages that are tabs of others, or have a form open."""
MENUS = 4
"""How many of a page are opened."""


@pytest.mark.parametrize("path", SEEN)
def test_a_page_keeps_nobody_out(visit: Visit, path: str) -> None:
    """Fails with text of too little contrast, or a field without a label."""
    page = visit.go(visit.path_of(path))
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == [], scheme


@pytest.mark.parametrize("path", TABS)
def test_a_tab_keeps_nobody_out(visit: Visit, path: str) -> None:
    """Tried: a button without a name in the tab of replays."""
    page = visit.go(path)
    for width, scheme in zip((1280, 400), SCHEMES, strict=True):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == [], (width, scheme)


@pytest.mark.parametrize("path", SEEN)
def test_what_is_opened_on_a_page_keeps_nobody_out(visit: Visit, path: str) -> None:
    """Folded parts, menus and dialogs; those of the frame on one page.

    Tried: a button without a name in a menu, and a field without one in a dialog.
    """
    page = visit.go(visit.path_of(path))
    inside = "main" if path != "/threads" else "body"
    menus = page.locator(f"{inside} details.menu")
    for width, scheme in zip((1280, 400), SCHEMES, strict=True):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.locator("main details:not(.menu)").evaluate_all(OPEN)
        assert violations(page) == [], (width, "folded parts")
        for at in range(min(menus.count(), MENUS)):
            menus.nth(at).evaluate("one => one.open = true")
            assert violations(page) == [], (width, menus.nth(at).inner_text())
            menus.nth(at).evaluate("one => one.open = false")
        dialogs = page.locator(f"{inside} dialog")
        for at in range(dialogs.count()):
            dialogs.nth(at).evaluate("one => one.showModal()")
            assert violations(page) == [], (width, dialogs.nth(at).inner_text())
            dialogs.nth(at).evaluate("one => one.close()")


@pytest.mark.parametrize("path", SEEN)
def test_a_page_has_the_same_content_without_scripts(
    visit: Visit, visit_without_scripts: Visit, path: str
) -> None:
    """Fails if a script fetches what a page shows."""
    place = visit.path_of(path)
    assert visit.content(place) == visit_without_scripts.content(place)


def test_the_check_of_accessibility_finds_what_is_wrong(visit: Visit) -> None:
    """The control: a picture without a text and a field without a label are reported."""
    page = visit.go("/threads")
    page.evaluate("document.querySelector('main').innerHTML = '<img src=data:,><input>'")
    assert {one.partition(":")[0] for one in violations(page)} == {"image-alt", "label"}
    visit.errors.clear()  # that is no picture


def test_the_start_url_logs_in_and_leaves_no_token_in_the_address(visit: Visit) -> None:
    expect(visit.page).to_have_url(f"{visit.root}/overview")
    (cookie,) = visit.page.context.cookies()
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")


def test_the_log_of_errors_notices_a_script_that_is_refused(visit: Visit) -> None:
    """The control: the policy refuses it, and the browser says so."""
    page = visit.go("/threads")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 1}))"
    )
    assert "Content Security Policy" in visit.errors.pop()


def test_request_to_another_host_is_noticed(server: Server, chromium: Browser) -> None:
    """The control of every visit, in a browser that does not keep to the policy of the pages."""
    with (
        pytest.raises(AssertionError, match=r"192\.0\.2\.1"),
        visiting(server, chromium, bypass_csp=True) as visit,
        visit.page.expect_request("http://192.0.2.1/"),
    ):
        visit.page.evaluate("fetch('http://192.0.2.1/').catch(() => 0); 0")
