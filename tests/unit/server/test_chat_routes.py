"""What holds for every endpoint of chat front ends, read off their table: as in ``test_routes.py``.

Each test asks all of them, on one store.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from milecastle import App
from milecastle.fleet.worker import Worker
from milecastle.server.chat.messages import text_of
from milecastle.server.chat.table import CHAT
from milecastle.server.identity import ALL_SCOPES
from milecastle.server.limits import MOST_BODY
from milecastle.server.pages.table import PAGES
from milecastle.server.request import Endpoint
from milecastle.server.routes import ENDPOINTS
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import ADDRESS, OTHER, QUICK, Api, build, token_of, trip

RUN: dict[str, Any] = {"assistant_id": "trip", **trip()}
BODIES: dict[str, Any] = {
    "AgentInput": {"threadId": "t", "runId": "r", "messages": [], "state": trip()["input"]},
    "AssistantsRequest": {},
    "CheckpointRequest": {"checkpoint": {"checkpoint_id": "1"}},
    "HistoryRequest": {},
    "RunInput": RUN,
    "SearchRequest": {},
    "StateUpdate": {"values": {"n": 5}},
    "ThreadInput": {},
}
STARTING = ("run_agent", "stream_run", "wait_for_run", "create_run", "create_thread")
"""Handlers that begin a thread if there is none."""


def request_of(endpoint: Endpoint) -> tuple[str, str, dict[str, Any]]:
    """A request that the endpoint understands, about the thread ``t``."""
    path = endpoint.path.format(thread="t", graph="trip", run="r", checkpoint="1")
    body = BODIES[endpoint.body.__name__] if endpoint.body else None
    return endpoint.method, path, {} if body is None else {"json": body}


def test_each_has_a_scope_and_a_path_of_its_own() -> None:
    """Fails if an endpoint is added without a scope, or hides a page or an endpoint of the API."""
    assert all(one.scope in ALL_SCOPES for one in CHAT)
    paths = {one.path for one in CHAT}
    assert all(path.startswith(("/agui", "/langgraph/")) for path in paths)
    assert not paths & {*(one.path for one in ENDPOINTS), *(one.path for one in PAGES)}
    assert len({one.name for one in CHAT}) == len(CHAT)


def test_what_changes_a_thread_needs_more_than_read() -> None:
    """Fails if an endpoint that writes has only the scope ``read``."""
    reading = {one.handler.__name__ for one in CHAT if one.scope == "read"}
    assert not reading & {*STARTING, "drop_thread", "copy_thread", "post_state", "cancel_run"}
    sending = [one for one in CHAT if one.handler.__name__ in STARTING]
    assert all("read" in one.also for one in sending)


def test_no_token_or_a_wrong_one_is_refused(api: Api) -> None:
    """Fails if ``identify`` is not called, or an empty key is known."""
    for endpoint in CHAT:
        method, path, more = request_of(endpoint)
        for headers in ({}, {"X-Api-Key": "wrong" * 10}, {"X-Api-Key": ""}):
            response = api.ask(method, path, token=None, headers=headers, **more)
            assert (response.status_code, response.json()["code"]) == (401, "MC601")


def test_token_without_a_scope_is_refused_before_the_body_is_read(api: Api) -> None:
    """Every other scope is there. Fails if one of several scopes is enough."""
    for endpoint in CHAT:
        for scope in (endpoint.scope, *endpoint.also):
            assert scope is not None
            token = token_of("default", *(ALL_SCOPES - {scope}))
            method, path, _ = request_of(endpoint)
            response = api.ask(method, path, token=token, content=b"{")
            assert (response.status_code, response.json()["code"]) == (403, "MC602")


def test_answers_need_their_scope(api: Api) -> None:
    """Fails if a token that may run may also answer."""
    api.run("t", 42)
    (asked,) = api.app.state("t").interrupts
    token = token_of("default", *(ALL_SCOPES - {"answer"}))
    entry = {"interruptId": asked.id, "status": "resolved", "payload": True}
    for path, body in (
        ("/agui", {**BODIES["AgentInput"], "resume": [entry]}),
        ("/langgraph/threads/t/runs", {"assistant_id": "trip", "command": {"resume": True}}),
    ):
        response = api.ask("POST", path, token=token, json=body)
        assert (response.status_code, response.json()["code"]) == (403, "MC602")
    assert api.app.state("t").interrupts == (asked,)


def test_thread_of_another_tenant_does_not_exist(api: Api) -> None:
    """Fails if a handler uses the tenant of the app instead of that of the token."""
    api.run("t", 42)
    before = api.app.state("t")
    for endpoint in (one for one in CHAT if "{thread}" in one.path):
        method, path, more = request_of(endpoint)
        if endpoint.handler.__name__ in STARTING:
            continue
        response = api.ask(method, path, token=token_of(OTHER), **more)
        if endpoint.handler.__name__ == "get_history":  # a thread that was not run has none
            assert response.json() == []
        else:
            assert response.status_code == 404
            assert response.json()["code"] in ("MC306", "MC604")
    created = api.ask("POST", "/langgraph/threads/t/runs", token=token_of(OTHER), json=RUN)
    assert created.status_code == 200
    searched = api.ask("POST", "/langgraph/threads/search", token=token_of(OTHER), json={})
    assert [one["values"]["n"] for one in searched.json()] == [1]
    assert api.app.state("t").id == before.id


def test_unknown_host_and_foreign_origin_are_refused(api: Api) -> None:
    """A page of another site cannot use a chat endpoint. There is no CORS here, too."""
    for endpoint in CHAT:
        method, path, more = request_of(endpoint)
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            response = api.ask(method, path, headers=headers, **more)
            assert (response.status_code, response.json()["code"]) == (403, "MC603")


def test_large_requests_are_refused(api: Api) -> None:
    kind = {"Content-Type": "application/json"}
    for endpoint in CHAT:
        method, path, more = request_of(endpoint)
        assert api.ask(method, path, headers={"x": "v" * 10_240}, **more).status_code == 431
        if endpoint.body is not None:
            large = b" " * (MOST_BODY + 1)
            assert api.ask(method, path, headers=kind, content=large).status_code == 413


def test_unreadable_requests_are_refused(api: Api) -> None:
    """Fails if a field or a parameter that has no effect here is accepted."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    kind = {"Content-Type": "application/json"}
    for endpoint in CHAT:
        method, path, more = request_of(endpoint)
        assert api.ask(method, f"{path}?nothing=1", **more).status_code == 400
        if endpoint.body is None:
            continue
        assert api.ask(method, path, headers=form, content=b"{}").status_code == 415
        for content in (b"", b"{", b"[]", b'{"no": 1}', b"\xff", b"[" * 100_000):
            assert api.ask(method, path, headers=kind, content=content).status_code == 400


