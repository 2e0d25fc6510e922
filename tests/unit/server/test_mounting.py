"""The server under a path of another application."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from milecastle.server.mounting import mounted_html
from tests.unit.server.browsing import Browser, Document, read
from tests.unit.server.calling import Api, token_of, trip

AT = "/ops/mile castle"
SENT = "/ops/mile%20castle"


@pytest.fixture
def browser(api: Api) -> Browser:
    """One that is logged in by the start URL of a mounted server."""
    setattr(api, "application", Starlette(routes=[Mount(AT, app=api.application)]))  # noqa: B010
    found = Browser(api)
    response = found.ask("GET", f"{SENT}/?token={'start' * 10}")
    assert (response.status_code, response.headers["location"]) == (303, f"{SENT}/overview")
    assert f"Path={SENT};" in response.headers["set-cookie"]
    return found


def links(page: Document) -> list[str]:
    names = ("href", "src", "action", "formaction", "data-live")
    found = [one.get(name) for one in page.elements for name in names if one.get(name)]
    return [link for link in found if not link.startswith("#")]


def test_every_link_leads_back_into_the_server(api: Api, browser: Browser) -> None:
    """Fails if links, files or forms are written without the mount point."""
    key = Api.send(
        api,
        "POST",
        f"{SENT}/v1/threads/a%2Fb/runs",
        {"Authorization": f"Bearer {token_of('default')}"},
        json=trip(42),
    )
    assert key.status_code == 202, key.text
    api.work()
    page = read(browser.ask("GET", f"{SENT}/threads?status=interrupted&prefix=/"))
    assert page.one("input", name="prefix").get("value") == "/"
    page = read(browser.ask("GET", f"{SENT}/threads"))
    assert "a/b" in "".join(page.texts("tr"))
    found = links(page)
    assert len(found) > 9
    assert [link for link in found if not link.startswith(f"{SENT}/")] == []
    for element in page.elements:
        link = element.get("href") or element.get("src")
        if link.startswith("/"):
            assert browser.ask("GET", link).status_code in (200, 303), link


def test_forms_and_redirects_stay_in_the_server(browser: Browser) -> None:
    """Fails if a redirect is written without the mount point, or has it twice."""
    csrf = read(browser.ask("GET", f"{SENT}/login")).all("input", name="csrf")[0].get("value")
    form = {"csrf": csrf, "thread": ["gone"]}
    assert browser.ask("POST", f"{SENT}/bulk/cancel", data=form).status_code == 200
    out = browser.ask("POST", f"{SENT}/logout", data={"csrf": csrf})
    assert (out.status_code, out.headers["location"]) == (303, f"{SENT}/login")
    assert f"Path={SENT};" in out.headers["set-cookie"]
    browser.cookies.clear()
    refused = browser.ask("GET", f"{SENT}/threads?status=failed")
    assert refused.status_code == 401
    page = read(refused)
    fields = {one.get("name"): one.get("value") for one in page.all("input")}
    fields["token"] = token_of("default")
    done = browser.ask("POST", f"{SENT}/login", data=fields)
    assert done.headers["location"] == f"{SENT}/threads?status=failed"


def test_proxy_may_take_off_what_the_host_application_knows(api: Api) -> None:
    """As ``FastAPI(root_path="/outer")``. Fails if the path is looked for with all of it."""
    inner = Starlette(routes=[Mount("/ops", app=api.application)])

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        await inner({**scope, "root_path": "/outer"}, receive, send)

    setattr(api, "application", outer)  # noqa: B010
    response = Browser(api).ask("GET", f"/ops/?token={'start' * 10}")
    assert (response.status_code, response.headers["location"]) == (303, "/outer/ops/overview")


def test_the_description_says_where_the_server_is(browser: Browser) -> None:
    plain = {"Accept": "application/json"}
    start = browser.ask("GET", f"{SENT}/", headers=plain).json()
    assert start["openapi"] == f"{SENT}/v1/openapi.json"
    assert browser.ask("GET", start["openapi"]).json()["servers"] == [{"url": SENT}]


def test_text_that_looks_like_a_link_is_left_as_it_is() -> None:
    """Fails if the text of a page, in which quotes are escaped, or a value is changed."""
    text = '<p title="x">a href=&#34;/b&#34;</p><input value="/c"> <a class="d" href="/e">'
    assert mounted_html(text, "/at") == text.replace('href="/e"', 'href="/at/e"')
    assert mounted_html(text, "") == text


def test_the_host_application_runs_the_worker_by_the_lifespan(api: Api) -> None:
    """Fails if ``lifespan`` does not start the worker."""
    from milecastle.server import asgi

    served = asgi(api.app, token="x" * 32)

    async def use() -> str:
        async with served.lifespan(Starlette()), asyncio.timeout(60):
            return (await (await api.app.asubmit({"n": 1, "log": []}, "t")).aresult()).status

    assert asyncio.run(use()) == "completed"
