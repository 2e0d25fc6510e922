"""Every status that the table of routes documents is answered, and no other (``check_documented``).

Those that hold for many routes are in ``test_routes.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import jwt
import pytest

from milecastle import App, CheckpointStore, Keyring, Retention
from milecastle.server.access import Access
from milecastle.server.application import Application
from milecastle.server.oidc.issuer import Issuer
from milecastle.server.oidc.settings import Oidc
from milecastle.server.routes import ENDPOINTS
from milecastle.server.service import Service
from milecastle.stores.offloading import SharedObjects, offload
from tests.oidc_issuer import rsa_key
from tests.unit.server.calling import Api, Trip, build, trip

THREAD = "/v1/threads/{thread}"
GENERAL = {400, 401, 403, 413, 415, 431, 503}
"""Shown for each route in ``test_routes.py``."""

Recipe = Callable[[Api], httpx.Response]
RECIPES: dict[tuple[str, int], Recipe] = {}


def recipe(name: str, status: int) -> Callable[[Recipe], Recipe]:
    """Says that a function gets this status from this endpoint."""

    def known(function: Recipe) -> Recipe:
        RECIPES[name, status] = function
        return function

    return known


def plain(name: str, path: str, *, status: int = 200, n: int | None = None, **more: Any) -> None:
    """A recipe of one request, perhaps about a thread ``t`` that was run before."""

    def asked(api: Api) -> httpx.Response:
        if n is not None:
            api.run("t", n)
        return api.ask(name.partition(" ")[0], path, **more)

    RECIPES[name, status] = asked


plain("GET /", "/")
plain("GET /", f"/?token={'start' * 10}", status=303)
plain("GET /", "/", status=401, token=None)
plain("GET /healthz", "/healthz", token=None)
plain("GET /readyz", "/readyz", token=None)
plain("GET /metrics", "/metrics")
plain("GET /v1/openapi.json", "/v1/openapi.json")
plain("GET /v1/graphs", "/v1/graphs")
plain("GET /v1/graphs/{graph}", "/v1/graphs/trip")
plain("GET /v1/graphs/{graph}", "/v1/graphs/nothing", status=404)
plain("GET /v1/threads", "/v1/threads", n=1)
plain("GET /v1/questions", "/v1/questions", n=42)
plain("GET /v1/runs", "/v1/runs", n=1)
plain("GET /v1/jobs/{job}", "/v1/jobs/nothing", status=404)
plain("POST /v1/runs/retry", "/v1/runs/retry", status=202, json={"status": "failed"})
plain("POST /v1/runs/cancel", "/v1/runs/cancel", status=202, json={"status": "queued"})
plain("POST /v1/runs/delete", "/v1/runs/delete", status=202, json={"status": "completed"})
for ending, query in (
    ("", ""),
    ("/state", ""),
    ("/history", ""),
    ("/diff", "?a=1"),
    ("/runs", ""),
    ("/messages", ""),
    ("/answers", ""),
):
    plain(f"GET {THREAD}{ending}", f"/v1/threads/t{ending}{query}", n=1)
    plain(f"GET {THREAD}{ending}", f"/v1/threads/none{ending}{query}", status=404)
plain(f"GET {THREAD}/events", "/v1/threads/none/events", status=404)
plain(f"DELETE {THREAD}", "/v1/threads/t", n=1)
plain(f"DELETE {THREAD}", "/v1/threads/none", status=404)
plain(f"POST {THREAD}/runs", "/v1/threads/t/runs", status=202, json=trip())
plain(f"POST {THREAD}/runs", "/v1/threads/t/runs?wait=5", n=1, json=trip())
plain(f"POST {THREAD}/answers", "/v1/threads/none/answers", status=404, json={"answers": {"x": 1}})
plain(
    f"POST {THREAD}/answers", "/v1/threads/t/answers", status=409, n=1, json={"answers": {"x": 1}}
)
plain(f"POST {THREAD}/retry", "/v1/threads/t/retry", status=202, n=13, json={})
plain(f"POST {THREAD}/retry", "/v1/threads/none/retry", status=404, json={})
plain(f"POST {THREAD}/retry", "/v1/threads/t/retry", status=409, n=1, json={})
plain(f"POST {THREAD}/cancel", "/v1/threads/t/cancel", n=42)
plain(f"POST {THREAD}/cancel", "/v1/threads/none/cancel", status=404)
plain(f"POST {THREAD}/fork", "/v1/threads/t/fork", n=1, json={"at": 1, "as_thread": "u"})
plain(f"POST {THREAD}/fork", "/v1/threads/t/fork", status=404, n=1, json={"at": 99})
plain(f"POST {THREAD}/tags", "/v1/threads/t/tags", n=1, json={"add": ["eu"]})
plain(f"POST {THREAD}/tags", "/v1/threads/none/tags", status=404, json={"add": ["eu"]})
plain(f"POST {THREAD}/update", "/v1/threads/t/update", n=42, json={"update": {"n": 5}})
plain(f"POST {THREAD}/update", "/v1/threads/none/update", status=404, json={"update": {"n": 5}})


def nested(depth: int) -> list[Any]:
    """A list that cannot be stored if it is deep."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


