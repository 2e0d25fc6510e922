"""Eight things that people want from the view, each in at most five clicks.

The shop of the pictures is served; the keyboard's task is in `test_list_flows.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, Locator, Page

from scripts.screenshots import serving
from scripts.shop import order
from tests.acceptance.server.processes import LIMIT
from tests.browser.browsing import WAIT, expect
from tests.postgres_cluster import wait_until

MOST = 5
ROWS: dict[str, Any] = {"pause": 0.0, "bad": [], "done": []}


class Person:
    """Somebody who clicks, types, and counts the clicks."""

    def __init__(self, page: Page, client: httpx.Client, root: str) -> None:
        self.page, self.client, self.root, self.clicks = page, client, root, 0

    def click(self, place: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= MOST
        place.click()

    def run(self, thread: str, graph: str, given: Any, *statuses: str) -> None:
        """Start a run, and wait for its end."""
        path = f"/v1/threads/{thread}"
        body = {"graph": graph, "input": given}
        self.client.post(f"{path}/runs", json=body).raise_for_status()
        wanted = statuses or ("completed",)
        wait_until(lambda: self.client.get(path).json()["status"] in wanted, 4 * LIMIT)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    with serving(str(tmp_path_factory.mktemp("shop"))) as found:
        yield found


@pytest.fixture
def person(shop: tuple[httpx.Client, str], chromium: Browser) -> Iterator[Person]:
    client, start = shop
    context = chromium.new_context()
    context.set_default_timeout(WAIT)
    page = context.new_page()
    page.goto(start)
    yield Person(page, client, start.partition("/?")[0])
    context.close()


def test_the_first_run_of_an_empty_store_is_started(person: Person) -> None:
    """This one is first: the others fill the store."""
    page = person.page
    expect(page.locator("h1")).to_have_text("Nothing has run here yet")
    page.locator("#start-thread").fill("first")
    given = {"customer": "Heron", "items": '[{"sku": "LMP", "pieces": 1}]', "log": "[]"}
    for name, text in given.items():
        page.get_by_label(name).first.fill(text)
    person.click(page.get_by_role("button", name="Start a run"))
    expect(page).to_have_url(f"{person.root}/threads/first")
    expect(page.locator(".title .pill")).to_have_text("Completed")


def test_what_failed_and_why_is_found_and_retried(person: Person) -> None:
    """Two tasks: the threads that failed in the last hour, and a retry of those of one cause."""
    for number in range(9):
        given = order("Osprey Tea", 1, 1, "price")
        person.run(f"order-{number}", "orders", given, "failed")
    page = person.page
    page.goto(f"{person.root}/overview")
    person.click(page.locator(".tile", has_text="Failed"))
    group = page.locator(".fail", has_text="LookupError at price")
    expect(group).to_contain_text("the price list has no SKU")
    expect(group.locator(".many")).to_contain_text("9")
    person.click(group.get_by_role("button", name="Retry all 9"))
    person.click(page.get_by_role("button", name="Retry 9 threads"))
    expect(page.locator("tbody tr")).to_have_count(9)
    assert person.clicks <= 3


def test_why_a_thread_waits_is_said(person: Person) -> None:
    given = order("Kestrel Books", 1, 24)
    person.run("order-20418", "orders", given, "interrupted")
    page = person.page
    page.keyboard.press("/")
    page.keyboard.type("20418")
    page.keyboard.press("Enter")
    person.click(page.get_by_role("link", name="order-20418"))
    expect(page.locator("#questions")).to_contain_text("Ship 24 tables to a new address?")


def test_a_failed_item_of_many_and_its_input_are_found(person: Person) -> None:
    """One of 2,000."""
    rows = [*range(2000)]
    person.run("import", "imports", {**ROWS, "rows": rows, "bad": [1234, 1500]}, "failed")
    page = person.page
    page.goto(f"{person.root}/threads/import")
    person.click(page.get_by_role("link", name="Items"))
    expect(page.locator("tbody tr").first).to_contain_text("row 1234 has no date")
    person.click(page.get_by_role("link", name="read_row#1234"))
    expect(page.locator("#input")).to_contain_text("1234")


def test_the_slowest_item_of_10_000_and_its_input_are_found(person: Person) -> None:
    """Tried: items in their own order."""
    person.run("import-all", "imports", {**ROWS, "rows": [*range(10_000, 20_000)]})
    page = person.page
    page.goto(f"{person.root}/threads/import-all")
    person.click(page.get_by_role("link", name="Items", exact=True))
    expect(page.locator("h2", has_text="10,000 items")).to_be_visible()
    times = page.locator("tbody tr td:nth-child(3)").all_inner_texts()
    took = [_milliseconds(one) for one in times]
    assert took == sorted(took, reverse=True)
    item = page.locator("tbody tr th").first.inner_text().split("\n")[0]
    person.click(page.get_by_role("link", name=item, exact=True))
    number = int(item.partition("#")[2])
    expect(page.locator("#input")).to_contain_text(str(10_000 + number))


def _milliseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"ms": 1, "s": 1000, "min": 60_000}[unit]


def test_two_branches_are_compared(person: Person) -> None:
    person.run("branches", "orders", order("Teal Ltd", 1, 24), "interrupted")
    path = "/v1/threads/branches"
    person.client.post(f"{path}/fork", json={"at": 3}).raise_for_status()
    person.client.post(f"{path}/update", json={"update": {"risk": 0.5}}).raise_for_status()
    page = person.page
    page.goto(f"{person.root}/threads/branches")
    person.click(page.locator("#branches").get_by_role("link", name="Compare").first)
    expect(page.locator("table.two")).to_contain_text("risk")


def test_a_conversation_is_read_and_continued(person: Person) -> None:
    said = {"role": "user", "content": "Two chairs are broken."}
    person.run("support", "support", {"messages": [said]})
    page = person.page
    page.goto(f"{person.root}/threads/support")
    person.click(page.get_by_role("link", name="Chat"))
    expect(page.locator(".msgs")).to_contain_text("Which do you prefer?")
    person.click(page.locator("details.call", has_text="policy").locator("summary").first)
    expect(page.locator("details.call", has_text="policy")).to_contain_text("full, within 30 days")
    page.locator("textarea[name=message]").fill("The refund, please.")
    person.click(page.get_by_role("button", name="Send"))
    expect(page.locator("details.call", has_text="refund_order")).to_contain_text(
        "Call refund_order?"
    )