def test_text_is_read_as_json_only_with_a_token(api: Api, browser: Browser) -> None:
    """The proxy of the front end sends it. Fails if a page can send it with a cookie, too."""
    text = {"Content-Type": "text/plain;charset=UTF-8"}
    path = "/langgraph/threads/search"
    for headers in ({"X-Api-Key": token_of("default")}, {}):
        token = None if headers else token_of("default")
        found = api.ask("POST", path, token=token, headers={**headers, **text}, content=b"{}")
        assert found.json() == []
    assert api.ask("POST", "/agui", headers=text, content=b"{}").status_code == 415
    assert browser.ask("POST", path, headers={**text}, content=b"{}").status_code == 415
    kind = {"Content-Type": "application/json"}
    assert browser.ask("POST", path, headers=kind, content=b"{}").json() == []


def test_store_that_is_away_is_said(api: Api) -> None:
    api.run("t")
    api.app.close()
    for endpoint in (one for one in CHAT if one.stores):
        method, path, more = request_of(endpoint)
        response = api.ask(method, path, **more)
        assert (response.status_code, response.json()["code"]) == (503, "MC403"), endpoint.name


def test_values_pass_the_hook_before_they_leave(api: Api) -> None:
    """Fails if an endpoint shows what the hook hides, or hides it twice."""

    def hide(place: str, value: Any) -> Any:
        return "[hidden]" if place in ("$.n", "question") else value

    api.ask("POST", "/v1/threads/t/runs", json={**trip(42), "key": "r"})
    api.work()
    run = api.app.state("t").run_id
    api.serve(api.app, redact=hide)
    body = {**BODIES["AgentInput"], "state": {"n": "[hidden]"}}
    seen = [
        api.ask("POST", "/agui", json=body).text,
        api.ask("GET", "/langgraph/threads/t").text,
        api.ask("GET", "/langgraph/threads/t/state").text,
        api.ask("POST", "/langgraph/threads/t/history", json={}).text,
        api.ask("POST", "/langgraph/threads/search", json={}).text,
        api.ask("GET", f"/langgraph/threads/t/runs/{run}/join").text,
        api.ask("GET", f"/langgraph/threads/t/runs/{run}/stream").text,
    ]
    for text in seen:
        assert "[hidden]" in text
        assert "43" not in text.replace(run, "").replace("T", " ").split('"n": ')[1][:12]
        assert "sure?" not in text


