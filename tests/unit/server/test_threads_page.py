"""The page that lists threads, and what is done to the ones that are selected."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest

from milecastle import CheckpointStore, ThreadKey
from milecastle.server.identity import ALL_SCOPES
from milecastle.views.listing import thread_page
from tests.unit.server.browsing import Browser, Document
from tests.unit.server.calling import OTHER, Api, token_of, trip

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "\x1b[31mred\x07",
    "x\ny",
    "\u202eabc",
    "a/b?c#d",
    "{{ 7 * 7 }}",
    "..",
]


def names(found: Document) -> list[str]:
    """The threads that a page lists."""
    return [one.own for one in found.all("th", scope="row")]


def fill(api: Api, *threads: str, n: int = 1) -> None:
    """Submit a run for each of these, without running it."""
    for thread in threads:
        api.app.submit(trip(n)["input"], thread)


def test_threads_are_listed_as_by_the_command_line(api: Api, browser: Browser) -> None:
    """Fails if a column is left out."""
    api.run("asks", 42)
    api.run("fails", 13)
    found = browser.page("/threads")
    assert names(found) == ["fails", "asks"], "the newest change is not first"
    assert found.statuses() == ["failed", "interrupted"]
    assert "1 question" in found.texts("td")
    assert "trip" in found.texts("td")
    assert found.commands() == ["milecastle ls --limit=50"]
    assert names(browser.page("/threads?sort=name")) == ["asks", "fails"]
    assert browser.ask("GET", "/threads?sort=size").status_code == 400


def test_filters_and_pages(api: Api, browser: Browser) -> None:
    """Fails if a filter is not passed on, or is lost on the next page."""
    api.run("order-1", 42)
    fill(api, "order", "order-2", "other", "p")
    assert names(browser.page("/threads?prefix=order")) == ["order", "order-1", "order-2"]
    assert names(browser.page("/threads?prefix=order&status=interrupted")) == ["order-1"]
    assert names(browser.page("/threads?prefix=order-1&status=queued")) == []
    assert names(browser.page("/threads?prefix=&status=&sort=name&graph=trip&after=order-2")) == [
        "other",
        "p",
    ]
    found = browser.page("/threads?status=queued&graph=none")
    assert names(found) == []
    assert "No thread matches" in found.one("main").text
    chips = [one.text for one in found.all("span", **{"class": "chip"})]
    assert chips == ["statusqueued", "graphnone"]
    removed = [one.get("href") for one in found.all("a") if "Remove" in one.get("aria-label")]
    assert removed == ["/threads?graph=none", "/threads?status=queued"]
    assert found.commands() == ["milecastle ls --status=queued --graph=none --limit=50"]
    assert browser.ask("GET", "/threads?status=flying").status_code == 400
    assert browser.ask("GET", f"/threads?prefix={'x' * 600}").status_code == 400


def test_pages_lead_to_each_other(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a thread is on no page, or on two."""
    monkeypatch.setattr("milecastle.server.pages.threads._ROWS", 4)
    threads = [f"t{number}" for number in range(10)]
    fill(api, *threads, "u")
    found, seen = browser.page("/threads?prefix=t"), list[str]()
    for _ in range(2):
        seen += names(found)
        assert "there are more" in found.one("main").text
        found = browser.page(found.one("a", rel="next").get("href"))
    assert seen + names(found) == threads
    assert found.all("a", rel="next") == []
    assert "the last 2" in found.one("main").text
    assert found.one("a", rel="first").get("href") == "/threads?prefix=t"


