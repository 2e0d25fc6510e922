"""Every page, as a person meets it: with a screen reader, without scripts, in the dark."""

from __future__ import annotations

import pytest

from tests.browser.browsing import SCHEMES, SEEN, Visit, expect, violations


@pytest.mark.parametrize("path", SEEN)
def test_a_page_keeps_nobody_out(visit: Visit, path: str) -> None:
    """Fails with text of too little contrast, or a field without a label."""
    page = visit.go(visit.path_of(path))
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == [], scheme


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
    page.evaluate("document.querySelector('main').innerHTML = '<img src=x:><input>'")
    assert {one.partition(":")[0] for one in violations(page)} == {"image-alt", "label"}
    visit.errors.clear()  # there is no x:


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