DEEP = {"n": 1, "log": nested(500)}
plain(f"POST {THREAD}/runs", "/v1/threads/t/runs", status=422, json={"input": DEEP})
plain(f"POST {THREAD}/update", "/v1/threads/t/update", status=422, n=42, json={"update": DEEP})
RESULT = f"GET {THREAD}/result"
plain(RESULT, "/v1/threads/t/result?wait=5", n=1)
plain(RESULT, "/v1/threads/t/result", status=202, n=1)
plain(RESULT, "/v1/threads/none/result", status=404)
MESSAGES = "/v1/threads/t/messages"
plain(f"POST {THREAD}/messages", MESSAGES, n=42, json={"value": {"x": 1}, "topic": "go"})
plain(f"POST {THREAD}/messages", "/v1/threads/none/messages", status=404, json={"value": 1})
plain(f"POST {THREAD}/messages", MESSAGES, status=422, n=42, json={"value": nested(500)})


def with_key(api: Api, key: bytes | None) -> App[Trip]:
    """An app on the same store, with this key or without one."""
    keyring = None if key is None else Keyring({"k": key}, store=api.keys)
    return build().compile(store=api.app.store, encryption=keyring)


def locked(name: str, path: str, **more: Any) -> None:
    """Two recipes: a thread ``t`` is encrypted, and the server has no key, or a wrong one."""

    def asked(key: bytes | None) -> Recipe:
        def known(api: Api) -> httpx.Response:
            app = with_key(api, b"k" * 32)
            app.invoke({"n": 42, "log": []}, "t")
            app.send("t", 1)
            if path.endswith("/answers"):
                app.resume("t", True)
            api.serve(with_key(api, key))
            return api.ask(name.partition(" ")[0], path, **more)

        return known

    RECIPES[name, 409] = asked(None)
    RECIPES[name, 500] = asked(b"w" * 32)


locked(f"GET {THREAD}/diff", "/v1/threads/t/diff?a=1")
locked(f"GET {THREAD}/state", "/v1/threads/t/state")
locked(f"GET {THREAD}/messages", MESSAGES)
locked(f"GET {THREAD}/answers", "/v1/threads/t/answers")
locked(RESULT, "/v1/threads/t/result?wait=5")


@recipe(f"POST {THREAD}/messages", 500)
def message_with_a_wrong_key(api: Api) -> httpx.Response:
    with_key(api, b"k" * 32).invoke({"n": 42, "log": []}, "t")
    api.serve(with_key(api, b"w" * 32))
    return api.ask("POST", MESSAGES, json={"value": 1})


locked(f"GET {THREAD}/events", "/v1/threads/t/events")
locked(f"POST {THREAD}/cancel", "/v1/threads/t/cancel")
locked(f"POST {THREAD}/fork", "/v1/threads/t/fork", json={"at": 1})
locked(f"POST {THREAD}/update", "/v1/threads/t/update", json={"update": {"n": 5}})


def locked_job(api: Api, writer: bytes | None, reader: bytes) -> httpx.Response:
    """A job of a server with one key, asked of a server with another."""
    api.serve(with_key(api, writer))
    job = api.ask("POST", "/v1/runs/retry", json={"status": "failed"}).json()["job"]
    api.serve(with_key(api, reader))
    return api.ask("GET", f"/v1/jobs/{job}")


@recipe(f"POST {THREAD}/messages", 409)
def _(api: Api) -> httpx.Response:
    api.run("t", 42)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milecastle.ports.mailbox.MOST_UNREAD", 0)
        return api.ask("POST", MESSAGES, json={"value": 1})


