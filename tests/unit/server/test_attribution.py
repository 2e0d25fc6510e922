"""Answers over HTTP and on pages are stored with the authenticated caller."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle import Actor
from milecastle.model.actor import AnswerRecord
from milecastle.server.access import Access
from milecastle.server.application import Application
from milecastle.server.identity import ALL_SCOPES, Identity
from milecastle.server.service import Service
from tests.unit.server.browsing import Browser
from tests.unit.server.calling import Api

ANN, BOB = "ann" * 20, "bob" * 20
PATH = "/v1/threads/t/answers"


@pytest.fixture
def question(api: Api) -> str:
    """An open question of a server for Ann, whose token has a name, and Bob, whose has none."""
    tokens = [
        (ANN, Identity("default", ALL_SCOPES, "ann")),
        (BOB, Identity("default", ALL_SCOPES)),
    ]
    api.run("t", 42)
    api.application = Application(Service([api.app], worker=False), Access(tokens))
    (asked,) = api.app.state("t").interrupts
    return asked.id


def only(api: Api) -> AnswerRecord:
    (found,) = api.app.answers("t")
    return found


def test_answer_is_stored_with_the_name_of_its_token(api: Api, question: str) -> None:
    """Tried: no actor passed on; the second name in place of the first."""
    (asked,) = api.ask("GET", "/v1/threads/t", token=ANN).json()["questions"]
    more = {"reason": "checked", "on_behalf_of": "eve", "shown": asked["digest"]}
    body = {"answers": {question: True}, **more}
    assert api.ask("POST", PATH, token=ANN, json=body).status_code == 202
    assert only(api).by == Actor("ann", "authenticated", "checked", on_behalf_of="eve")
    assert only(api).digest == asked["digest"]


@pytest.mark.parametrize(
    "claim",
    [
        {"by": "ann"},
        {"by": {"id": "ann", "how": "authenticated"}},
        {"id": "ann"},
        {"how": "authenticated"},
        {"on_behalf_of": {"id": "ann", "how": "authenticated"}},
    ],
)
def test_body_cannot_claim_another_caller(api: Api, question: str, claim: Any) -> None:
    """Tried: the second name in place of the caller's."""
    body = {"answers": {question: True}, **claim}
    assert api.ask("POST", PATH, token=BOB, json=body).status_code == 400
    assert api.app.answers("t") == []
    body = {"answers": {question: True}, "on_behalf_of": "ann"}
    assert api.ask("POST", PATH, token=BOB, json=body).status_code == 202
    by = only(api).by
    assert by is not None
    assert (by.id.partition(":")[0], by.how, by.on_behalf_of) == ("token", "authenticated", "ann")


def test_token_without_a_name_is_a_digest_that_signs_nothing(api: Api, question: str) -> None:
    """Tried: the start of the token's hash, which is the key of its sessions."""
    from hashlib import sha256

    api.ask("POST", PATH, token=BOB, json={"answers": {question: True}})
    by = only(api).by
    assert by is not None
    name = by.id.removeprefix("token:")
    assert len(name) == 12
    assert name not in BOB
    assert name not in sha256(BOB.encode()).hexdigest()


def test_answer_to_a_question_that_was_shown_differently_is_refused(
    api: Api, question: str
) -> None:
    """Tried: ``shown`` not passed on; one digest compared with two questions."""
    body = {"answers": {question: True}, "shown": "0" * 32}
    refused = api.ask("POST", PATH, token=ANN, json=body)
    assert (refused.status_code, api.app.answers("t")) == (400, [])
    assert "changed since it was shown" in refused.json()["detail"]
    several = {**body, "answers": {question: True, "other": True}}
    assert "one question" in api.ask("POST", PATH, token=ANN, json=several).json()["detail"]


