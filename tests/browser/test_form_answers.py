"""Answers that are forms, typed by a person, in the inbox of a server of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.acceptance.server.processes import Server, serving
from tests.browser.browsing import Visit, expect


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    store = f"sqlite:///{tmp_path_factory.mktemp('server') / 'runs.db'}"
    with serving(store, reference="tests.browser.refunds:graph") as found:
        yield found


def asking(visit: Visit, *names: str) -> Page:
    """The inbox, with the first of these threads opened."""
    for name in names:
        body = {"input": {"customer": name}}
        assert visit.server.client.post(f"/v1/threads/{name}/runs", json=body).status_code == 202
        visit.server.rests(name, "interrupted")
    page = visit.go("/inbox")
    open_question(page, names[0])
    return page


def open_question(page: Page, name: str) -> None:
    page.locator("a.q", has_text=name).click()
    expect(page.locator("[data-thread]")).to_have_text(name)


def test_what_was_typed_for_one_question_is_not_in_the_form_of_another(visit: Visit) -> None:
    """Fields had the same ids in each form, so an amount stayed for the next customer."""
    page = asking(visit, "typed-1", "typed-2")
    page.get_by_label("amount").fill("88")
    page.get_by_label("Reason").fill("seen")
    open_question(page, "typed-2")
    expect(page.get_by_label("amount")).to_have_value("")
    expect(page.get_by_label("Reason")).to_have_value("")


def test_answer_that_is_not_valid_leaves_its_question_open_as_it_was_typed(visit: Visit) -> None:
    """The next question opened, with what was typed for this one."""
    page = asking(visit, "wrong-1", "wrong-2")
    page.get_by_label("decision").select_option("approve")
    page.get_by_label("amount").fill("ten")
    page.get_by_label("Reason").fill("seen")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".toast[role=alert]")).to_contain_text("wrong-1: the answer is not valid")
    expect(page.locator("[data-thread]")).to_have_text("wrong-1")
    expect(page.get_by_label("decision")).to_have_value('"approve"')
    expect(page.get_by_label("amount")).to_have_value("ten")
    expect(page.get_by_label("Reason")).to_have_value("seen")
    page.get_by_label("amount").fill("10")
    page.get_by_role("button", name="Answer").click()
    verdict = visit.server.rests("wrong-1", "completed")["state"]["verdict"]
    assert verdict == {"decision": "approve", "amount": 10}


def test_refused_answer_leads_back_to_its_question_without_scripts(
    visit_without_scripts: Visit,
) -> None:
    page = asking(visit_without_scripts, "plain-1", "plain-2")
    page.get_by_label("amount").fill("ten")
    page.get_by_role("button", name="Answer").click()
    page.get_by_role("link", name="Back to the question").click()
    expect(page.locator("[data-thread]")).to_have_text("plain-1")
