"""What a person does with graphs, in the inbox and with many threads."""

from __future__ import annotations

from tests.browser.browsing import Visit, expect, violations


def test_a_run_is_started_by_the_form_of_its_graph(visit: Visit) -> None:
    """Fails if a field is not sent in the type that the state has."""
    page = visit.go("/graphs/journey")
    page.locator("#start-thread").fill("by-form")
    page.get_by_label("steps", exact=False).fill("2")
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
    answered = list[str]()
    while len(answered) < len(names):
        opened = page.locator("section.ask-card").get_attribute("id")
        asked = page.locator("[data-thread]").inner_text()
        is_ours = asked in names
        answered += [asked] if is_ours else []
        page.keyboard.press("y" if is_ours else "j")
        expect(page.locator("section.ask-card")).not_to_have_attribute("id", str(opened))
    assert len(set(answered)) == len(names), "a question was answered twice"
    for name in names:
        visit.server.rests(name, "completed")
    expect(page.locator("[data-name]", has_text="inbox-")).to_have_count(0)


def test_all_threads_of_a_status_are_deleted_by_a_job(visit: Visit) -> None:
    """Fails if the list offers no job, if it is not asked again, or its page does not move."""
    names = [f"old-{number}" for number in range(3)]
    for name in names:
        visit.submit(name, then="ask")
        visit.server.rests(name, "interrupted")
        visit.server.client.post(f"/v1/threads/{name}/cancel")
    page = visit.go("/threads")
    page.locator("summary", has_text="Filter").click()
    page.get_by_role("link", name="Cancelled").click()
    page.get_by_role("button", name="Delete all cancelled").click()
    expect(page.get_by_text("It cannot be undone.")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Delete all cancelled").click()
    expect(page.locator("#live .pill")).to_have_text("Completed")
    expect(page.locator("#live dd").nth(1)).to_have_text("3")
    assert violations(page) == []
    for name in names:
        assert visit.server.client.get(f"/v1/threads/{name}").status_code == 404
