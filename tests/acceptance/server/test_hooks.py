"""N6: events of other services become messages and runs, verified, each once."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import httpx
import pytest

from milecastle import (
    END,
    START,
    Actor,
    App,
    Context,
    InvalidRequest,
    StateGraph,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.server import (
    AnswerTo,
    InboundHook,
    SendTo,
    SubmitTo,
    asgi,
    hook,
    standard_webhooks,
)
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import work
from tests.receiver import SECRET

OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ADDRESS = "http://127.0.0.1:8321"


class Order(TypedDict):
    item: str
    paid: Annotated[list[Any], append]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYMENTS", SECRET)


def wait(state: Order, ctx: Context) -> dict[str, Any]:
    if state["item"] == "question":
        return {"paid": [interrupt("paid?", answer=bool)]}
    return {"paid": [ctx.receive("pay")]} if state["item"] == "lamp" else {}


def ordering(store: Any = None) -> App[Order]:
    graph: StateGraph[Order] = StateGraph(Order, name="orders")
    graph.add_node("wait", wait)
    graph.add_edges(START, "wait", END)
    return graph.compile(store=store or MemoryStore())


def mapped(event: Any) -> SendTo | SubmitTo | None:
    if event["type"] == "paid":
        return SendTo(event["order"], event["amount"], topic="pay")
    if event["type"] == "ordered":
        return SubmitTo(event["order"], {"item": "chair", "paid": []})
    if event["type"] == "breaks":
        raise KeyError("a secret lamp")
    return None


def always(thread: str) -> Any:
    def submit(event: Any) -> SubmitTo:
        return SubmitTo(thread, {"item": "chair", "paid": []})

    return submit


def payments(**options: Any) -> InboundHook:
    given: dict[str, Any] = {"verify": standard_webhooks("env:PAYMENTS"), "to": mapped, **options}
    return hook("payments", **given)


def signed(body: bytes, id: str = "msg_1", secret: str = SECRET, at: float = 0) -> dict[str, str]:
    """Headers by the published rules, written here once more."""
    stamp = str(int(time.time() + at))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, b".".join([id.encode(), stamp.encode(), body]), hashlib.sha256).digest()
    return {
        "webhook-id": id,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        "content-type": "application/json",
    }


def post(
    served: Any, event: Any, *, name: str = "payments", headers: Mapping[str, str] | None = None
) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=served, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            body = event if isinstance(event, bytes) else json.dumps(event).encode()
            sent = signed(body) if headers is None else headers
            return await client.post(f"/hooks/{name}", content=body, headers=sent)

    return asyncio.run(main())


def serving(app: App[Any], *hooks: InboundHook) -> Any:
    return asgi(app, token="t" * 40, worker=False, hooks=hooks or [payments()])


@pytest.mark.requirement("N6", api="asgi(hooks=[hook(...)])")
def test_an_event_becomes_a_message_once_and_its_replay_has_the_same_answer() -> None:
    """Was broken: without the sender's id as the key."""
    app = ordering()
    app.submit({"item": "lamp", "paid": []}, "order-7")
    served = serving(app)
    event = {"type": "paid", "order": "order-7", "amount": 12}
    answers = [post(served, event) for _ in range(3)]
    assert {(one.status_code, one.text) for one in answers} == {(202, '{"accepted": true}')}
    assert len(app.mailbox("order-7")) == 1
    work(app)
    assert app.state("order-7").state["paid"] == [12]
    assert post(served, event).status_code == 202
    assert not app.mailbox("order-7")


@pytest.mark.requirement("N6")
def test_an_event_becomes_a_run_once() -> None:
    app = ordering()
    served = serving(app)
    event = {"type": "ordered", "order": "order-8"}
    for _ in range(2):
        assert post(served, event).status_code == 202
        work(app)
    assert len(app.store.runs(ThreadKey("default", "order-8"))) == 1
    body = json.dumps(event).encode()
    assert post(served, body, headers=signed(body, id="msg_2")).status_code == 202
    work(app)
    assert len(app.store.runs(ThreadKey("default", "order-8"))) == 2