@recipe(f"GET {THREAD}/history", 409)
def _(api: Api) -> httpx.Response:
    """Its older checkpoints are archived, and the store of the server has no object storage."""
    api.run("t", 1)
    store = offload(api.app.store, SharedObjects("memory:///"))
    CheckpointStore(store).apply_retention("default", Retention(archive_after=timedelta(0)))
    newest = api.ask("GET", "/v1/threads/t/history").json()
    return api.ask("GET", f"/v1/threads/t/history?before={newest['next']}")


@recipe("GET /v1/jobs/{job}", 409)
def _(api: Api) -> httpx.Response:
    return locked_job(api, None, b"k" * 32)


@recipe("GET /v1/jobs/{job}", 500)
def _(api: Api) -> httpx.Response:
    return locked_job(api, b"k" * 32, b"w" * 32)


@recipe("GET /", 503)
def _(api: Api) -> httpx.Response:
    """The issuer of the token does not answer: nothing listens at its address."""
    issuer = Issuer(Oidc(issuer="http://127.0.0.1:1", audience="api"))
    api.application = Application(Service([api.app], worker=False), Access((), issuer=issuer))
    token = jwt.encode({}, rsa_key(), "RS256")
    return api.ask("GET", "/", token=token)


@recipe("GET /readyz", 503)
def _(api: Api) -> httpx.Response:
    api.app.close()
    return api.ask("GET", "/readyz", token=None)


@recipe(f"POST {THREAD}/runs", 409)
def _(api: Api) -> httpx.Response:
    api.ask("POST", "/v1/threads/t/runs", json=trip(1))
    return api.ask("POST", "/v1/threads/t/runs", json=trip(2))


@recipe("GET /v1/jobs/{job}", 200)
def _(api: Api) -> httpx.Response:
    job = api.ask("POST", "/v1/runs/retry", json={"status": "failed"}).json()["job"]
    return api.ask("GET", f"/v1/jobs/{job}")


def question(api: Api) -> str:
    """The id of the question of a thread ``t``."""
    api.run("t", 42)
    (found,) = api.app.state("t").interrupts
    return found.id


@recipe(f"POST {THREAD}/answers", 202)
def _(api: Api) -> httpx.Response:
    return api.ask("POST", "/v1/threads/t/answers", json={"answers": {question(api): True}})


@recipe(f"POST {THREAD}/answers", 422)
def _(api: Api) -> httpx.Response:
    return api.ask("POST", "/v1/threads/t/answers", json={"answers": {question(api): "perhaps"}})


def test_each_documented_status_has_a_recipe() -> None:
    """Fails if a status is documented that nobody has seen, and if one is shown that is not.

    What needs a worker beside the server is in ``tests/acceptance/server``.
    """
    documented = {
        (endpoint.name, status)
        for endpoint in ENDPOINTS
        for status in (*endpoint.answers, *endpoint.problems)
    }
    elsewhere = {(name, status) for name, status in documented if (name, status) in ELSEWHERE}
    general = {(n, status) for n, status in documented if status in GENERAL and n != "GET /"}
    missing = documented - set(RECIPES) - elsewhere - general
    assert missing == set()
    assert set(RECIPES) - documented == set()
    assert set(ELSEWHERE) <= documented


ELSEWHERE = {
    (f"POST {THREAD}/answers", 200): "test_api.py: answered with wait",
    (f"POST {THREAD}/answers", 500): "test_api.py: a run that fails after its answer, with wait",
    (f"POST {THREAD}/retry", 200): "test_api.py: resumed with wait",
    (f"POST {THREAD}/runs", 500): "test_api.py: a run that fails, with wait",
    (f"POST {THREAD}/retry", 500): "test_api.py: a run that fails again, with wait",
    (f"GET {THREAD}/events", 200): "test_events.py",
    (f"POST {THREAD}/tags", 409): "test_handlers.py: its run commits all the time",
    (f"DELETE {THREAD}", 409): "test_api.py: while a worker runs it",
}


@pytest.mark.parametrize(("name", "status"), RECIPES, ids=lambda one: str(one))
def test_documented_status_is_answered(api: Api, name: str, status: int) -> None:
    """Failed for threads that cannot be decrypted or stored before their statuses were listed."""
    response = RECIPES[name, status](api)
    assert response.status_code == status, response.text