def test_location_is_below_the_url_of_the_client(api: Api) -> None:
    """SDKs put it behind the URL that they were given.

    Fails if the modes are not in it: SDKs forget them when they come back.
    """
    api.run("a%2Fb")
    run = api.app.state("a/b").run_id
    path = f"/langgraph/threads/a%2Fb/runs/{run}"
    found = api.ask("GET", f"{path}/stream?stream_mode=values&stream_mode=custom")
    place = f"/threads/a%2Fb/runs/{run}"
    assert found.headers["content-location"] == place
    assert found.headers["location"] == f"{place}/stream?stream_mode=values&stream_mode=custom"
    assert api.ask("GET", f"{path}/stream?stream_mode=nothing").status_code == 400
    for wrong in ("x", "-2", "99"):
        headers = {"Last-Event-ID": wrong}
        assert api.ask("GET", f"{path}/stream", headers=headers).status_code == 400


def test_location_does_not_have_the_mount_point(api: Api) -> None:
    """It is in the URL of the client. Fails if it is put before it, as before a redirect."""
    api.app.invoke({"n": 1, "log": []}, "t")
    path = f"/langgraph/threads/t/runs/{api.app.state('t').run_id}"
    headers = {"X-Api-Key": token_of("default")}

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=api.application, root_path="/mounted")
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            return await client.get(f"/mounted{path}/stream", headers=headers)

    assert asyncio.run(ask()).headers["location"].startswith("/threads/t/runs/")


def test_reader_cannot_cancel_by_hanging_up(api: Api) -> None:
    """Failed: a token with the scope ``read`` cancelled any run."""
    run = api.ask("POST", "/v1/threads/t/runs", json=trip()).json()["run_id"]
    path = f"/langgraph/threads/t/runs/{run}/stream?cancel_on_disconnect=true"
    refused = api.ask("GET", path, token=token_of("default", "read"))
    assert (refused.status_code, refused.json()["code"]) == (403, "MC602")
    assert api.ask("GET", "/v1/threads/t").json()["status"] == "queued"


def test_refused_command_does_not_take_a_thread_back(api: Api) -> None:
    """Failed: the scope was looked at after the fork, which closed the open question."""
    api.run("t", 42)
    history = api.ask("GET", "/v1/threads/t/history").json()["checkpoints"]
    first = history[-1]["id"]
    command = {"assistant_id": "trip", "command": {"resume": True}, "checkpoint_id": first}
    token = token_of("default", *(ALL_SCOPES - {"answer"}))
    refused = api.ask("POST", "/langgraph/threads/t/runs/wait", json=command, token=token)
    assert refused.status_code == 403
    assert api.ask("GET", "/v1/threads/t/history").json()["checkpoints"] == history


def test_request_of_another_graph_changes_nothing(api: Api) -> None:
    """Failed: the run of the other graph was discarded, and its question lost."""
    other = build("other").compile(store=api.app.store)
    api.serve(api.app, other)
    api.ask("POST", "/v1/threads/t/runs", json={**trip(42), "graph": "trip"})
    api.work()
    before = api.ask("GET", "/v1/threads/t").json()
    question = before["questions"][0]["id"]
    input, answer = trip()["input"], {"interruptId": question, "status": "resolved"}
    command = {"assistant_id": "other", "command": {"resume": True}}
    back = {"assistant_id": "other", "checkpoint_id": before["checkpoint"]["id"]}
    agent: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": []}
    cancel = {"input": input, "graph": "other", "options": {"if_busy": "cancel"}}
    for path, body in (
        ("/v1/threads/t/runs", cancel),
        ("/langgraph/threads/t/runs/wait", {"assistant_id": "other", "input": input}),
        ("/langgraph/threads/t/runs/wait", command),
        ("/langgraph/threads/t/runs/wait", back),
        ("/agui/other", {**agent, "state": input}),
        ("/agui/other", {**agent, "resume": [{**answer, "payload": True}]}),
        ("/agui/other", {**agent, "resume": [{**answer, "status": "cancelled"}]}),
    ):
        response = api.ask("POST", path, json=body)
        assert response.status_code in (400, 409), (path, body, response.text)
    assert api.ask("GET", "/v1/threads/t").json() == before


def test_message_with_an_id_that_is_not_text_is_refused(api: Api) -> None:
    """Failed: it was answered with 500."""
    message: dict[str, Any] = {"id": [], "role": "user"}
    body = {"threadId": "t", "runId": "r", "messages": [message]}
    response = api.ask("POST", "/agui", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "MC302")


def test_run_that_cannot_be_started_is_refused(api: Api) -> None:
    """Fails if one of them starts a run, or is answered with 500."""
    api.run("asks", 42)
    api.run("ends")
    before = api.ask("GET", "/langgraph/threads/asks/state").json()
    new, asks = ("/langgraph/threads/new/runs", "/langgraph/threads/asks/runs")
    command: dict[str, Any] = {"assistant_id": "trip", "command": {"resume": True}}
    refused: tuple[tuple[str, dict[str, Any], int, str], ...] = (
        (new, {**RUN, "assistant_id": "other"}, 404, "does not have the graph"),
        (new, {**RUN, "if_not_exists": "reject"}, 404, "there is no such thread"),
        (asks, {**command, **trip()}, 400, "an input or a command, not both"),
        (asks, {"assistant_id": "trip", "command": {}}, 400, "resume, or goto the end"),
        ("/langgraph/threads/ends/runs", command, 400, "has 0 open questions"),
    )
    for path, body, status, said in refused:
        response = api.ask("POST", path, json=body)
        assert (response.status_code, said in response.text) == (status, True), response.text
    assert api.ask("GET", "/langgraph/threads/asks/state").json() == before
    assert api.ask("GET", "/langgraph/threads/new").status_code == 404