@pytest.mark.requirement("N6")
def test_an_event_answers_a_question_once_and_says_who_did() -> None:
    """Was broken: without the key, a repeated event got 409; with the hook's name for ``by``."""
    app = ordering()
    app.submit({"item": "question", "paid": []}, "order-7")
    work(app)
    (asked,) = app.state("order-7").interrupts

    def answers(event: Any) -> AnswerTo:
        return AnswerTo("order-7", event["question"], event["yes"], by=event.get("user", ""))

    served = serving(app, payments(to=answers))
    click = {"question": asked.id, "yes": True, "user": "ann"}
    assert post(served, {**click, "yes": "perhaps"}).status_code == 422
    assert post(served, {**click, "question": "1.1:other/0"}).status_code == 409
    for _ in range(2):
        assert post(served, click).status_code == 202
        work(app)
    assert app.state("order-7").state["paid"] == [True]
    (answer,) = app.answers("order-7")
    assert answer.by == Actor("ann", "authenticated")
    late = json.dumps({**click, "yes": False}).encode()
    assert post(served, late, headers=signed(late, id="msg_2")).status_code == 409


def test_an_answer_of_nobody_is_the_hooks() -> None:
    app = ordering()
    app.submit({"item": "question", "paid": []}, "order-7")
    work(app)
    (asked,) = app.state("order-7").interrupts

    def yes(event: Any) -> AnswerTo:
        return AnswerTo("order-7", asked.id, True)

    served = serving(app, payments(to=yes))
    assert post(served, {}).status_code == 202
    assert app.answers("order-7")[0].by == Actor("hook:payments", "authenticated")


def test_a_mapping_that_returns_something_else_is_refused() -> None:
    """Was broken: ``AttributeError``, which does not say what is wrong."""

    def to(event: Any) -> Any:
        return {"thread": "a"}

    answer = post(serving(ordering(), payments(to=to)), {})
    assert (answer.status_code, "SubmitTo, AnswerTo or None, not dict" in answer.text) == (
        400,
        True,
    )


@pytest.mark.requirement("N6")
def test_unknown_names_and_wrong_signatures_look_alike() -> None:
    """Was broken: 404 for names that do not exist."""
    app = ordering()
    served, event = serving(app), {"type": "ordered", "order": "order-9"}
    body = json.dumps(event).encode()
    good = signed(body)
    wrong: list[tuple[str, dict[str, str]]] = [
        ("nothing", good),
        ("payments", signed(body, secret=OTHER)),
        ("payments", signed(body, at=-301)),
        ("payments", signed(body, at=360)),
        ("payments", signed(body + b" ")),
        ("payments", {**good, "webhook-id": "msg_3"}),
        ("payments", {**good, "webhook-timestamp": f" {good['webhook-timestamp']}0"}),
        ("payments", {**good, "webhook-timestamp": "9" * 400}),
        ("payments", {**good, "webhook-timestamp": "nan"}),
        ("payments", {**good, "webhook-signature": good["webhook-signature"][3:]}),
        ("payments", {**good, "webhook-signature": good["webhook-signature"].replace("v1", "v2")}),
        ("payments", {**good, "webhook-signature": "v1," + "\u00e9"}),
        ("payments", {**good, "webhook-signature": "v1,AAAA " * 50 + good["webhook-signature"]}),
        ("payments", {"content-type": "application/json"}),
    ]
    found: set[tuple[int, str]] = set()
    for name, headers in wrong:
        encoded: Any = {key: value.encode() for key, value in headers.items()}
        answer = post(served, body, name=name, headers=encoded)
        found.add((answer.status_code, answer.text))
    assert len(found) == 1
    assert next(iter(found))[0] == 401
    assert not list(app.threads())
    several = good["webhook-signature"].replace("v1,", "v1a,x v1,AAAA v1,")
    assert post(served, body, headers={**good, "webhook-signature": several}).status_code == 202


def test_large_bodies_are_refused_unread_and_other_bodies_after_they_are_verified() -> None:
    app = ordering()
    served = serving(app)
    large = b'"' + b"x" * (1 << 20) + b'"'
    assert post(served, large, headers=signed(large)).status_code == 413
    for body in (b"nothing", b"\xff", b"[" * 100_000):
        assert post(served, body, headers=signed(body)).status_code == 400
        assert post(served, body, headers=signed(body, secret=OTHER)).status_code == 401


