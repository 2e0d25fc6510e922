"""The page of workers, of the queue and of its limits."""

from __future__ import annotations

from pathlib import Path

import msgspec.structs

from milecastle.model.run import Owner
from milecastle.ports.claims import ClaimStore
from milecastle.ports.limits import Limit
from milecastle.ports.workers import WorkerInfo
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import OTHER, Api, build, token_of, trip
from tests.unit.server.test_threads_page import HOSTILE, fill

OWNER = Owner(host="here", boot_id="", pid=1, started="")


def shared(api: Api) -> ClaimStore:
    store = api.app.store
    assert isinstance(store, ClaimStore)
    return store


def beat(api: Api, id: str, **more: object) -> str:
    """Say that a worker is alive, which serves our graph; its lane."""
    lane = f"trip@{api.app.graph.fingerprint}"
    info = WorkerInfo(id=id, owner=OWNER, lanes=(lane,), started_at=1, capacity=7)
    shared(api).beat(msgspec.structs.replace(info, **more))
    return lane


def test_workers_queue_and_limits_are_shown(api: Api, browser: Browser) -> None:
    """Fails if a table, a draining worker or a pause is left out."""
    fill(api, "held", "due")
    api.app.submit(trip()["input"], "later", delay=3600)
    lane = beat(api, "w1")
    beat(api, "w2", draining=True)
    (held,) = shared(api).claim("w1", [lane], limit=1)
    shared(api).set_limit(Limit(graph="trip", concurrency=3, rate=5, period=60.0))
    shared(api).set_limit(Limit(tenant="default", paused=True))
    found = browser.page("/workers")
    rows = [one.text.split() for one in found.all("tr")]
    assert ["w1here,", "1", "1", "now"] in [row[:4] for row in rows]
    assert ["w2here,", "1", "Draining"] in [row[:3] for row in rows]
    assert [held.key.thread, "begin"] in [row[:2] for row in rows]
    (queue,) = [row for row in rows if row[:2] == ["trip", api.app.graph.fingerprint[:8]]]
    end = queue.index("fit") + 1
    assert (queue[2], queue[end - 4 : end]) == ("1", ["1", "1", "2", "fit"])
    assert ["trip", "all", "tenants", "together", "3", "5", "in", "60", "s"] in rows
    assert ["every", "graph", "default", "Paused"] in rows
    tiles = [one.text for one in found.all("div", **{"class": "tile"})]
    assert tiles[0] == "Workers alive2 of 2"
    assert tiles[1].startswith("Places used1 of 14")
    assert found.commands() == ["milecastle workers --threads", "milecastle queue"]


def test_lane_without_a_worker_says_so(api: Api, browser: Browser) -> None:
    """Fails if what waits for nobody looks like what waits for its turn."""
    fill(api, "t")
    found = browser.page("/workers")
    assert "No worker is running. 1 run waits for one" in found.one("main").text
    assert "none fits" in found.statuses()
    assert "1 run of trip waits for code that no worker has" in found.one("main").text


def test_live_part_of_workers_is_the_same(api: Api, browser: Browser) -> None:
    """Fails if the script is given a whole page."""
    live = browser.page("/workers").one("div", id="live")
    beat(api, "w1")
    part = browser.page(live.get("data-live"), headers={"HX-Request": "true"})
    assert part.elements[0].attributes == live.attributes
    assert "w1" in part.texts("th")


def test_store_without_a_fleet_says_so(api: Api, browser: Browser, tmp_path: Path) -> None:
    """Fails if the page raises for a store that workers cannot share."""
    app = build().compile(store=f"file://{tmp_path / 'files'}")
    try:
        api.serve(app)
        found = browser.page("/workers")
        assert "no queue that workers share" in found.one("main").text
    finally:
        app.close()


def test_other_tenants_see_workers_and_nothing_else(api: Api) -> None:
    """Fails if threads, lanes or limits of a tenant are shown to another."""
    fill(api, "mine", "due")
    lane = beat(api, "w1")
    shared(api).claim("w1", [lane], limit=1)
    shared(api).set_limit(Limit(graph="ours", tenant="default", paused=True))
    shared(api).set_limit(Limit(graph="each", paused=True))
    found = Browser(api).log_in(token_of(OTHER)).page("/workers")
    shown = found.one("main").text
    assert "w1" in found.texts("th")
    for text in ("mine", "ours", "default"):
        assert text not in shown, text
    assert "each" in found.texts("th")
    assert "Nothing runs." in shown
    assert "Nothing waits." in shown
    assert f"milecastle queue --tenant={OTHER}" in found.commands()


def test_hostile_text_of_workers_is_text(api: Api, browser: Browser) -> None:
    """``Document`` refuses scripts. Fails if an id, a lane or a host is not escaped."""
    fill(api, *HOSTILE)
    lane = beat(api, "<script>\x1b[1m\u202e")
    bad = "<b>\u202e\x1b"
    beat(api, "host", owner=msgspec.structs.replace(OWNER, host=bad))
    beat(api, "lanes", lanes=(f"{bad}@{bad}",))
    shared(api).claim("<script>\x1b[1m\u202e", [lane], limit=9)
    shared(api).set_limit(Limit(graph=bad, paused=True))
    response = browser.ask("GET", "/workers")
    assert response.text.replace("\n", "").isprintable()
    found = browser.page("/workers")
    assert "<script>alert(1)</script>" in found.texts("th")
    assert "<script>\\x1b[1m\\u202e" in found.texts("th")
    assert "<b>\\u202e\\x1b" in found.texts("th")
    assert len(found.all("script")) == 3


def test_many_workers_are_not_too_large(api: Api, browser: Browser) -> None:
    """``page`` refuses more than 300 kB. Fails if every worker is shown."""
    for number in range(60):
        beat(api, f"{number}-{'<' * 400}")
    assert "more are not shown here" in browser.page("/workers").one("main").text


def test_graph_is_paused_and_limited(api: Api, browser: Browser) -> None:
    """Fails if another limit or tenant is changed, or one part of a limit forgets the other."""
    fill(api, "t")
    shared(api).set_limit(Limit(graph="trip", tenant="default", rate=5, period=60.0))

    def send(**fields: str) -> int:
        data = {"csrf": browser.csrf, "graph": "trip", **fields}
        return browser.ask("POST", "/workers", data=data).status_code

    assert send(action="pause") == 303
    assert send(action="limit", concurrency="3") == 303
    (limit,) = shared(api).limits()
    wanted = Limit(graph="trip", tenant="default", rate=5, period=60.0, concurrency=3, paused=True)
    assert limit == wanted
    found = browser.page("/workers")
    assert found.one("input", name="concurrency").get("value") == "3"
    assert "Resume" in found.texts("button")
    assert send(action="resume") == 303
    assert send(action="limit", concurrency="") == 303
    (limit,) = shared(api).limits()
    assert limit == Limit(graph="trip", tenant="default", rate=5, period=60.0)
    assert [send(action="limit", concurrency=text) for text in ("x", "-1")] == [400, 400]
    other = Browser(api).log_in(token_of("default", "read")).page("/workers")
    assert other.all("input", name="concurrency") == []
