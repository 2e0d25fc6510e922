"""``agent``: a model and tools as a graph with two nodes.

Rules:

- ``call_model`` calls the model once; ``run_tool`` runs one tool call, as a separate task. So a
  crash repeats only unfinished calls, with the same idempotency key. A tool with a retry policy or
  a timeout has its own node, with that policy.
- A person's messages wait in ``steering`` until the results are there: only ``call_model`` writes
  them into the conversation, with the reply, in one commit.
- Edges decide by the state alone.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from milecastle import END, START, App, Context, ExecutionConfig, Retry, Send, StateGraph, interrupt
from milecastle.agents.budget import Allowance, Budget, Grant, allowance
from milecastle.agents.messages import (
    AgentState,
    ChatMessage,
    calls_of,
    closed,
    from_person,
    result,
    summed,
)
from milecastle.agents.models import accepted, is_async, is_refused, read_calls, retry_after
from milecastle.agents.prices import has_prices, price_of
from milecastle.agents.tools import RUN_TOOL, Approval, Handoff, Tool, as_plain, as_text, tool
from milecastle.observers.annotations import annotate

T = TypeVar("T")

Approve = bool | Iterable[str] | Callable[[ChatMessage], object]

_MOST_WAITS = 100
_FINAL = "final_answer"
_HAND_OFF = "hand_off"
_FAILED = "tell_failures"


class Role(msgspec.Struct, frozen=True):
    """A model with its tools and its system prompt; a handoff changes the conversation's role."""

    model: Callable[..., Any]
    tools: Sequence[Callable[..., Any] | Tool] = ()
    system: str = ""


class Subagent(msgspec.Struct, frozen=True):
    """Another agent as a tool. The model gives it a task, and gets its answer."""

    graph: StateGraph[AgentState] | App[AgentState]
    description: str = "Give a task to another agent."


def agent(
    model: Callable[..., Any],
    tools: Iterable[Callable[..., Any] | Tool] = (),
    *,
    system: str = "",
    approve: Approve = (),
    budget: Budget | None = None,
    max_turns: int = 50,
    output: Any = None,
    handoffs: Mapping[str, Role] | None = None,
    subagents: Mapping[str, Subagent | StateGraph[AgentState]] | None = None,
    name: str = "agent",
    retry: Retry | None = None,
    price: Callable[[ChatMessage], float] | None = None,
    keep_deltas: bool = False,
) -> StateGraph[AgentState]:
    """Make a graph from a model and tools; compile it with a store, as any other.

    ``approve`` names the tools whose calls a person must approve, or is a function of the call.
    ``max_turns`` limits model calls for one message from a person. With ``output``, a type, the
    state's ``output`` is such a value as plain data. ``handoffs`` are other roles that may continue
    the conversation. ``price`` is a reply's price in dollars, by default from ``genai-prices``.
    ``keep_deltas`` stores values the model emits until its reply is committed.
    """
    if price is None and budget is not None and budget.usd is not None:
        if not has_prices():
            raise TypeError("a budget in dollars needs price=, or the package genai-prices")
        price = price_of
    own = Role(model, tuple(tools), system)
    crew = {name: own} | dict(handoffs or {})
    others = {
        key: given if isinstance(given, Subagent) else Subagent(given)
        for key, given in (subagents or {}).items()
    }
    loop = AgentLoop(name, crew, others, output, approve, budget, max_turns, price, keep_deltas)
    graph = StateGraph(AgentState, name=name, topics={"user": str | dict[str, Any]})
    graph.add_node("call_model", loop.model_node(), retry=retry)
    graph.add_node(RUN_TOOL, loop.tool_node())
    graph.add_edge(START, "call_model")
    tasks = [RUN_TOOL]
    for key, other in others.items():
        app = other.graph.compile() if isinstance(other.graph, StateGraph) else other.graph
        graph.add_node(f"sub_{key}", app, give=_give, take=_take)
        tasks.append(f"sub_{key}")
    for task, found in loop.own_nodes.items():
        policy: Any = {"retry": found.retry, "timeout": found.timeout}
        graph.add_node(task, loop.tool_node(), **policy, on_error=_FAILED)
        tasks.append(task)
    graph.add_conditional_edges("call_model", loop.after_model, [*tasks, "call_model", END])
    if loop.own_nodes:
        graph.add_node(_FAILED, tell_failures)
        tasks.append(_FAILED)
    for task in tasks:
        graph.add_conditional_edges(task, loop.after_tools, ["call_model", END])
    return graph.with_default_config(ExecutionConfig(max_steps=None))


def _give(state: AgentState) -> dict[str, Any]:
    call, share = state.get("call", {}), state.get("share", {})
    task = {"role": "user", "content": call["args"]["task"], "id": f"t{call['id']}"}
    return {"messages": [task], "call": call, "share": share}


