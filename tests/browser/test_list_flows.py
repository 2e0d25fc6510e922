"""What a person does with graphs, in the inbox and with many threads."""

from __future__ import annotations

import time

from playwright.sync_api import Route

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


def test_nothing_else_opens_while_an_answer_is_on_its_way(visit: Visit) -> None:
    """Tried: the stream open meanwhile. It opened the first question, for the next key to answer.

    The answer of the server is held until the stream has shown that the question is answered.
    """
    for name in ("slow-1", "slow-2"):
        visit.submit(name, then="ask")
        visit.server.rests(name, "interrupted")
    page = visit.go("/inbox")

    def hold(route: Route) -> None:
        answer = route.fetch()
        time.sleep(2.5)
        route.fulfill(response=answer)

    page.locator("a.q", has_text="slow-1").click()
    expect(page.locator("[data-thread]")).to_have_text("slow-1")
    page.evaluate(
        """() => {
            window.opened = [];
            const now = () => document.querySelector(".ask-card [data-thread]")?.innerText;
            const look = () => opened.push(now());
            new MutationObserver(look).observe(document.body, {subtree: true, childList: true});
        }"""
    )
    page.route("**/inbox", hold)
    page.keyboard.press("y")
    expect(page.locator("[data-thread]")).to_have_text("slow-2")
    assert set(page.evaluate("opened")) <= {"slow-1", "slow-2"}
    visit.server.rests("slow-1", "completed")


def test_page_asked_for_before_an_answer_is_not_shown_after_it(visit: Visit) -> None:
    """Tried: the late page shown. It has the question that was answered, as if it were open."""
    for name in ("late-1", "late-2", "late-3"):
        visit.submit(name, then="ask")
        visit.server.rests(name, "interrupted")
    page = visit.go("/inbox")
    page.locator("a.q", has_text="late-1").click()
    expect(page.locator("[data-thread]")).to_have_text("late-1")
    held = list[Route]()

    def hold(route: Route) -> None:
        if "hx-request" in route.request.headers and route.request.method == "GET":
            held.append(route)
        else:
            route.continue_()

    page.route("**/inbox?*", hold)
    page.locator("a.q", has_text="late-3").click()
    page.wait_for_function("1")
    page.keyboard.press("y")
    expect(page.locator("[data-thread]")).to_have_text("late-2")
    assert held
    with page.expect_response(held[0].request.url):
        held[0].continue_()
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    expect(page.locator("[data-thread]")).to_have_text("late-2")
    for name in ("late-2", "late-3"):
        visit.server.rests(name, "interrupted")


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
