"""What holds for every route, read off the table: a new one cannot be forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.server.documents import WaitQuery
from milecastle.server.identity import ALL_SCOPES
from milecastle.server.limits import MOST_BODY, MOST_HEADERS
from milecastle.server.request import Endpoint
from milecastle.server.routes import ENDPOINTS
from tests.unit.server.calling import OTHER, Api, token_of, trip

GUARDED = [endpoint for endpoint in ENDPOINTS if endpoint.scope is not None]
WITH_BODY = [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]
STORING = [endpoint for endpoint in GUARDED if endpoint.stores]
WAITING = [endpoint for endpoint in ENDPOINTS if endpoint.query is WaitQuery and endpoint.body]
OF_THREADS = [endpoint for endpoint in GUARDED if "{thread}" in endpoint.path]

BODIES: dict[str, Any] = {
    "RunRequest": trip(),
    "AnswersRequest": {"answers": {"x": True}},
    "MessageRequest": {"value": 1},
    "RetryRequest": {},
    "ForkRequest": {"at": 1},
    "TagRequest": {"add": ["eu"]},
    "UpdateRequest": {"update": {"n": 5}},
    "BulkRequest": {"status": "failed"},
}


def request_of(endpoint: Endpoint) -> tuple[str, str, dict[str, Any]]:
    """A request that the endpoint understands, about the thread ``t``."""
    path = endpoint.path.format(thread="t", graph="trip", job="j")
    path += "?a=1" if endpoint.path.endswith("/diff") else ""
    body = BODIES[endpoint.body.__name__] if endpoint.body else None
    if endpoint.path == "/v1/runs/cancel":
        body = {"status": "queued"}
    return endpoint.method, path, {} if body is None else {"json": body}


def named(endpoints: list[Endpoint]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("endpoint", endpoints, ids=lambda one: one.name)


def test_only_these_need_no_token() -> None:
    """Fails if a route is added without a scope."""
    assert [one.path for one in ENDPOINTS if one.scope is None] == ["/", "/healthz", "/readyz"]
    assert {one.scope for one in GUARDED} == ALL_SCOPES
    assert len({one.name for one in ENDPOINTS}) == len(ENDPOINTS)


def test_what_changes_a_thread_needs_more_than_read() -> None:
    """Fails if a route that writes has the scope ``read``."""
    writing = [one for one in GUARDED if one.method != "GET"]
    assert len(writing) > 8
    assert [one.name for one in writing if one.scope == "read"] == []
    assert {one.scope for one in GUARDED if one.method == "GET"} == {"read"}


@named(GUARDED)
def test_no_token_or_a_wrong_one_is_refused(api: Api, endpoint: Endpoint) -> None:
    """Fails if ``identify`` is not called for a route."""
    method, path, more = request_of(endpoint)
    for token in (None, "wrong" * 10):
        response = api.ask(method, path, token=token, **more)
        assert (response.status_code, response.json()["code"]) == (401, "MC601")


@named(GUARDED)
def test_token_without_the_scope_is_refused(api: Api, endpoint: Endpoint) -> None:
    """Every other scope is there. Fails if the scope is not compared, or ``admin`` includes it."""
    assert endpoint.scope is not None
    method, path, more = request_of(endpoint)
    token = token_of("default", *(ALL_SCOPES - {endpoint.scope}))
    response = api.ask(method, path, token=token, **more)
    assert (response.status_code, response.json()["code"]) == (403, "MC602")


@named(WAITING)
def test_waiting_needs_the_scope_read_as_well(api: Api, endpoint: Endpoint) -> None:
    """Failed before ``wait`` was looked at: a token without ``read`` was given the state.

    Fails if the run is handed over before it is refused.
    """
    token = token_of("default", *(ALL_SCOPES - {"read"}))
    method, path, more = request_of(endpoint)
    response = api.ask(method, f"{path}?wait=0.1", token=token, **more)
    assert (response.status_code, response.json()["code"]) == (403, "MC602")
    assert "read" in response.json()["detail"]
    assert api.ask("GET", "/v1/threads").json()["threads"] == []
    for query in ("", "?wait=0"):
        assert api.ask(method, f"{path}{query}", token=token, **more).status_code in (202, 404)
    described = api.ask("GET", "/v1/openapi.json").json()["paths"][endpoint.path]["post"]
    assert described["description"].endswith("With wait, it needs the scope read as well.")


@named(OF_THREADS)
def test_thread_of_another_tenant_does_not_exist(api: Api, endpoint: Endpoint) -> None:
    """Fails if a handler uses the tenant of the app instead of that of the token."""
    api.run("t", 42)
    before = api.app.state("t")
    method, path, more = request_of(endpoint)
    response = api.ask(method, path, token=token_of(OTHER), **more)
    if endpoint.name == "POST /v1/threads/{thread}/runs":  # it starts a thread of its own
        assert response.json()["tenant"] == OTHER
        assert response.json()["reused"] is False
    else:
        assert (response.status_code, response.json()["code"]) == (404, "MC306")
    assert api.app.state("t").id == before.id


@pytest.mark.parametrize(
    "path", ["/v1/threads", "/v1/questions", "/v1/runs", "/v1/runs?status=failed"]
)
def test_lists_have_nothing_of_another_tenant(api: Api, path: str) -> None:
    """Fails if a list is that of the app's tenant."""
    api.run("asks", 42)
    api.run("fails", 13)
    own, other = (api.ask("GET", path, token=token_of(one)).json() for one in ("default", OTHER))
    assert own.get("threads") or own.get("runs")
    assert not other.get("threads")
    assert not other.get("runs")
    assert other["tenant"] == OTHER