def _take(state: AgentState) -> dict[str, Any]:
    stopped, call = state.get("stopped"), state.get("call", {})
    answer = state["output"] if "output" in state else state["messages"][-1]["content"]
    said = f"stopped: {stopped}" if stopped else as_text(answer)
    message = result(call, said, is_error=bool(stopped))
    return {"messages": [message], "used": state.get("used", {})}


class _Table(msgspec.Struct, frozen=True):
    role: Role
    tools: dict[str, Tool]
    specs: list[dict[str, Any]]
    accepts: frozenset[str]


class AgentLoop:
    """The agent's nodes and edges. ``async def`` here waits only if the node is async."""

    def __init__(
        self,
        name: str,
        crew: Mapping[str, Role],
        others: Mapping[str, Subagent],
        output: Any,
        approve: Approve,
        budget: Budget | None,
        max_turns: int,
        price: Callable[[ChatMessage], float] | None,
        keep_deltas: bool,
    ) -> None:
        self._name = name
        self._others = others
        self._output = output
        self._approve = approve if callable(approve) or isinstance(approve, bool) else {*approve}
        self._budget = budget
        self._max_turns = max_turns
        self._price = price
        self._keep = keep_deltas
        shared = [_subagent_tool(key, other) for key, other in others.items()]
        if output is not None:
            shared.append(_final_tool(output))
        if len(crew) > 1:
            shared.append(_hand_off_tool([*crew]))
        self._tables = {key: _table(role, shared) for key, role in crew.items()}
        known = [each for table in self._tables.values() for each in table.tools.values()]
        self.own_nodes: dict[str, Tool] = {}
        for one in known:
            same = self.own_nodes.setdefault(one.node, one) if one.node != RUN_TOOL else one
            if (same.retry, same.timeout) != (one.retry, one.timeout):
                raise TypeError(f"two tools are called '{one.name}': give one of them a name=")
        self._awaits_model = any(is_async(role.model) for role in crew.values())
        self._awaits_tools = any(is_async(each.function) for each in known)

    def model_node(self) -> Callable[..., Any]:
        async def call_model(state: AgentState, ctx: Context) -> dict[str, Any]:
            return await self.turn(state, ctx)

        def call_model_now(state: AgentState, ctx: Context) -> dict[str, Any]:
            return _finished(self.turn(state, ctx))

        return call_model if self._awaits_model else call_model_now

    def tool_node(self) -> Callable[..., Any]:
        async def run_tool(state: AgentState, ctx: Context) -> dict[str, Any]:
            return await self.run(state, ctx)

        def run_tool_now(state: AgentState, ctx: Context) -> dict[str, Any]:
            return _finished(self.run(state, ctx))

        return run_tool if self._awaits_tools else run_tool_now

    def _table(self, state: AgentState) -> _Table:
        return self._tables.get(state.get("active", ""), self._tables[self._name])

    # ---- the model

    async def turn(self, state: AgentState, ctx: Context) -> dict[str, Any]:
        key = ctx.idempotency_key
        if waiting := state.get("waiting"):
            ctx.sleep(waiting["seconds"])
        steering = state.get("steering", [])
        heard = [from_person(said, f"s{key}-{place}") for place, said in enumerate(steering)]
        said = [*state["messages"], *heard]
        is_asked = bool(said) and said[-1]["role"] == "user" and not said[-1].get("is_reminder")
        turns = 0 if is_asked else state.get("turns", 0)
        made: dict[str, Any] = {"messages": heard, "steering": len(steering), "turns": turns}
        made |= {"stopped": "", "waiting": None}
        if turns >= self._max_turns:
            return {**made, "stopped": "max_turns"}
        rest = allowance(self._budget, state)
        mark, lost = await self._begin(ctx, rest)
        made["used"] = rest.lost(lost)
        rest = rest.less(lost)
        while not rest.suffices:
            if self._budget is None or self._budget.then == "stop":
                return {**made, "stopped": "budget"}
            if rest.is_reserved:
                await self._end(ctx, mark, 0)
            show = {"used": state.get("used", {})}
            grant = interrupt("The budget is used up. Grant more?", show=show, answer=Grant)
            if not (grant.tokens or grant.usd):
                return {**made, "stopped": "budget"}
            given = {"tokens": grant.tokens, "usd": grant.usd}
            made["granted"] = summed(made.get("granted", {}), given)
            rest = rest.plus(grant)
        table = self._table(state)
        try:
            reply = await self._ask_model(table, said, ctx)
        except Exception as error:
            if rest.is_reserved and is_refused(error):
                await self._end(ctx, mark, 0)
            seconds = retry_after(error)
            tries = waiting["tries"] + 1 if waiting else 1
            if seconds <= 1 or tries > _MOST_WAITS:
                raise
            return {**made, "waiting": {"seconds": seconds, "tries": tries}}
        annotate(agent=self._name, operation="chat", model=reply.get("model"), usage=_usage(reply))
        return self._replied(made, reply, key)

    def _replied(self, made: dict[str, Any], reply: Mapping[str, Any], key: str) -> dict[str, Any]:
        message: ChatMessage = {
            "role": "assistant",
            "content": reply.get("content") or "",
            "id": f"m{key}",
        }
        calls = read_calls(reply.get("tool_calls") or (), key)
        if calls:
            message["tool_calls"] = calls
        if "provider" in reply:
            message["provider"] = reply["provider"]
        usage = _usage(reply)
        if self._price is not None:
            usage["usd"] = self._price({**reply, **message})
        made["used"] = summed(made["used"], usage)
        made["messages"].append(message)
        made["turns"] += 1
        if self._output is not None and not calls:
            text = f"Call {_FINAL} with the result."
            made["messages"].append(
                {"role": "user", "content": text, "id": f"f{key}", "is_reminder": True}
            )
        return made

    async def _ask_model(
        self, table: _Table, said: list[ChatMessage], ctx: Context
    ) -> Mapping[str, Any]:
        given = closed(said)
        if table.role.system:
            given.insert(0, {"role": "system", "content": table.role.system})
        more: dict[str, Any] = {}
        if "tools" in table.accepts:
            more["tools"] = table.specs
        if "output" in table.accepts:
            more["output"] = self._output
        if "emit" in table.accepts:
            more["emit"] = self._emitter(ctx, on_loop=is_async(table.role.model))
        reply = await _called(table.role.model, self._awaits_model, given, **more)
        return {"content": reply} if isinstance(reply, str) else cast("Mapping[str, Any]", reply)

    def _emitter(self, ctx: Context, *, on_loop: bool) -> Callable[[str], object]:
        id = f"m{ctx.idempotency_key}"

        def emit(text: str) -> object:
            delta = {"id": id, "delta": text}
            return (ctx.aemit if on_loop else ctx.emit)(delta, keep=self._keep)

        return emit

    async def _begin(self, ctx: Context, rest: Allowance) -> tuple[int, int]:
        """Record that a call begins: its number, and how many earlier ones have no end."""
        lost, number, fresh = 0, 0, list[bool]()
        while rest.is_reserved:
            await self._once(ctx, f"began {number}", lambda: fresh.append(True))
            if fresh:
                break
            lost += await self._once(ctx, f"lost {number}", lambda: 1)
            number += 1
        return number, lost

    async def _end(self, ctx: Context, number: int, lost: int) -> None:
        await self._once(ctx, f"lost {number}", lambda: lost)

    async def _once(self, ctx: Context, name: str, function: Callable[[], T]) -> T:
        if self._awaits_model:
            return await ctx.aonce(name, function)
        return ctx.once(name, function)

    # ---- a tool

    async def run(self, state: AgentState, ctx: Context) -> dict[str, Any]:
        call, known = state.get("call", {}), self._table(state).tools
        found = known.get(call["name"])
        if found is None:
            return _told(call, f"there is no tool '{call['name']}'; there are: {', '.join(known)}")
        if "unreadable" in call:
            return _told(call, f"the arguments cannot be read: {call['unreadable']}")
        try:
            args = found.read(call["args"])
        except ValueError as error:
            return _told(call, f"wrong arguments: {error}")
        annotate(agent=self._name, operation="execute_tool", tool=found.name, call=call["id"])
        note = ""
        if found.name == _FINAL and self._output is not None:
            return {
                **_said(call, "accepted"),
                "output": as_plain(args["value"]),
                "stopped": "output",
            }
        if self._needs_approval(found, call):
            answer = interrupt(
                f"Call {found.name}?", show=call, answer=cast("Any", Approval(found))
            )
            if not answer.approve:
                return _told(call, f"a person refused this call: {answer.reason}".rstrip(": "))
            if answer.args is not None:
                args, call = found.read(answer.args), {**call, "args": answer.args}
                note = f"(a person changed the arguments to {as_text(answer.args)}) "
        given = {"ctx": ctx, "call": {**call, "key": ctx.idempotency_key}}
        more = {name: given[name] for name in found.given}
        try:
            value = await _called(found.function, self._awaits_tools, **args, **more)
            if isinstance(value, Handoff):
                return self._handed_off(call, value)
            text = as_text(value)
        except Exception as error:
            if found.node != RUN_TOOL:
                raise
            annotate(error=type(error).__qualname__)
            return _told(call, f"{note}{type(error).__name__}: {error}")
        return _said(call, note + text)

    def _needs_approval(self, found: Tool, call: ChatMessage) -> bool:
        for rule, given in ((found.approve, call["args"]), (self._approve, call)):
            if callable(rule):
                needs = bool(rule(given))
            else:
                needs = rule if isinstance(rule, bool) else found.name in rule
            if needs:
                return True
        return False

    def _handed_off(self, call: ChatMessage, value: Handoff) -> dict[str, Any]:
        if value.to not in self._tables:
            return _told(
                call, f"there is no role '{value.to}'; there are: {', '.join(self._tables)}"
            )
        text = f"the conversation continues with {value.to}. {value.note}".strip()
        return {**_said(call, text), "active": value.to}

    # ---- edges

    def after_model(self, state: AgentState) -> str | list[Send]:
        if state.get("stopped"):
            return self._at_stop(state)
        last = state["messages"][-1]
        calls = calls_of(last)
        if not calls:
            goes_on = state.get("waiting") or state.get("steering") or last["role"] != "assistant"
            return "call_model" if goes_on else END
        known = self._table(state).tools
        subs = [call for call in calls if self._is_subagent(call)]
        share = allowance(self._budget, state).part(len(subs)) if subs else None
        return [
            Send(f"sub_{call['name']}", {"call": call, "share": share})
            if call in subs
            else Send(
                known[call["name"]].node if call["name"] in known else RUN_TOOL, {"call": call}
            )
            for call in calls
        ]

    def _is_subagent(self, call: ChatMessage) -> bool:
        task = call["args"].get("task")
        return (
            call["name"] in self._others and [*call["args"]] == ["task"] and isinstance(task, str)
        )

    def after_tools(self, state: AgentState) -> str:
        calls, ended = _last_turn(state) if self.own_nodes else ((), ())
        if any(call["id"] not in ended for call in calls):  # they failed: _FAILED is next
            return END
        return self._at_stop(state) if state.get("stopped") else "call_model"

    def _at_stop(self, state: AgentState) -> Literal["call_model", "__end__"]:
        is_asked = bool(state.get("steering")) and state.get("stopped") != "budget"
        return "call_model" if is_asked else "__end__"


