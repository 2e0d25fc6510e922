"""An agent: what it says, asks, refuses and spends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from pydantic import BaseModel

from milecastle import App, Context, InvalidAnswer, Retry, interrupt
from milecastle.agents import (
    AgentState,
    Budget,
    Grant,
    Handoff,
    Role,
    Subagent,
    ToolDecision,
    agent,
    loop,
    tool,
)

Message = dict[str, Any]
Reply = str | Message
ASKED = {"messages": [{"role": "user", "content": "go", "id": "u"}]}


def scripted(*replies: Reply | Exception) -> Callable[..., Reply]:
    """A model that gives these replies in turn, by the number of its earlier ones."""

    def reply(messages: list[Message], tools: list[Any]) -> Reply:
        found: Reply | Exception = replies[
            len([each for each in messages if each["role"] == "assistant"])
        ]
        if isinstance(found, Exception):
            raise found
        return found

    return reply


def calls(*given: tuple[str, Any], used: int = 0) -> Message:
    made = [{"id": "call_0", "name": name, "args": args} for name, args in given]
    return {"tool_calls": made, "usage": {"input": used}}


def results(state: Any) -> list[str]:
    return [each["content"] for each in state["messages"] if each["role"] == "tool"]


def run(app: App[AgentState], thread: str = "t") -> Any:
    return app.invoke(cast("Any", ASKED), thread=thread)


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_calls_of_a_turn_are_answered_in_their_order() -> None:
    """Fails if results were in the order in which the calls ended."""
    app: App[Any] = agent(
        scripted(calls(("add", {"a": 1}), ("add", {"a": 2, "b": 2})), "done"), [add]
    ).compile(store="memory://")
    state = run(app).state
    assert [each["role"] for each in state["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert results(state) == ["2", "4"]
    ids = [call["id"] for call in state["messages"][1]["tool_calls"]]
    assert len({*ids}) == 2
    assert [each["tool_call_id"] for each in state["messages"][2:4]] == ids


def test_wrong_calls_go_back_to_the_model() -> None:
    def fails() -> None:
        raise KeyError("lost")

    def strange() -> object:
        return object()

    wrong = calls(
        ("add", {"a": "one"}),
        ("add", {"a": 1, "c": 2}),
        ("nothing", {}),
        ("fails", {}),
        ("add", "{not json"),
        ("add", "[1]"),
        ("add", '{"a": 5}'),
        ("strange", {}),
    )
    state = run(
        agent(scripted(wrong, "done"), [add, fails, strange]).compile(store="memory://")
    ).state
    assert [each.partition(":")[0] for each in results(state)] == [
        "wrong arguments",
        "wrong arguments",
        "there is no tool 'nothing'; there are",
        "KeyError",
        "the arguments cannot be read",
        "the arguments cannot be read",
        "6",
        "TypeError",
    ]
    errors = [each.get("is_error", False) for each in state["messages"] if each["role"] == "tool"]
    assert errors == [True] * 6 + [False, True]


class Place(BaseModel):
    name: str


def test_parameters_and_results_may_be_pydantic_models() -> None:
    def find(place: Place, most: int = 2) -> Place:
        return Place(name=place.name * most)

    made = tool(find)
    assert made.schema["required"] == ["place"]
    state = run(
        agent(
            scripted(
                calls(("find", {"place": {"name": "a"}}), ("find", {"place": {}, "more": 1})),
                "done",
            ),
            [made],
        ).compile(store="memory://")
    ).state
    assert results(state)[0] == '{"name":"aa"}'
    assert "place.name" in results(state)[1]


class Item(msgspec.Struct):
    name: str


def test_schema_names_the_types_of_its_parameters() -> None:
    def order(items: list[Item], *, ctx: Context, call: dict[str, Any]) -> None: ...

    made = tool(order, name="buy")
    assert made.name == "buy"
    assert made.given == ("ctx", "call")
    assert made.schema["properties"]["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert [*made.schema["$defs"]] == ["Item"]
    assert [*made.schema["properties"]] == ["items"]


def test_functions_that_cannot_be_tools_are_refused() -> None:
    def untyped(a: int) -> None: ...

    del untyped.__annotations__["a"]

    def several(*a: int) -> None: ...

    def placed(a: int, /) -> None: ...

    functions: list[Any] = [untyped, several, placed]
    for function in functions:
        with pytest.raises(TypeError, match=f"tool '{function.__name__}'"):
            tool(function)
    with pytest.raises(TypeError, match="two tools are called 'add'"):
        agent(scripted(), [add, tool(add)])


# ---- retries and timeouts


def test_retried_tool_has_one_key_and_its_last_error_goes_to_the_model() -> None:
    """Fails if an exception ends the run, if the first one is told, or if a sibling is repeated."""
    keys: list[str] = []
    made: list[int] = []

    def pay(amount: int, *, ctx: Context, call: dict[str, Any]) -> str:
        keys.append(call["key"])
        if amount == 0 or ctx.attempt < 3:
            raise ConnectionError(f"attempt {ctx.attempt}")
        return f"paid {amount}"

    def note(a: int) -> str:
        made.append(a)
        return "noted"

    payment = tool(pay, retry=Retry(attempts=3, delay=0))
    pays = (("pay", {"amount": n}) for n in (7, 0, 9))
    wanted: list[tuple[str, dict[str, int]]] = [("note", {"a": 1}), *pays, ("pay", {})]
    app: App[Any] = agent(
        scripted(calls(*wanted), calls(("pay", {"amount": 1})), calls(("note", {"a": 2})), "done"),
        [payment, note],
    ).compile(store="memory://")
    state = run(app).state
    found = results(state)
    assert [each for each in found if not each.startswith("wrong")] == [
        *("noted", "paid 7", "paid 9", "ConnectionError: attempt 3", "paid 1", "noted")
    ]
    assert len(found) == 7
    assert (len(keys), len({*keys}), made) == (12, 4, [1, 2])
    failed = [each for each in state["messages"] if each.get("is_error")]
    amounts = {
        call["id"]: call["args"].get("amount")
        for each in state["messages"]
        for call in each.get("tool_calls", ())
    }
    assert [amounts[each["tool_call_id"]] for each in failed] == [None, 0]


def test_tool_that_takes_too_long_is_an_error_for_the_model() -> None:
    """Fails if a timeout ends the run."""

    async def hang(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "awake"

    def sleep(seconds: float) -> str:
        time.sleep(seconds)
        return "awake"

    for given in (hang, sleep):
        slow = tool(given, name="slow", timeout=0.1)
        app: App[Any] = agent(
            scripted(calls(("slow", {"seconds": 0.4}), ("slow", {"seconds": 0})), "done"), [slow]
        ).compile(store="memory://")
        assert sorted(results(asyncio.run(app.ainvoke(cast("Any", ASKED), thread="t")).state)) == [
            "NodeTimeout: node 'tool_slow' took longer than 0.1 s [MC204]",
            "awake",
        ]


def test_two_policies_of_one_name_are_refused() -> None:
    def failed(a: int) -> None: ...

    role = Role(scripted(), [tool(add, retry=2)])
    with pytest.raises(TypeError, match="two tools are called 'add'"):
        agent(scripted(), [tool(add, retry=3)], handoffs={"other": role})
    app: App[Any] = agent(
        scripted(calls(("add", {"a": 1}), ("failed", {"a": 1})), "done"),
        [add, tool(failed, timeout=5)],
        handoffs={"other": role},
    ).compile(store="memory://")
    assert results(run(app).state) == ["2", "null"]


# ---- approvals


def test_approval_may_edit_the_arguments() -> None:
    app: App[Any] = agent(
        scripted(calls(("add", {"a": 1})), "done"), [add], approve=["add"]
    ).compile(store="memory://")
    asked = run(app).interrupts[0]
    assert asked.show["args"] == {"a": 1}
    state = app.resume("t", ToolDecision(approve=True, args={"a": 5})).state
    assert results(state) == ['(a person changed the arguments to {"a":5}) 6']


def test_edit_that_the_schema_refuses_changes_nothing() -> None:
    app: App[Any] = agent(scripted(calls(("add", {"a": 1})), "done"), [add], approve=True).compile(
        store="memory://"
    )
    run(app)
    with pytest.raises(InvalidAnswer, match=r"\$\.args\.a should be integer"):
        app.resume("t", {"approve": True, "args": {"a": "x"}})
    assert app.state("t").status == "interrupted"


class Even(BaseModel):
    number: int

    def model_post_init(self, context: Any) -> None:
        if self.number % 2:
            raise ValueError("it is odd")


def test_edit_that_only_the_type_refuses_opens_the_question_again() -> None:
    """Fails if the edited arguments were read only when the tool is called."""

    def half(given: Even) -> int:
        return given.number // 2

    app: App[Any] = agent(
        scripted(calls(("half", {"given": {"number": 2}})), "done"),
        [tool(half, approve=lambda args: args["given"]["number"] > 1)],
    ).compile(store="memory://")
    run(app)
    with pytest.raises(InvalidAnswer, match="it is odd"):
        app.resume("t", {"approve": True, "args": {"given": {"number": 3}}})
    assert "it is odd" in (app.state("t").interrupts[0].refused or "")
    state = app.resume("t", {"approve": True, "args": {"given": {"number": 8}}}).state
    assert results(state)[0].endswith(" 4")


def test_refused_call_is_a_result_and_others_of_the_turn_are_not_asked_again() -> None:
    made: list[int] = []

    def act(a: int) -> str:
        made.append(a)
        return "acted"

    app: App[Any] = agent(
        scripted(calls(("act", {"a": 1}), ("act", {"a": 2})), "done"),
        [act],
        approve=lambda call: call["args"]["a"] > 1,
    ).compile(store="memory://")
    assert len(run(app).interrupts) == 1
    state = app.resume("t", ToolDecision(approve=False, reason="too late")).state
    assert results(state) == ["acted", "a person refused this call: too late"]
    assert made == [1]


# ---- limits


def test_run_stops_at_the_most_turns_and_continues_with_the_next_message() -> None:
    def model(messages: list[Message]) -> Message:
        return calls(("add", {"a": 1}))

    app: App[Any] = agent(model, [add], max_turns=2).compile(store="memory://")
    state = run(app).state
    assert (state["stopped"], len(results(state))) == ("max_turns", 2)
    state = app.invoke(
        cast("Any", {"messages": [{"role": "user", "content": "again", "id": "v"}]}), thread="t"
    ).state
    assert (state["stopped"], len(results(state))) == ("max_turns", 4)


def test_budget_of_tokens_stops_or_asks_for_more() -> None:
    def model(messages: list[Message]) -> Message:
        return calls(("add", {"a": 1}), used=100)

    stopped = run(agent(model, [add], budget=Budget(tokens=250)).compile(store="memory://")).state
    assert (stopped["stopped"], stopped["used"]["input"]) == ("budget", 300)
    reserved = agent(model, [add], budget=Budget(tokens=250, reserve=100))
    assert run(reserved.compile(store="memory://")).state["used"]["input"] == 200
    app: App[Any] = agent(model, [add], budget=Budget(tokens=250, reserve=100, then="ask")).compile(
        store="memory://"
    )
    assert run(app).interrupts[0].show == {"used": {"input": 200}}
    with pytest.raises(InvalidAnswer):
        app.resume("t", {"tokens": -1})
    assert app.resume("t", Grant(tokens=10)).status == "interrupted"
    state = app.resume("t", {"tokens": 90}).state
    assert (state["used"]["input"], state["granted"]) == (300, {"tokens": 100, "usd": 0.0})
    assert app.resume("t", Grant()).state["stopped"] == "budget"


def test_budget_in_dollars_needs_the_price_of_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(messages: list[Message]) -> Message:
        return {**calls(("add", {"a": 1}), used=100), "model": "m"}

    app: App[Any] = agent(
        model,
        [add],
        budget=Budget(usd=0.25, reserve_usd=0.1),
        price=lambda reply: reply["usage"]["input"] / 1000,
    ).compile(store="memory://")
    assert run(app).state["used"]["usd"] == pytest.approx(0.2)
    monkeypatch.setattr(loop, "has_prices", lambda: False)
    with pytest.raises(TypeError, match="price="):
        agent(model, [add], budget=Budget(usd=0.30))


def test_prices_come_from_a_package_if_none_is_given() -> None:
    def model(messages: list[Message]) -> Message:
        return {"content": "ok", "usage": {"input": 1_000_000, "output": 1}, "model": "gpt-4o"}

    app: App[Any] = agent(model, budget=Budget(usd=100)).compile(store="memory://")
    assert run(app).state["used"]["usd"] > 0.1


class Refused(Exception):
    status_code = 500


class Limited(Exception):
    status_code = 429

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.retry_after = seconds


def test_calls_without_an_end_count_as_what_was_reserved() -> None:
    """Fails if a call was counted only by its reply."""
    lost = [TimeoutError(), TimeoutError(), Refused()]

    def model(messages: list[Message]) -> Message:
        if lost:
            raise lost.pop(0)
        return {"content": "done", "usage": {"input": 7}}

    for budget, used in (
        (Budget(tokens=100, reserve=10), {"input": 7, "lost": 20}),
        (None, {"input": 7}),
    ):
        lost[:] = [TimeoutError(), TimeoutError(), Refused()]
        app = agent(model, budget=budget, retry=Retry(attempts=5, delay=0)).compile(
            store="memory://"
        )
        assert run(app).state["used"] == used


def test_long_wait_of_a_rate_limit_is_a_durable_sleep() -> None:
    """Fails if a wait that was slept is slept again, or if the model is called before its end."""
    tries: list[int] = []

    def model(messages: list[Message]) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise Limited(1.1 if len(tries) == 1 else 1.2)
        return "done"

    app: App[Any] = agent(model, budget=Budget(tokens=10, reserve=1)).compile(store="memory://")
    sleeping = run(app)
    assert sleeping.status == "sleeping"
    assert sleeping.state["waiting"] == {"seconds": 1.1, "tries": 1}
    assert sleeping.state["used"] == {}
    time.sleep(1.15)
    assert app.resume("t").state["waiting"] == {"seconds": 1.2, "tries": 2}
    time.sleep(1.25)
    assert app.resume("t").state["waiting"] is None
    assert len(tries) == 3


def test_wait_may_be_in_a_header_and_short_ones_are_errors_of_the_node() -> None:
    class Response:
        headers = {"retry-after": "40"}  # noqa: RUF012

    class Busy(Exception):
        response = Response()

    def busy(messages: list[Message]) -> str:
        raise Busy

    assert run(agent(busy).compile(store="memory://")).state["waiting"]["seconds"] == 40.0
    Response.headers = {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}
    with pytest.raises(Exception, match="Busy"):
        run(agent(busy).compile(store="memory://"))


# ---- steering, output, roles, subagents


def test_messages_of_a_person_come_behind_the_results_and_are_answered() -> None:
    """Fails if they went straight into the conversation, or if the run ended without them."""
    seen: list[list[str]] = []

    def model(messages: list[Message]) -> Reply:
        seen.append([str(each["content"]) for each in messages if each["role"] == "user"])
        if len(seen) == 1:
            app.send("t", "in French", "user")
            return calls(("add", {"a": 1}))
        if len(seen) == 2:
            app.send("t", {"role": "system", "content": "and brief", "id": "b"}, "user")
        return "done"

    app: App[Any] = agent(model, [add]).compile(store="memory://")
    state = run(app).state
    assert seen == [["go"], ["go", "in French"], ["go", "in French", "and brief"]]
    roles = [each["role"] for each in state["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "user", "assistant"]
    assert state["steering"] == []


def test_structured_output_is_validated() -> None:
    def answer(value: Any) -> Message:
        return calls(("final_answer", {"value": value}))

    app: App[Any] = agent(
        scripted("I think so", answer({"name": 1}), answer({"name": "lamp"})), output=Item
    ).compile(store="memory://")
    first = run(app).state
    assert first["output"] == {"name": "lamp"}
    assert first["stopped"] == "output"
    assert results(first)[0].startswith("wrong arguments")


def test_roles_hand_the_conversation_over() -> None:
    def move(to: str) -> Handoff:
        return Handoff(to, "please")

    app: App[Any] = agent(
        scripted(calls(("move", {"to": "nobody"}), ("hand_off", {"to": "billing"})), "not me"),
        [move],
        handoffs={"billing": Role(scripted("", "billing here"), system="You are billing.")},
    ).compile(store="memory://")
    state = run(app).state
    assert state["active"] == "billing"
    assert state["messages"][-1]["content"] == "billing here"
    assert results(state)[0] == "there is no role 'nobody'; there are: agent, billing"


def test_subagents_share_the_rest_of_the_budget() -> None:
    def work(messages: list[Message]) -> Message:
        return calls(("add", {"a": 1}), used=20)

    app: App[Any] = agent(
        scripted(
            calls(("help", {"task": "a"}), ("help", {"task": "b"}), ("help", {}), used=20), "ok"
        ),
        budget=Budget(tokens=100),
        subagents={"help": Subagent(agent(work, [add], name="helper"), "Help.")},
    ).compile(store="memory://")
    state = run(app).state
    assert state["used"]["input"] == 20 + 2 * 40
    assert sorted(results(state))[:2] == ["stopped: budget"] * 2
    assert sorted(results(state))[2].startswith("wrong arguments")


def test_questions_of_a_subagent_are_asked_on_the_thread_of_its_parent() -> None:
    app: App[Any] = agent(
        scripted(calls(("help", {"task": "a"})), "ok"),
        subagents={"help": agent(scripted(calls(("add", {"a": 1})), "sum"), [add], approve=True)},
    ).compile(store="memory://")
    assert run(app).interrupts[0].show["name"] == "add"
    assert results(app.resume("t", ToolDecision(approve=True)).state) == ["sum"]


# ---- forms of functions


def test_async_models_and_tools_run_on_the_loop_and_sync_tools_in_threads() -> None:
    from threading import get_ident

    places: list[int] = []

    async def model(messages: list[Message], **rest: Any) -> Reply:
        await rest["emit"]("hel")
        await rest["emit"]("lo")
        return await_calls(messages)

    def await_calls(messages: list[Message]) -> Reply:
        return scripted(calls(("here", {}), ("there", {}), ("asks", {})), "hello")(messages, [])

    async def here() -> None:
        places.append(get_ident())

    def there() -> None:
        places.append(get_ident())

    def asks() -> str:
        return str(interrupt("well?"))

    app: App[Any] = agent(model, [here, there, asks], budget=Budget(tokens=9, reserve=1)).compile(
        store="memory://"
    )

    async def run_it() -> tuple[list[str], Any]:
        given = cast("Any", ASKED)
        events = [event async for event in app.astream(given, thread="t")]
        deltas = [event.update["delta"] for event in events if event.type == "emit"]
        return deltas, (await app.aresume("t", "yes")).state

    deltas, state = asyncio.run(run_it())
    assert deltas == ["hel", "lo"]
    assert results(state) == ["null", "null", "yes"]
    assert len({*places}) == 2


def test_deltas_carry_the_id_of_the_message_and_are_stored_on_request() -> None:
    def model(messages: list[Message], emit: Callable[[str], None], output: Any) -> Reply:
        emit("hel")
        emit("lo")
        return str(interrupt("send?"))

    app: App[Any] = agent(model, keep_deltas=True).compile(store="memory://")
    run(app)
    kept = app.emitted("t")
    assert [one.value["delta"] for one in kept] == ["hel", "lo"]
    state = app.resume("t", "hello").state
    assert kept[0].value["id"] == state["messages"][-1]["id"]


def test_reply_keeps_what_its_provider_needs_again() -> None:
    app: App[Any] = agent(
        scripted({"content": "hm", "provider": {"name": "p", "message": {"x": 1}}})
    ).compile()
    assert run(app).state["messages"][-1]["provider"]["message"] == {"x": 1}


def test_tools_get_the_context_and_a_key_that_is_their_own() -> None:
    keys: list[str] = []

    def act(*, ctx: Context, call: dict[str, Any]) -> None:
        keys.append(call["key"])
        assert call["key"] == ctx.idempotency_key

    run(
        agent(scripted(calls(("act", {}), ("act", {})), calls(("act", {})), "done"), [act]).compile(
            store="memory://"
        )
    )
    assert len({*keys}) == 3


def test_model_gets_a_closed_conversation() -> None:
    """Fails if a call without a result reached the model."""
    seen: list[list[Message]] = []

    def model(messages: list[Message]) -> str:
        seen.append(messages)
        return "done"

    history = [
        {"role": "user", "content": "go", "id": "u"},
        {"role": "assistant", "content": "", "id": "m", "tool_calls": [{"id": "c", "name": "add"}]},
        {"role": "user", "content": "stop that", "id": "v"},
    ]
    app: App[Any] = agent(model, system="Be kind.").compile(store="memory://")
    state = app.invoke(cast("Any", {"messages": history}), thread="t").state
    assert [each["role"] for each in seen[-1]] == ["system", "user", "assistant", "tool", "user"]
    assert seen[-1][3]["is_error"]
    assert len(state["messages"]) == 4
