"""What pages do by themselves: they refresh, keep what was chosen, and copy commands."""

from __future__ import annotations

from tests.browser.browsing import Visit, expect


def test_the_list_shows_that_a_run_has_ended_without_being_loaded_again(visit: Visit) -> None:
    """Fails without the script, or if the list replaces what was selected and focused."""
    visit.submit("live", then="ask")
    page = visit.go("/threads?prefix=live")
    row = page.locator("tbody tr")
    expect(row).to_contain_text("Needs answer")
    box = row.locator("input[type=checkbox]")
    box.check()
    box.focus()
    page.evaluate("window.same = document.querySelector('tbody tr')")
    question = visit.server.rests("live", "interrupted")["questions"][0]["id"]
    visit.server.client.post("/v1/threads/live/answers?wait=60", json={"answers": {question: True}})
    expect(row).to_contain_text("Completed")
    assert page.evaluate("window.same === document.querySelector('tbody tr')")
    expect(box).to_be_checked()
    expect(box).to_be_focused()
    expect(page.locator("#liveness")).to_have_text("Live")


def test_the_key_c_copies_the_command(visit: Visit) -> None:
    """Fails if the key does nothing, or if it copies while a person types."""
    page = visit.go("/threads?prefix=sample")
    page.evaluate("window.setTimeout = () => 0")  # what it says stays until it is looked at
    page.keyboard.press("c")
    expect(page.locator(".toasts")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "milecastle ls --prefix=sample --limit=50"
    page.evaluate("navigator.clipboard.writeText('other')")
    page.locator(".filter input[name=q]").press_sequentially("c")
    assert page.evaluate("navigator.clipboard.readText()") == "other"


def test_all_threads_are_selected_at_once_and_cancelled_after_a_question(visit: Visit) -> None:
    for number in range(3):
        visit.submit(f"many-{number}", then="ask")
        visit.server.rests(f"many-{number}", "interrupted")
    page = visit.go("/threads?prefix=many-")
    page.locator("#all").check()
    page.locator(".bulk").get_by_role("button", name="Cancel").click()
    expect(page.locator("main li")).to_have_count(3)
    page.get_by_role("button", name="Cancel 3 threads").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    for number in range(3):
        visit.server.rests(f"many-{number}", "cancelled")