def tell_failures(state: AgentState, ctx: Context) -> dict[str, Any]:
    """Give the model the errors from calls that failed in their last attempt."""
    calls, _ = _last_turn(state)
    told: list[ChatMessage] = []
    for task, (kind, message) in ctx.failures.items():
        node, _, place = task.partition("#")
        same = [call for call in calls if f"tool_{call['name']}" == node]
        told.append(result(same[int(place or 0)], f"{kind}: {message}", is_error=True))
    return {"messages": told}


def _last_turn(state: AgentState) -> tuple[Sequence[ChatMessage], set[Any]]:
    ended = set[Any]()
    for message in reversed(state["messages"]):
        if message["role"] == "assistant":
            return calls_of(message), ended
        ended.add(message.get("tool_call_id"))
    return (), ended


def _usage(reply: Mapping[str, Any]) -> dict[str, Any]:
    counts: Mapping[str, Any] = reply.get("usage") or {}
    return {name: count for name, count in counts.items() if count}


def _table(role: Role, shared: Iterable[Tool]) -> _Table:
    made = [each if isinstance(each, Tool) else tool(each) for each in role.tools]
    found: dict[str, Tool] = {}
    for each in (*made, *shared):
        if each.name in found:
            raise TypeError(f"two tools are called '{each.name}': give one of them a name=")
        found[each.name] = each
    return _Table(role, found, [each.spec for each in found.values()], accepted(role.model))


