"""What a person does on the page of a thread."""

from __future__ import annotations

import pytest

from tests.browser.browsing import Visit, expect


def test_a_run_is_watched_until_it_asks_and_is_answered(visit: Visit) -> None:
    """Fails if the page does not move with its run, or sends no answer."""
    visit.submit("watched", steps=4, pause=0.3, then="ask")
    visit.server.rests("watched", "running", "interrupted")
    page = visit.go("/threads/watched")
    page.evaluate("window.same = true")
    expect(page.locator(".title .pill")).to_have_text("Needs answer")
    form = page.locator("form.question")
    expect(page.locator("#questions")).to_contain_text("go on?")
    assert page.evaluate("window.same"), "the page was loaded again"
    form.get_by_role("button", name="Yes").click()
    expect(page.locator(".title .pill")).to_have_text("Completed")
    expect(page.locator("form.question")).to_have_count(0)


def test_a_thread_is_forked_from_a_checkpoint_of_the_slider(visit: Visit) -> None:
    """Fails if the slider does not move the page, or the form forks from another checkpoint."""
    page = visit.go("/threads/sample-done")
    head = int(page.locator("input[type=range]").input_value())
    for _ in range(head - 2):
        page.locator("input[type=range]").press("ArrowLeft")
    expect(page.locator(".scrub .at")).to_contain_text(f"Checkpoint 2 of {head}")
    expect(page).to_have_url(f"{visit.root}/threads/sample-done?at=2")
    page.locator("a[data-opens=fork]").click()
    page.locator("input[name=as_thread]").fill("forked")
    page.get_by_role("button", name="Fork").click()
    expect(page).to_have_url(f"{visit.root}/threads/forked")
    expect(page.locator("#command")).to_contain_text("forked")
    old = visit.server.client.get("/v1/threads/sample-done?at=2").json()["state"]
    assert visit.server.client.get("/v1/threads/forked").json()["state"] == old


@pytest.mark.parametrize("name", ["visit", "visit_without_scripts"])
def test_tags_are_changed(request: pytest.FixtureRequest, name: str) -> None:
    """Also without JavaScript. Fails if the form changes nothing, or another tag."""
    visit: Visit = request.getfixturevalue(name)
    visit.submit(f"tagged-{name}", then="end")
    visit.server.rests(f"tagged-{name}", "completed")
    page = visit.go(f"/threads/tagged-{name}")
    odd = f"late, <b> {name}"

    def open_form() -> None:
        page.get_by_label("More actions").click()
        page.get_by_text("Change tags").click()

    for tag in ("eu", odd):
        open_form()
        page.locator("input[name=add]").fill(tag)
        page.get_by_role("button", name="Change the tags").click()
        expect(page.locator(".title").get_by_role("link", name=tag)).to_be_visible()
    open_form()
    page.locator("#tags").get_by_label("eu").check()
    page.get_by_role("button", name="Change the tags").click()
    expect(page.locator(".title").get_by_role("link", name="eu")).to_have_count(0)
    page.locator(".title").get_by_role("link", name=odd).click()
    expect(page.locator("tbody tr")).to_contain_text(f"tagged-{name}")


def test_what_is_typed_outlasts_a_refresh(visit: Visit) -> None:
    """Fails if the refresh replaces a form that a person fills in."""
    visit.submit("typed", then="ask")
    visit.server.rests("typed", "interrupted")
    page = visit.go("/threads/typed")
    page.locator("a[data-opens=edit]").click()
    page.locator("textarea[name=update]").fill('{"steps": 7')
    (question,) = visit.server.rests("typed", "interrupted")["questions"]
    visit.server.client.post(
        "/v1/threads/typed/answers?wait=60", json={"answers": {question["id"]: True}}
    )
    expect(page.locator(".title .pill")).to_have_text("Completed")
    expect(page.locator("textarea[name=update]")).to_have_value('{"steps": 7')


def test_a_failed_run_is_retried(visit: Visit) -> None:
    """Tried: a table of outcomes in place of the thread."""
    visit.submit("broken", then="fail")
    visit.server.rests("broken", "failed")
    page = visit.go("/threads/broken")
    expect(page.locator("#failure")).to_contain_text("no way")
    page.locator("#actions").get_by_role("button", name="Retry").click()
    expect(page).to_have_url(f"{visit.root}/threads/broken")
    visit.server.rests("broken", "failed")
    assert len(visit.server.client.get("/v1/threads/broken/runs").json()["runs"]) == 2