def test_search_finds_a_part_of_the_name_and_reads_words(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if only the beginning is found, a word is taken for a name, or an old one is lost."""
    fill(api, "order-1", "reorder-2", "other", "order-3")
    assert names(browser.page("/threads?q=order")) == ["order-1", "order-3", "reorder-2"]
    assert names(browser.page("/threads?q=name:order")) == ["order-1", "order-3"]
    found = browser.page("/threads?q=status:queued+order-3")
    assert names(found) == ["order-3"]
    assert found.one("input", name="status", type="hidden").get("value") == "queued"
    assert browser.ask("GET", "/threads?q=status:flying").status_code == 400
    monkeypatch.setattr("milecastle.server.limits.LOOKED_AT", 1)
    found = browser.page("/threads?q=order-1")
    assert names(found) == ["order-1"], "by the index, though it is the oldest"
    assert "1 found in 1 threads" in found.one("main").text


def test_tabs_have_the_number_of_threads(api: Api, browser: Browser) -> None:
    """Fails if another status or tenant is counted."""
    api.run("fails", 13)
    api.run("asks", 42)
    tabs = browser.page("/threads").one("nav", **{"aria-label": "Views"}).text
    assert tabs.split() == [
        "All",
        "Running",
        "Needs",
        "answer",
        "1",
        "Failed",
        "1",
        "Sleeping",
        "Save",
        "view",
    ]
    other = Browser(api).log_in(token_of(OTHER)).page("/threads")
    assert "1" not in other.one("nav", **{"aria-label": "Views"}).text


def test_jobs_and_schedules_are_listed_only_by_their_names(api: Api, browser: Browser) -> None:
    """Tried: listed with the threads of people, and counted in the tabs."""
    api.run("t", 13)
    for thread in ("bulk@@1", "schedule@@report", "tick@@report@2026-01-01T00:00:00Z"):
        CheckpointStore(api.app.store).__put__(ThreadKey("default", thread), {"n": 1})
    kept = ["tick@@report@2026-01-01T00:00:00Z", "t"]
    assert names(browser.page("/threads")) == kept, "a firing is a run of the user's graph"
    assert names(browser.page("/threads?sort=name")) == kept[::-1]
    assert names(browser.page("/threads?q=b")) == []
    assert names(browser.page("/threads?q=bulk@@")) == ["bulk@@1"]
    assert names(browser.page("/threads?prefix=schedule@@")) == ["schedule@@report"]


def test_view_is_saved_and_removed(api: Api, browser: Browser) -> None:
    """Fails if it has another query, a hostile name is not text, or a cookie breaks a page."""
    fill(api, "order-1", "other")
    name = "mine, <b> & co"
    query = browser.page("/threads?q=order").sent("/views")["query"]
    data = {"csrf": browser.csrf, "name": name, "query": query}
    answer = browser.ask("POST", "/views", data=data)
    assert (answer.status_code, answer.headers["location"]) == (303, "/threads?q=order")
    tabs = browser.page("/threads").one("nav", **{"aria-label": "Views"})
    assert name in tabs.text
    (link,) = [one for one in browser.page("/threads").all("a") if name in one.text]
    assert names(browser.page(link.get("href"))) == ["order-1"]
    for wrong in ({"name": ""}, {"name": "x" * 41}, {"query": "//evil"}, {"query": "?" * 300}):
        assert browser.ask("POST", "/views", data={**data, **wrong}).status_code == 400
    for number in range(11):
        browser.ask("POST", "/views", data={**data, "name": f"view {number}"})
    assert browser.ask("POST", "/views", data={**data, "name": "more"}).status_code == 400
    gone = browser.ask("POST", "/views", data={"csrf": browser.csrf, "remove": name})
    assert gone.headers["location"] == "/threads"
    assert name not in browser.page("/threads").one("main").text
    browser.cookies["milecastle-views"] = "a%3Djavascript%3Ax%26b%3D%2F%2Fevil"
    assert "javascript" not in browser.ask("GET", "/threads").text


def test_scan_for_a_graph_stops_and_says_so(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a page looks at every thread of a tenant."""
    fill(api, *(f"t{number}" for number in range(9)))
    monkeypatch.setattr("milecastle.server.limits.LOOKED_AT", 4)
    found = browser.page("/threads?graph=none&sort=name")
    assert "No match in 4 threads" in found.one("main").text
    assert found.one("a", rel="next").get("href") == "/threads?graph=none&sort=name&after=t3"
    found, seen = browser.page("/threads?graph=none"), 4
    while following := found.all("a", rel="next"):
        assert "No match in 4 threads" in found.one("main").text
        found, seen = browser.page(following[0].get("href")), seen + 4
    assert seen == 12


@pytest.mark.parametrize("prefix", [None, "", "t", "t1", "u", "zz"])
@pytest.mark.parametrize("status", [None, "queued", "interrupted"])
def test_pages_agree_with_a_plain_filter(api: Api, prefix: str | None, status: str | None) -> None:
    """Whatever the size of pages. Fails if the name that is the prefix itself is missed."""
    api.run("t1", 42)
    fill(api, "a", "t", "t10", "t2", "u", "ua")
    lines = [
        (one.thread, one.status)
        for one in thread_page(api.app.store, "default", limit=99, most=99).lines
    ]
    assert len(lines) == 7
    wanted = [
        name for name, found in lines if name.startswith(prefix or "") and status in (None, found)
    ]
    for limit, most in ((1, 99), (2, 3), (99, 1)):
        seen, after, rounds = list[str](), None, 0
        while rounds == 0 or after is not None:
            page = thread_page(
                api.app.store,
                "default",
                status=status,
                prefix=prefix,
                after=after,
                limit=limit,
                most=most,
            )
            seen += [line.thread for line in page.lines]
            after, rounds = page.next, rounds + 1
        assert seen == wanted


def test_hostile_names_are_text(api: Api, browser: Browser) -> None:
    """``Document`` refuses handlers and scripts. Fails if autoescape or ``printable`` is off."""
    fill(api, *HOSTILE)
    response = browser.ask("GET", "/threads")
    assert response.text.replace("\n", "").isprintable()
    found = browser.page("/threads")
    assert "<script>alert(1)</script>" in names(found)
    assert "\\x1b[31mred\\x07" in names(found)
    assert "{{ 7 * 7 }}" in names(found)
    assert len(found.all("script")) == 3
    assert found.all("img") == []
    picked = {one.get("value") for one in found.all("input", name="thread")}
    assert picked == {quote(name, safe="") for name in HOSTILE}
    hostile = quote('"><script>\x1b', safe="")
    for path in (f"/threads?prefix={hostile}", f"/threads?graph={hostile}", f"/{hostile}"):
        shown = browser.ask("GET", path)
        assert "<script>\\" not in shown.text
        assert "\x1b" not in shown.text
        Document(shown.text)


@pytest.mark.parametrize(("name", "count"), [("'" * 507, 25), ("\u202e" * 169, 40), ("plain", 101)])
def test_full_list_is_not_too_large(api: Api, browser: Browser, name: str, count: int) -> None:
    """``page`` refuses more than 300 kB; what has no room is on the next page.

    Fails if rows are counted and their bytes are not.
    """
    fill(api, *(f"{number:03}{name}" for number in range(count)))
    found = browser.page("/threads?sort=name")
    picked = [one.get("value") for one in found.all("input", name="thread")]
    browser.post("/bulk/cancel", {"thread": picked})
    shown = len(names(found))
    while following := found.all("a", rel="next"):
        found = browser.page(following[0].get("href"))
        shown += len(names(found))
    assert shown == count


def test_live_part_is_the_same_without_its_page(api: Api, browser: Browser) -> None:
    """Fails if the script is given a whole page, or the part has another URL."""
    fill(api, "a")
    whole = browser.page("/threads?prefix=a")
    live = whole.one("div", id="live")
    assert live.get("data-live") == "/threads?prefix=a"
    fill(api, "ab")
    part = browser.page(live.get("data-live"), headers={"HX-Request": "true"})
    assert part.elements[0].attributes == live.attributes
    assert names(part) == ["a", "ab"]
    assert part.all("html") == []
    rows = {one.get("id") for one in whole.all("tr") if one.get("id")}
    assert rows < {one.get("id") for one in part.all("tr")}


@pytest.mark.parametrize(
    ("verb", "n", "outcome", "left"),
    [
        ("retry", 13, "queued", ["queued", "completed"]),
        ("cancel", 42, "cancelled", ["cancelled", "completed"]),
        ("delete", 1, "deleted", ["completed"]),
    ],
)
def test_selected_threads_are_changed_after_a_confirmation(
    api: Api, browser: Browser, verb: str, n: int, outcome: str, left: list[str]
) -> None:
    """Fails if it is done without the second page, or to another thread."""
    name = "a\r\n<b>"
    api.app.submit(trip(n)["input"], name)
    api.run("other", 1)
    before = browser.page("/threads").texts("td")
    (box,) = [
        one
        for one in browser.page("/threads").all("input", name="thread")
        if "%" in one.get("value")
    ]
    asked = browser.post(f"/bulk/{verb}", {"thread": box.get("value")})
    assert browser.page("/threads").texts("td") == before
    assert asked.texts("li") == ["a\\r\\n<b>"]
    form = asked.one("form", action=f"/bulk/{verb}")
    fields = asked.sent(f"/bulk/{verb}")
    done = browser.post(form.get("action"), fields)
    assert done.texts("td") == [outcome, ""]
    assert done.commands()[0].startswith(f"milecastle {verb} -- $'a")
    assert browser.page("/threads?sort=name").statuses() == left


def test_refused_threads_are_named_with_the_reason(api: Api, browser: Browser) -> None:
    """Fails if the first refusal ends it, or is not shown."""
    api.run("done", 1)
    api.run("failed", 13)
    fields = {"confirmed": "yes", "thread": ["none", "done", "failed"]}
    done = browser.post("/bulk/retry", fields)
    cells = done.texts("td")
    assert cells[1] == "MC306"
    assert cells[3].startswith("MC")
    assert cells[4:] == ["queued", ""]
    assert browser.ask("POST", "/bulk/retry", data={"csrf": browser.csrf}).status_code == 400


@pytest.mark.parametrize(
    ("verb", "n", "place"),
    [("retry", 13, "/threads/t"), ("cancel", 42, "/threads/t"), ("delete", 13, "/threads")],
)
def test_action_on_a_page_of_a_thread_leads_back(
    api: Api, browser: Browser, verb: str, n: int, place: str
) -> None:
    """Tried: a table of one outcome. What was deleted has no page: the list is shown."""
    api.run("t", n)
    (form,) = browser.page("/threads/t").all("form", id="actions")
    assert form.get("method") == "post"
    fields = {"thread": "t", "opens": "yes"}
    if verb != "retry":
        asked = browser.post(f"/bulk/{verb}", fields)
        assert "/threads/t" in [one.get("href") for one in asked.all("a", **{"class": "btn"})]
        fields = asked.sent(f"/bulk/{verb}")
    data = {**fields, "confirmed": "yes", "csrf": browser.csrf}
    answer = browser.ask("POST", f"/bulk/{verb}", data=data)
    assert (answer.status_code, answer.headers["location"]) == (303, place)
    refused = browser.post(f"/bulk/{verb}", {**data, "thread": "none"})
    assert refused.texts("td")[1].startswith("MC")


def test_reader_sees_no_actions_and_may_not_act(api: Api) -> None:
    """Fails if buttons are shown to those who may not use them."""
    fill(api, "t")
    reader = Browser(api).log_in(token_of("default", "read"))
    found = reader.page("/threads")
    assert not {"Retry", "Cancel", "Delete"} & set(found.texts("button"))
    assert found.all("input", name="thread") == []
    for verb in ("retry", "cancel", "delete"):
        fields = {"thread": "t", "confirmed": "yes"}
        assert "MC602" in reader.post(f"/bulk/{verb}", fields, 403).one("main").text
    runner = Browser(api).log_in(token_of("default", *(ALL_SCOPES - {"admin"})))
    assert "Delete" not in runner.page("/threads").texts("button")
    assert "Retry" in runner.page("/threads").texts("button")


def test_threads_of_another_tenant_are_out_of_reach(api: Api) -> None:
    """Fails if the tenant is not that of the session."""
    api.run("t", 42)
    other = Browser(api).log_in(token_of(OTHER))
    assert names(other.page("/threads?prefix=t")) == []
    for verb in ("retry", "cancel", "delete"):
        done = other.post(f"/bulk/{verb}", {"thread": "t", "confirmed": "yes"})
        assert done.texts("td")[1] == "MC306"
        assert f"--tenant={OTHER}" in done.commands()[0]
    assert api.app.state("t").id


def test_threads_are_filtered_by_tag(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the tag is lost on the next page, in the form, or in the command."""
    monkeypatch.setattr("milecastle.server.pages.threads._ROWS", 2)
    fill(api, "a", "b", "c", "d")
    for thread in "abd":
        api.app.tag(thread, ["eu & us"])
    found = browser.page("/threads?tag=eu+%26+us")
    assert names(found) == ["a", "b"]
    assert found.one("input", name="tag", type="hidden").get("value") == "eu & us"
    assert found.commands() == ["milecastle ls '--tag=eu & us' --limit=2"]
    found = browser.page(found.one("a", rel="next").get("href"))
    assert names(found) == ["d"]
    assert found.one("a", rel="first").get("href") == "/threads?tag=eu+%26+us"
    assert names(browser.page("/threads?tag=us")) == []
    tags = browser.page("/threads?sort=name").all("a", **{"class": "tag"})
    assert [one.get("href") for one in tags] == ["/threads?tag=eu+%26+us"] * 2


def test_job_for_a_status_is_not_offered_beside_a_tag(api: Api, browser: Browser) -> None:
    """Fails if a button of a filtered list would change threads that it does not show."""
    fill(api, "a", "b")
    api.app.tag("a", ["eu"])

    def offered(query: str) -> bool:
        return 'action="/runs/cancel"' in browser.ask("GET", f"/threads?{query}").text

    assert offered("status=queued&graph=trip")
    assert not offered("status=queued&graph=trip&tag=eu")


def test_scan_of_a_tag_stops_and_says_so(
    api: Api, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the store is left to look for a status among all threads of a tag."""
    fill(api, *(f"t{number}" for number in range(9)))
    for number in range(9):
        api.app.tag(f"t{number}", ["eu"])
    monkeypatch.setattr("milecastle.server.limits.LOOKED_AT", 4)
    found = browser.page("/threads?tag=eu&status=failed")
    assert "No match in 4 threads" in found.one("main").text
    assert found.one("a", rel="next").get("href") == "/threads?status=failed&tag=eu&after=t3"


@pytest.mark.parametrize("tag", HOSTILE)
def test_tags_are_shown_escaped(api: Api, browser: Browser, tag: str) -> None:
    """Fails if a tag is put into a page as it is, or its link leads elsewhere."""
    fill(api, "a", "b")
    api.app.tag("a", [tag])
    for path in ("/threads", "/threads/a"):
        found = browser.page(path)
        (link,) = found.all("a", **{"class": "tag"})
        assert link.get("href") == f"/threads?tag={quote_plus(tag)}"
        assert names(browser.page(link.get("href"))) == ["a"]


def test_page_with_many_tags_is_bounded(api: Api, browser: Browser) -> None:
    """Fails if the room that tags take is not counted."""
    many = [f"{number:02}" + "\u202e" * 42 for number in range(32)]
    threads = [f"t{number:02}" for number in range(60)]
    fill(api, *threads)
    for thread in threads:
        api.app.tag(thread, many)
    response = browser.ask("GET", "/threads")
    assert len(response.content) < 300_000
    assert "there are more" in response.text