def _subagent_tool(name: str, other: Subagent) -> Tool:
    def give_task(task: str) -> None: ...

    return msgspec.structs.replace(tool(give_task, name=name), description=other.description)


def _final_tool(output: Any) -> Tool:
    def final_answer(value: Any) -> None:
        """Give the final answer."""

    final_answer.__annotations__["value"] = output
    return tool(final_answer, name=_FINAL)


def _hand_off_tool(names: Sequence[str]) -> Tool:
    def hand_off(to: str, note: str = "") -> Handoff:
        """Let another role continue this conversation."""
        return Handoff(to, note)

    hand_off.__annotations__["to"] = Literal[tuple(names)]
    return tool(hand_off, name=_HAND_OFF)


def _said(call: ChatMessage, text: str) -> dict[str, Any]:
    return {"messages": [result(call, text)]}


def _told(call: ChatMessage, text: str) -> dict[str, Any]:
    return {"messages": [result(call, text, is_error=True)]}


async def _called(function: Callable[..., Any], on_loop: bool, *args: Any, **named: Any) -> Any:
    """Call a function; on an event loop a sync one is called in a thread."""
    if is_async(function):
        return await function(*args, **named)
    if not on_loop:
        return function(*args, **named)
    import asyncio

    return await asyncio.to_thread(function, *args, **named)


def _finished(steps: Coroutine[Any, Any, T]) -> T:
    try:
        steps.send(None)
    except StopIteration as ended:
        return cast("T", ended.value)
    raise AssertionError("it waits")