def test_metrics_have_nothing_of_another_tenant(api: Api) -> None:
    """Fails if the depths of all tenants are shown."""
    api.ask("POST", "/v1/threads/t/runs", json=trip())
    shown = api.ask("GET", "/metrics").text
    assert 'tenant="default"} 1.0' in shown
    assert 'tenant="default"' not in api.ask("GET", "/metrics", token=token_of(OTHER)).text


def test_durations_of_requests_are_shown_by_route_to_the_tenant_of_the_apps(api: Api) -> None:
    """Tried: the path as it was sent, the method as it was sent, and another tenant told."""
    api.run("t", 42)
    api.ask("GET", "/v1/threads/t")
    api.ask("GET", "/v1/threads/other")
    api.ask("GET", "/v1/nothing")
    api.send("FLY", "/v1/threads", {})
    shown = api.ask("GET", "/metrics").text
    name, route = "milecastle_http_request_seconds_count", 'route="/v1/threads/{thread}"'
    assert f'{name}{{method="GET",{route},status="2xx"}} 1' in shown
    assert f'{name}{{method="GET",{route},status="4xx"}} 1' in shown
    assert f'{name}{{method="(other)",route="(other)",status="4xx"}} 1' in shown
    assert f'{name}{{method="(other)",route="/v1/threads",status="4xx"}} 1' in shown
    assert "FLY" not in shown
    assert "nothing" not in shown
    assert name not in api.ask("GET", "/metrics", token=token_of(OTHER)).text


@named(list(ENDPOINTS))
def test_unknown_host_and_foreign_origin_are_refused(api: Api, endpoint: Endpoint) -> None:
    """Fails if a route is answered before Host and Origin are looked at."""
    method, path, more = request_of(endpoint)
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        response = api.ask(method, path, headers=headers, **more)
        assert (response.status_code, response.json()["code"]) == (403, "MC603")


@named(list(ENDPOINTS))
def test_large_headers_are_refused(api: Api, endpoint: Endpoint) -> None:
    """Ten kilobytes, in one header, in many, or in the path. Fails if only values are counted."""
    method, path, more = request_of(endpoint)
    sign = "&" if "?" in path else "?"
    many = {f"x-{number:05}-{'n' * 40}": "v" for number in range(220)}
    for headers, where in (
        ({"x": "v" * 10_240}, path),
        (many, path),
        ({}, f"{path}{sign}{'x' * 10_240}"),
    ):
        response = api.ask(method, where, headers=headers, **more)
        assert (response.status_code, response.json()["code"]) == (431, "MC605")
    assert MOST_HEADERS < 10_240


@named(list(ENDPOINTS))
def test_unknown_and_doubled_parameters_are_refused(api: Api, endpoint: Endpoint) -> None:
    method, path, more = request_of(endpoint)
    sign = "&" if "?" in path else "?"
    for query in ("nothing=1", "limit=1&limit=2"):
        response = api.ask(method, f"{path}{sign}{query}", **more)
        assert (response.status_code, response.json()["code"]) == (400, "MC606")


@named(WITH_BODY)
def test_large_body_is_refused(api: Api, endpoint: Endpoint) -> None:
    """With a length and without one. Fails if only ``Content-Length`` is looked at."""
    method, path, _ = request_of(endpoint)
    kind = {"Content-Type": "application/json"}

    async def chunks() -> Any:
        for _ in range(MOST_BODY // 65_536 + 1):
            yield b" " * 65_536

    for content in (b" " * (MOST_BODY + 1), chunks()):
        response = api.ask(method, path, headers=kind, content=content)
        assert (response.status_code, response.json()["code"]) == (413, "MC605")


@named(WITH_BODY)
def test_body_that_is_not_json_is_refused(api: Api, endpoint: Endpoint) -> None:
    """Forms are what pages of other sites can send without being asked first."""
    method, path, more = request_of(endpoint)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert api.ask(method, path, headers=form, content=b"{}").status_code == 415
    assert api.ask(method, path, content=b"{}").status_code == 415
    kind = {"Content-Type": "application/json"}
    for content in (b"", b"{", b"[]", b'{"no": 1}', b"\xff", b"[" * 100_000):
        response = api.ask(method, path, headers=kind, content=content)
        assert response.status_code == 400, content[:10]
    assert more["json"] is not None


@named(STORING)
def test_store_that_is_away_is_said(api: Api, endpoint: Endpoint) -> None:
    api.run("t")
    api.app.close()
    method, path, more = request_of(endpoint)
    response = api.ask(method, path, **more)
    assert (response.status_code, response.json()["code"]) == (503, "MC403")


def test_other_methods_and_paths_are_refused(api: Api) -> None:
    response = api.ask("PATCH", "/v1/threads/t")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, DELETE")
    assert api.ask("HEAD", "/v1/threads/t/events").status_code == 405
    assert api.ask("GET", "/v2/threads").status_code == 404
    assert api.ask("GET", "/v1/threads/").status_code == 404
    assert api.ask("OPTIONS", "/v1/threads", token=None).status_code == 405