def test_no_more_events_than_a_server_reads_at_once_are_taken() -> None:
    """Fails if bodies of unknown senders are read without a limit of their number."""
    served = serving(ordering())
    served.unverified.most = 0
    answer = post(served, {"type": "else"})
    assert (answer.status_code, "retry-after" in answer.headers) == (429, True)
    served.unverified.most = 1
    assert [post(served, {"type": "else"}).status_code for _ in range(2)] == [202, 202]


@pytest.mark.parametrize("id", ["m" * 256, "\u00e9" * 256, "a b", "../x", "m" * 257])
def test_an_id_of_any_form_is_a_key_or_refused(id: str) -> None:
    """Fails if a long id is cut, or if one with odd characters is an error of the store."""
    app = ordering()
    served, body = serving(app), b'{"type": "ordered", "order": "order-8"}'
    headers: Any = {name: text.encode("latin-1") for name, text in signed(body, id).items()}
    found = [post(served, body, headers=headers).status_code for _ in range(2)]
    assert found == ([401, 401] if len(id) > 256 else [202, 202])
    assert len(list(app.threads())) == (found[0] == 202)


def test_errors_of_the_mapping_are_500_without_a_value_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sender repeats, and finds a mapping that was repaired."""
    app = ordering()
    answer = post(serving(app), {"type": "breaks"})
    assert (answer.status_code, "lamp" in answer.text + caplog.text) == (500, False)
    repaired = serving(app, payments(to=always("a")))
    assert post(repaired, {"type": "breaks"}).status_code == 202
    assert [one.key.thread for one in app.threads()] == ["a"]


def test_an_event_that_means_nothing_is_accepted() -> None:
    app = ordering()
    assert post(serving(app), {"type": "else"}).status_code == 202
    assert not list(app.threads())


@pytest.mark.parametrize("thread", ["schedule@@a", "delivery@@a@b", "a\x1fb"])
def test_an_event_starts_no_thread_of_our_own(thread: str) -> None:
    app = ordering()
    served = serving(app, payments(to=always(thread)))
    assert post(served, {}).status_code == 400
    assert not list(app.threads())


def test_the_tenant_is_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ordering()
    served = serving(app, payments(tenant="t1"))
    post(served, {"type": "ordered", "order": "order-8", "tenant": "t2"})
    assert [len(app.store.threads(tenant)) for tenant in ("t1", "t2", "default")] == [1, 0, 0]


def test_two_secrets_are_accepted_while_one_replaces_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAYMENTS", f"{OTHER} {SECRET}")
    served = serving(ordering())
    body = b'{"type": "else"}'
    for secret in (SECRET, OTHER):
        assert post(served, body, headers=signed(body, secret=secret)).status_code == 202


def test_a_hook_has_its_own_verifier() -> None:
    """As for services with rules of their own."""

    def verify(headers: Mapping[str, str], body: bytes) -> str | None:
        return headers["x-id"] if headers.get("x-secret") == "open" else None

    app = ordering()
    served = serving(app, payments(verify=verify))
    body = b'{"type": "ordered", "order": "a"}'
    headers = {"content-type": "application/json", "X-Id": "1", "X-Secret": "open"}
    assert post(served, body, headers=headers).status_code == 202
    assert post(served, body, headers={**headers, "X-Secret": "shut"}).status_code == 401


def test_a_server_without_hooks_has_no_such_path() -> None:
    app = ordering()
    served = asgi(app, token="t" * 40, worker=False)
    assert post(served, {}).status_code == 404


def test_hooks_that_verify_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="never the secret itself"):
        standard_webhooks(SECRET)
    with pytest.raises(InvalidRequest, match="two hooks are called 'payments'"):
        serving(ordering(), payments(), payments())
    with pytest.raises(InvalidRequest, match="letters, digits"):
        hook("a/b", verify=standard_webhooks("env:PAYMENTS"), to=mapped)
    monkeypatch.delenv("PAYMENTS")
    with pytest.raises(InvalidRequest, match="24 to 64 bytes"):
        serving(ordering())


def test_events_of_the_reference_implementation_are_accepted() -> None:
    peer = pytest.importorskip("standardwebhooks")
    from datetime import UTC, datetime

    now, body = datetime.now(UTC), '{"type": "else"}'
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": peer.Webhook(SECRET).sign("msg_1", now, body),
        "content-type": "application/json",
    }
    assert post(serving(ordering()), body.encode(), headers=headers).status_code == 202