def test_run_without_input_retries_the_thread(api: Api) -> None:
    """Fails if no input is an empty one: the node would be begun again with it."""
    api.run("t", 13)
    assert api.app.state("t").status == "failed"
    body = {"assistant_id": "trip", "input": None}
    assert api.ask("POST", "/langgraph/threads/t/runs", json=body).status_code == 200
    api.work()
    runs = api.app.store.runs(api.app.store.threads("default")[0].key)
    assert [one.retry_count for one in runs] == [1, 0]


def test_cancelling_a_run_that_another_replaced_leaves_that_one(api: Api) -> None:
    """Fails if the thread's present run is cancelled for an older one."""
    api.run("t")
    ended = api.app.state("t").run_id
    api.ask("POST", "/v1/threads/t/runs", json={**trip(), "key": "again"})
    assert api.ask("POST", f"/langgraph/threads/t/runs/{ended}/cancel").status_code == 202
    assert api.ask("GET", "/v1/threads/t").json()["status"] == "queued"


def test_thread_that_exists_is_created_only_if_asked_to_do_nothing(api: Api) -> None:
    """Fails if a client believes that it has begun a thread that others use."""
    api.run("t")
    body = {"thread_id": "t"}
    for more in ({}, {"if_exists": "raise"}):
        refused = api.ask("POST", "/langgraph/threads", json={**body, **more})
        assert (refused.status_code, "thread 't' exists" in refused.text) == (400, True)
    found = api.ask("POST", "/langgraph/threads", json={**body, "if_exists": "do_nothing"})
    assert found.json()["values"]["n"] == 2


def test_threads_are_searched_page_by_page(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the search ends with its first page."""
    for name in "abc":
        api.run(name)
    monkeypatch.setattr("milecastle.server.chat.langgraph.threads._PAGE", 1)
    found = api.ask("POST", "/langgraph/threads/search", json={}).json()
    assert [one["thread_id"] for one in found] == ["c", "b", "a"]


def test_messages_for_a_graph_without_messages_are_refused(api: Api) -> None:
    """Fails if they are dropped, and the run is begun without what was said."""
    message = {"id": "1", "role": "user", "content": "hello"}
    body = {**BODIES["AgentInput"], "messages": [message]}
    refused = api.ask("POST", "/agui", json=body)
    assert (refused.status_code, "has no messages" in refused.text) == (400, True)


def test_interrupts_partly_resolved_and_partly_cancelled_are_refused(api: Api) -> None:
    """Fails if the ones that were cancelled are left open, or answered."""
    api.run("t", 42)
    (asked,) = api.app.state("t").interrupts
    entries = [
        {"interruptId": asked.id, "status": "resolved", "payload": True},
        {"interruptId": "another", "status": "cancelled"},
    ]
    refused = api.ask("POST", "/agui", json={**BODIES["AgentInput"], "resume": entries})
    assert (refused.status_code, "send one kind" in refused.text) == (400, True)
    assert api.app.state("t").interrupts == (asked,)


def test_breakpoint_is_left_by_resolving_it(api: Api) -> None:
    """Fails if it is taken for a question, which the thread does not have."""
    app = build().compile(store=api.app.store, interrupt_before=["begin"])
    api.serve(app)
    app.submit({"n": 1, "log": []}, "t")
    api.work(app)
    assert app.state("t").status == "interrupted"
    entry = {"interruptId": "breakpoint", "status": "resolved"}
    body = {**BODIES["AgentInput"], "state": None, "resume": [entry]}
    api.run_on_loop(_resolve_while_working(api, app, body))
    assert app.state("t").state["n"] == 2


async def _resolve_while_working(api: Api, app: App[Any], body: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {token_of('default')}"}
    transport = httpx.ASGITransport(app=api.application)
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
        asked = asyncio.ensure_future(client.post("/agui", json=body, headers=headers))
        while app.state("t").status == "interrupted" and not asked.done():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        await Worker([app], QUICK).run_until_idle()
        assert "RUN_FINISHED" in (await asked).text


def test_text_of_parts_is_joined() -> None:
    """Fails if what a model said in parts is lost: a search would not find it."""
    parts = [{"type": "text", "text": "one "}, "two", {"type": "image"}, [{"text": " three"}], 4]
    assert text_of(parts) == "one two three"