def test_proxy_names_the_caller_and_a_token_beside_it_does_not(api: Api) -> None:
    """Tried: the name looked up by the token that the request also has."""
    found = {
        "t": Identity("default", ALL_SCOPES, "carol"),
        "u": Identity("default", ALL_SCOPES),
    }
    now = ["t"]
    api.serve(api.app, identify=lambda _: found[now[-1]])
    for thread in found:
        now.append(thread)
        api.run(thread, 42)
        (asked,) = api.app.state(thread).interrupts
        body = {"answers": {asked.id: True}}
        assert api.ask("POST", f"/v1/threads/{thread}/answers", json=body).status_code == 202
    names = [one.by and one.by.id for thread in "tu" for one in api.app.answers(thread)]
    assert names == ["carol", "tenant:default"]


@pytest.mark.parametrize("path", ["/threads/t/answers", "/inbox"])
def test_answer_on_a_page_is_stored_with_the_token_of_its_session(
    api: Api, question: str, path: str
) -> None:
    """Tried: no actor passed on by the form."""
    browser = Browser(api).log_in(ANN)
    page = browser.page("/threads/t" if path != "/inbox" else path)
    fields = {"question": page.all("input", name="question")[0].get("value")}
    kinds = page.all("input", name="kind")
    if kinds:
        fields["kind"] = kinds[0].get("value")
    fields |= {"field": "", "value": "true", "csrf": browser.csrf}
    assert browser.ask("POST", path, data={**fields, "by": "eve"}).status_code == 400
    assert browser.ask("POST", path, data=fields).status_code == 303
    assert only(api).by == Actor("ann", "authenticated")


@pytest.mark.parametrize("path", ["/agui", "/langgraph/threads/t/runs"])
def test_answer_of_a_chat_client_is_stored_with_its_token(
    api: Api, question: str, path: str
) -> None:
    """Tried: no actor passed on by the adapter."""
    entry = {"interruptId": question, "status": "resolved", "payload": True}
    agent = {"threadId": "t", "runId": "r", "messages": [], "resume": [entry]}
    sdk = {"assistant_id": "trip", "command": {"resume": True}}
    if path == "/agui":
        api.follow(path, token=ANN, body=agent, is_enough=lambda text: "RUN_STARTED" in text)
    else:
        assert api.ask("POST", path, token=ANN, json=sdk).status_code == 200
    assert only(api).by == Actor("ann", "authenticated")


def test_digest_of_a_hidden_question_is_hidden(api: Api) -> None:
    """Tried: the digest as it is: a guess of what the hook hides could be confirmed."""
    api.run("t", 42)
    (asked,) = api.app.state("t").interrupts
    hidden = ["none"]
    api.serve(api.app, redact=lambda place, value: "-" if place in hidden else value)
    (shown,) = api.ask("GET", "/v1/threads/t").json()["questions"]
    assert shown["digest"] == asked.digest
    hidden.append("question")
    (shown,) = api.ask("GET", "/v1/threads/t").json()["questions"]
    assert shown["digest"] is None


def test_answers_are_listed_with_who_gave_them(api: Api, question: str) -> None:
    """Tried: ``after`` ignored; the reason and the digest past the hook."""
    (asked,) = api.app.state("t").interrupts
    body = {"answers": {question: True}, "reason": "checked"}
    api.ask("POST", PATH, token=ANN, json=body)
    (line,) = api.ask("GET", PATH, token=ANN).json()["answers"]
    assert (line["answer"], line["by"], line["how"]) == (True, "ann", "authenticated")
    assert (line["reason"], line["digest"]) == ("checked", asked.digest)
    later = api.ask("GET", f"{PATH}?after={line['seq']}", token=ANN)
    assert later.json()["answers"] == []
    assert api.ask("GET", "/v1/threads/none/answers", token=ANN).status_code == 404
    api.serve(api.app, redact=lambda place, value: f"hidden {place}")
    (line,) = api.ask("GET", PATH).json()["answers"]
    assert (line["answer"], line["reason"]) == ("hidden answer", "hidden reason")
    assert (line["by"], line["digest"]) == ("ann", None)
