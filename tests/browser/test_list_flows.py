"""What a person does with graphs and in the inbox."""

from __future__ import annotations

import pytest

from tests.browser.browsing import Visit, expect

pytestmark = pytest.mark.no_cover


def test_a_run_is_started_by_the_form_of_its_graph(visit: Visit) -> None:
    """Fails if a field is not sent in the type that the state has."""
    page = visit.go("/graphs/journey")
    page.get_by_label("Thread").fill("by-form")
    page.get_by_label("steps").fill("2")
    page.get_by_label("done").fill("0")
    page.get_by_label("log").fill("[]")
    page.get_by_role("button", name="Start").click()
    assert visit.server.rests("by-form")["state"]["done"] == 2


def test_fifty_questions_are_answered_from_the_keyboard(visit: Visit) -> None:
    """Fails if an answer is lost, or if the focus does not go to the next question."""
    names = [f"inbox-{number:02}" for number in range(50)]
    for name in names:
        visit.submit(name, then="ask")
    for name in names:
        visit.server.rests(name, "interrupted")
    page = visit.go("/inbox")
    page.keyboard.press("j")
    answered = list[str]()
    while len(answered) < len(names):
        asked = page.locator("[data-question]:focus [data-thread]").inner_text()
        is_ours = asked in names and asked not in answered
        answered += [asked] if is_ours else []
        page.keyboard.press("y" if is_ours else "j")
    for name in names:
        visit.server.rests(name, "completed")
    expect(page.locator("[data-thread]", has_text="inbox-")).to_have_count(0)
