"""Values that must not leave, looked for in the answers to every GET of the table of routes.

A new route is asked as well: it cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import httpx
import pytest

from milecastle import END, START, App, Context, InvalidRequest, Keyring, StateGraph, interrupt
from milecastle.fleet.worker import Worker
from milecastle.server import Identity, asgi
from milecastle.server.chat.table import CHAT
from milecastle.server.exchange import Endpoint
from milecastle.server.pages.table import PAGES
from milecastle.server.pages.view import WebPage
from milecastle.server.redaction import redacted
from milecastle.server.routes import ENDPOINTS
from milecastle.stores.memory import MemoryStore
from milecastle.views.documents import ChangeLine, QuestionLine
from tests.unit.server.browsing import HTML, Browser
from tests.unit.server.calling import ADDRESS, OTHER, QUICK, Api, Trip, token_of

SECRET = "sekrit"
HOSTILE = f"<script>{SECRET}</script>\x1b[2J\x1b]0;{SECRET}\x07\u202e\x9b31m"
TABLE: list[Endpoint | WebPage] = [*ENDPOINTS, *PAGES]
READING = [one for one in TABLE if one.method == "GET" and one.scope is not None]


def one_of(*texts: str) -> Any:
    """A type that is made while the graph runs: its schema has values."""
    literal: Any = Literal
    return literal[texts]


def telling() -> StateGraph[Trip]:
    """A graph that repeats what it is given wherever text can be: asks for 1, fails for 2."""
    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")

    @graph.node
    def tell(state: Trip) -> dict[str, Any]:
        text = state["log"][0]
        if state["n"] == 1:
            interrupt({"question": text}, show=text, answer=one_of(text, "other"))
        if state["n"] == 2:
            raise RuntimeError(text) from ValueError(text)
        return {"log": [text]}

    graph.add_edges(START, "tell", END)
    return graph


@pytest.fixture
def secretive(tmp_path: Path) -> Iterator[Api]:
    """Threads that ask, fail and end, with a secret in every value."""
    api = Api(tmp_path)
    fill(api, telling().compile(store=api.app.store), SECRET)
    yield api
    api.close()


def fill(api: Api, app: App[Any], text: str) -> None:
    api.serve(app)
    for name, n in (("asks", 1), ("fails", 2), ("ends", 3)):
        app.submit({"n": n, "log": [text]}, name)
    vars(api)["_runner"].run(Worker([app], QUICK).run_until_idle())


def crawl(api: Api, token: str = token_of("default")) -> dict[str, str]:
    """What every GET answers, of each thread; the streams until their rest."""
    found: dict[str, str] = {}
    for endpoint in READING:
        for thread in ("asks", "fails", "ends"):
            path = endpoint.path.format(thread=thread, graph="trip", job="j", run="r")
            if path.endswith("/events"):
                found[path] = api.follow(path, token=token)
                continue
            query = "?a=1" if path.endswith("/diff") else ""
            found[path] = read(api, path + query, token).text
    assert {path.rpartition("/")[2] for path in found} >= {"history", "diff", "events", "runs"}
    return found


def read(api: Api, path: str, token: str) -> httpx.Response:
    """What a program gets from the API, and a browser from a page."""
    if path.startswith("/v1/") or path == "/metrics":
        return api.ask("GET", path, token=token)
    return api.send("GET", path, {**HTML, "Authorization": f"Bearer {token}"})


def hide(place: str, value: Any) -> Any:
    """A hook that hides everything."""
    return "[hidden]"


def api_status(api: Api, path: str) -> int:
    """How another tenant is answered; a page that was not found repeats only its own URL."""
    return read(api, path, token_of(OTHER)).status_code


def with_secret(found: dict[str, str]) -> set[str]:
    return {path for path, text in found.items() if SECRET in text}


def test_crawl_finds_what_may_be_read(secretive: Api) -> None:
    """The control of those below."""
    found = with_secret(crawl(secretive))
    assert found >= {
        "/v1/threads/asks",
        "/v1/threads/asks/events",
        "/v1/threads/ends/diff",
        "/v1/threads/fails/runs",
        "/v1/questions",
        "/v1/runs",
        "/threads/asks",
        "/threads/ends",
        "/threads/fails",
        "/inbox",
    }


def test_crawl_by_another_tenant_finds_nothing(secretive: Api) -> None:
    """Fails if any route uses another tenant than that of the token."""
    found = crawl(secretive, token_of(OTHER))
    assert with_secret(found) == set()
    names = ('"asks"', '"ends"', "/threads/asks", "/threads/ends")
    told = {path for path, text in found.items() if any(name in text for name in names)}
    assert {path for path in told if not path.startswith("/threads/")} == set()
    assert all(api_status(secretive, path) == 404 for path in told)


def test_crawl_without_the_key_finds_nothing(tmp_path: Path) -> None:
    """Failures are not encrypted, and their messages are shown. Fails if a state is."""
    keyring = Keyring({"k": b"k" * 32}, store=MemoryStore())
    api = Api(tmp_path)
    fill(api, telling().compile(store=api.app.store, encryption=keyring), SECRET)
    assert "/v1/threads/asks" in with_secret(crawl(api))
    api.serve(telling().compile(store=api.app.store))
    kept = {path for path in with_secret(crawl(api)) if "fails" not in path}
    assert kept <= {"/v1/runs"}
    api.close()


def test_hook_hides_every_value(secretive: Api) -> None:
    """Failed with a field left out of the walk through documents, and with events left out."""
    secretive.serve(telling().compile(store=secretive.app.store), redact=hide)
    found = crawl(secretive)
    assert with_secret(found) == set()
    for path in ("/v1/threads/asks", "/v1/threads/ends/diff", "/v1/threads/ends/events", "/inbox"):
        assert "[hidden]" in found[path]


@pytest.mark.parametrize("path", ["/inbox", "/threads/asks/answers"])
@pytest.mark.parametrize("text", [SECRET, "wrong"])
def test_question_whose_choices_are_hidden_is_answered_as_json(
    secretive: Api, path: str, text: str
) -> None:
    """Fails if the form is read by another schema than it was made of, or nothing is checked."""
    app = telling().compile(store=secretive.app.store)
    secretive.serve(app, redact=hide)
    browser = Browser(secretive).log_in(token_of("default"))
    page = browser.page("/inbox" if path == "/inbox" else "/threads/asks")
    names = ("question", "kind", "field")
    fields = [(one.get("name"), one.get("value")) for one in page.all("input", type="hidden")]
    sent = {name: value for name, value in fields if name in names}
    sent |= {"csrf": browser.csrf, "value": f'"{text}"'}
    browser.ask("POST", path, data=sent)
    assert (app.state("asks").status == "queued") is (text == SECRET)


def test_path_of_a_hidden_difference_ends_at_its_channel() -> None:
    """A key may be the value. Broken before: the keys of a hidden dict were in the paths."""
    lines = [
        ChangeLine(path=path, kind="changed", old=1, new=2)
        for path in ("$.card.secret[0]", '$["odd.name"].secret', "$.n")
    ]
    found = [redacted(line, hide).path for line in lines]
    assert found == ["$.card", '$["odd.name"]', "$.n"]
    assert redacted(lines[0], lambda place, value: value).path == "$.card.secret[0]"


def test_why_an_answer_was_refused_is_hidden() -> None:
    """It may quote the answer. Broken before: it was sent as it is."""
    line = QuestionLine(id="1", node="n", question="q", show=None, answer=None, refused="not 7")
    assert redacted(line, hide).refused == "[hidden]"


def test_hook_gets_the_place_of_each_value(secretive: Api) -> None:
    seen: set[str] = set()

    def note(place: str, value: Any) -> Any:
        seen.add(place)
        return "[hidden]" if place.startswith("$.log") else value

    secretive.serve(telling().compile(store=secretive.app.store), redact=note)
    shown = secretive.ask("GET", "/v1/threads/ends").json()
    assert shown["state"] == {"n": 3, "log": "[hidden]"}
    found = crawl(secretive)
    assert SECRET not in found["/v1/threads/ends/diff"]
    assert SECRET in found["/v1/threads/asks"]  # its question
    assert {"$.n", "$.log", "question", "show", "message", "causes"} <= seen


def test_results_and_failures_that_are_waited_for_pass_the_hook(secretive: Api) -> None:
    """Fails if the document of a run that ended or failed is not redacted."""
    secretive.serve(telling().compile(store=secretive.app.store), redact=hide)
    for name, n, status in (("ends", 3, 200), ("fails", 2, 200)):
        key = {"Idempotency-Key": "x"} if n == 2 else {}
        body = {"input": {"n": n, "log": [SECRET]}, "options": {"if_absent": True}}
        path = f"/v1/threads/{name}/runs?wait=30"
        response = secretive.ask("POST", path, json=body, headers=key)
        assert response.status_code == status, response.text
        assert SECRET not in response.text
        assert "[hidden]" in response.text


def test_hook_that_raises_is_a_problem_without_details(secretive: Api) -> None:
    """Fails if what it raises reaches the client, or the value is sent as it is."""

    def broken(place: str, value: Any) -> Any:
        raise ValueError(value)

    secretive.serve(telling().compile(store=secretive.app.store), redact=broken)
    response = secretive.ask("GET", "/v1/threads/ends/diff?a=1")
    assert response.status_code == 500
    assert SECRET not in response.text
    assert "event: state" not in secretive.follow("/v1/threads/ends/events")


def test_hostile_text_is_escaped_json(tmp_path: Path) -> None:
    """Control sequences are never sent as they are, and nothing of it is a page.

    Failed with ``json.dumps``, which leaves the one-byte control sequence introducer as it is.
    """
    api = Api(tmp_path)
    fill(api, telling().compile(store=api.app.store), HOSTILE)
    for path, text in crawl(api).items():
        assert not any(char in text for char in "\x1b\x07\x9b\u202e"), path
    for path in ("/v1/threads/asks", "/v1/threads/fails/runs", "/v1/questions"):
        response = api.ask("GET", path)
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "<script>" in response.text
    problem = api.ask("GET", "/v1/threads?status=%3Cscript%3E")
    assert problem.headers["content-type"] == "application/problem+json"
    api.close()


def by_header(headers: Any) -> Identity | None:
    """A hook that believes a header."""
    user = headers.get("x-user")
    return None if user is None else Identity(user, frozenset({"read"}))


def asked(api: Api, headers: list[tuple[str, str]]) -> httpx.Response:
    found: httpx.Response = vars(api)["_runner"].run(_asked(api, headers))
    return found


async def _asked(api: Api, headers: list[tuple[str, str]]) -> httpx.Response:
    transport = httpx.ASGITransport(app=api.application)
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
        return await client.get("/v1/threads", headers=headers)


def test_proxy_says_who_calls(secretive: Api) -> None:
    """Fails if the hook is not asked, or a header that came twice is believed."""
    secretive.serve(telling().compile(store=secretive.app.store), identify=by_header)
    own = asked(secretive, [("X-User", "default")])
    assert [one["thread"] for one in own.json()["threads"]] == ["asks", "ends", "fails"]
    assert asked(secretive, [("X-User", OTHER)]).json()["threads"] == []
    assert asked(secretive, [("X-User", "default"), ("x-user", OTHER)]).status_code == 401
    assert asked(secretive, []).status_code == 401
    assert secretive.ask("GET", "/v1/threads").status_code == 200  # a token is enough
    headers = {"X-User": "default"}
    refused = secretive.ask("POST", "/v1/threads/asks/cancel", token=None, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "MC602")


def test_server_needs_tokens_or_the_hook(secretive: Api) -> None:
    app = secretive.app
    asgi(app, identify=by_header, worker=False)
    with pytest.raises(InvalidRequest):
        asgi(app, worker=False)


class Word(Enum):
    ONE = SECRET


class Chosen(TypedDict):
    word: Word


@pytest.mark.parametrize("path", ["/graphs/chosen", "/threads"])
def test_choices_of_an_input_pass_the_hook(api: Api, path: str) -> None:
    """Fails if the form of a graph, or its schema, is shown as it is; the control has no hook."""
    graph: StateGraph[Chosen] = StateGraph(Chosen, name="chosen")
    graph.add_node("one", lambda _: {})
    graph.add_edges(START, "one", END)
    app = graph.compile(store=api.app.store)
    for redact, is_shown in ((None, True), (hide, False)):
        api.serve(app, redact=redact)
        browser = Browser(api).log_in(token_of("default"))
        assert (SECRET in browser.ask("GET", path).text) is is_shown
    sent = {"csrf": browser.csrf, "thread": "t", "field": "", "value": f'{{"word": "{SECRET}"}}'}
    assert browser.ask("POST", "/graphs/chosen/runs", data=sent).status_code == 303
    assert app.state("t").status == "queued"


class Planted(TypedDict):
    n: int
    card: NotRequired[dict[str, Any]]
    kind: NotRequired[Literal["sekrit", "other"]]


def planted(store: Any) -> App[Any]:
    """A graph with the secret in every kind of text that is stored, types included."""
    graph: StateGraph[Planted] = StateGraph(Planted, name="trip")

    @graph.node
    def tell(state: Planted, ctx: Context) -> dict[str, Any]:
        ctx.emit({SECRET: SECRET})
        if state["n"] == 1:
            interrupt({SECRET: SECRET}, show={SECRET: SECRET}, answer=one_of(SECRET, "other"))
        if state["n"] == 2:
            raise RuntimeError(SECRET) from ValueError(SECRET)
        return {"card": {SECRET: {SECRET: SECRET}}, "kind": SECRET}

    graph.add_edges(START, "tell", END)
    return graph.compile(store=store)


def hide_most(place: str, value: Any) -> Any:
    """A hook that shows nothing but numbers and the paths of differences."""
    return value if isinstance(value, int) or place == "path" else "[hidden]"


def everything(api: Api, caplog: pytest.LogCaptureFixture) -> dict[str, str]:
    """Every page, answer, stream and problem that the server sends, and what it logs."""
    caplog.clear()
    found = crawl(api)
    run = api.ask("GET", "/v1/threads/asks/runs").json()["runs"][0]["run_id"]
    for endpoint in CHAT:
        for thread in ("asks", "fails", "ends"):
            if endpoint.method == "GET":
                path = endpoint.path.format(thread=thread, graph="trip", run=run, checkpoint="1")
                if not path.endswith(("/stream", "/join")):
                    found[f"{thread} {path}"] = api.ask("GET", path).text
    question = api.ask("GET", "/v1/threads/asks").json()["questions"][0]["id"]
    tries: list[tuple[str, Any]] = [
        ("/v1/threads/asks/answers", {"answers": {question: "wrong"}}),
        ("/v1/threads/asks/runs", {"input": {"n": 3, "kind": "wrong"}}),
        ("/v1/threads/ends/update", {"update": {"kind": 5}}),
        ("/v1/threads/fails/runs?wait=1", {"input": {"n": 2}, "options": {"if_absent": True}}),
        ("/langgraph/threads/search", {}),
        ("/langgraph/threads/ends/history", {}),
        ("/langgraph/threads/asks/runs/wait", {"assistant_id": "trip", "command": {"resume": 7}}),
        ("/agui/trip", {"threadId": "asks", "runId": "r", "messages": [], "state": {"n": 5}}),
    ]
    for path, body in tries:
        found[f"POST {path}"] = api.ask("POST", path, json=body).text
    browser = Browser(api).log_in(token_of("default"))
    page = browser.page("/threads/asks")
    fields = [(one.get("name"), one.get("value")) for one in page.all("input", type="hidden")]
    sent = {name: value for name, value in fields if name in ("question", "kind", "field")}
    sent |= {"csrf": browser.csrf, "value": '"wrong"'}
    for path in ("/threads/asks/answers", "/inbox"):
        found[f"form {path}"] = browser.ask("POST", path, data=sent).text
    form = {
        "csrf": browser.csrf,
        "thread": "new",
        "field": "",
        "value": '{"n": 1, "kind": "wrong"}',
    }
    found["form /graphs"] = browser.ask("POST", "/graphs/trip/runs", data=form).text
    found["log"] = "\n".join(one.getMessage() for one in caplog.records)
    return found


def test_planted_secret_is_found_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In pages, answers, streams, metrics, problems and the server's log lines.

    Found before: keys in the paths on the page of a thread, choices in 422, and types on the page
    of a graph; and, by this test, types in what refuses an update. With each of the three leaks put
    back, it is found again. The control has no hook. Names of threads and tags are no values. A
    worker logs what a node raised: it has no hook.
    """
    api = Api(tmp_path)
    app = planted(api.app.store)
    api.serve(app)
    for name, n in (("asks", 1), ("fails", 2), ("ends", 3)):
        app.submit({"n": n, "card": {SECRET: SECRET}}, name)
    vars(api)["_runner"].run(Worker([app], QUICK).run_until_idle())
    shown = with_secret(everything(api, caplog))
    for path in ("/threads/ends", "/graphs/trip", "POST /v1/threads/asks/answers"):
        assert path in shown
    api.serve(app, redact=hide_most)
    assert with_secret(everything(api, caplog)) == set()
    api.close()
