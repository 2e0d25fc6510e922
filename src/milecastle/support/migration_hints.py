"""Names from LangGraph and misspelled names: refused with the right name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, Final, NoReturn, TypeVar, cast

from milecastle import errors
from milecastle.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])

_THREAD = "thread='my-thread'"
_OPTIONS = "options=ExecutionOptions(max_steps=...)"

_ATTRIBUTES: Final[Mapping[str, Mapping[str, str]]] = {
    "App": {
        "get_state": "app.state(thread)",
        "aget_state": "await app.astate(thread)",
        "get_state_history": "app.history(thread)",
        "aget_state_history": "app.ahistory(thread)",
        "get_graph": "app.draw('mermaid'), app.draw('svg') or app.draw('text')",
        "draw_mermaid": "app.draw('mermaid')",
        "draw_ascii": "app.draw('text')",
        "with_config": "options= and config= of invoke()",
        "batch": "[app.invoke(input, thread=...) for input in inputs]",
        "abatch": "await asyncio.gather(*(app.ainvoke(input, thread=...) for input in inputs))",
        "astream_events": "app.astream(..., mode='events')",
        "checkpointer": "app.store",
        "fit": "app.compatibility(thread)",
        "afit": "await app.acompatibility(thread)",
        "prepare": "app.create_key(thread)",
        "aprepare": "await app.acreate_key(thread)",
        "ring": "app.notify_workers()",
        "aring": "await app.anotify_workers()",
        "run": "app.invoke(input, thread=...)",
        "arun": "await app.ainvoke(input, thread=...)",
    },
    "Context": {
        "remember": "ctx.memory.put(namespace, key, value)",
        "recall": "ctx.memory.get(namespace, key)",
        "aremember": "await ctx.memory.aput(namespace, key, value)",
        "arecall": "await ctx.memory.aget(namespace, key)",
    },
    "Snapshot": {
        "config": "snapshot.key for the thread, snapshot.id for the checkpoint",
        "created_at": "snapshot.timestamp",
        "parent_config": "snapshot.parent_id",
        "tasks": "snapshot.interrupts for open questions, snapshot.next for what runs next",
    },
    "StateGraph": {
        "add_flow": "@flow on a function, then function.compile()",
        "set_finish_point": "graph.set_exit_point(name)",
        "set_conditional_entry_point": "graph.add_conditional_edges(START, router, targets)",
        "add_sequence": "graph.add_edges(START, 'first', 'second', END)",
        "invoke": "app = graph.compile(), then app.invoke(...)",
        "stream": "app = graph.compile(), then app.stream(...)",
        "ainvoke": "app = graph.compile(), then await app.ainvoke(...)",
        "astream": "app = graph.compile(), then app.astream(...)",
        "draw": "graph.compile().draw()",
    },
}

_CALLS = {
    "stream_mode": "mode='updates', 'state' or 'events' of stream()",
    "thread_id": _THREAD,
    "context": "config=",
    "recursion_limit": _OPTIONS,
    "max_steps": _OPTIONS,
    "timeout": "options=ExecutionOptions(timeout=...)",
    "cancel": "options=ExecutionOptions(cancel=...)",
    "interrupt_before": "compile(interrupt_before=...)",
    "interrupt_after": "compile(interrupt_after=...)",
    "durability": "compile(checkpoint=CheckpointConfig(store=..., interval=...))",
    "debug": "stream(..., mode='events')",
    "resume": "resume(thread, answer=...)",
    "workspace": "compile(workspace=...), then app.build(input)",
}

_BUILDS = {
    **_CALLS,
    "config": "app.build({...}) with it in the input: a build cannot tell when a config changes",
}
_MODES_OF_BUILDS = "mode='incremental') with mode 'clean', 'incremental' or 'resume-only'"

_KEYWORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "App": _CALLS,
    "App.invoke": {**_CALLS, "mode": f"app.build(input, {_MODES_OF_BUILDS}"},
    "App.build": _BUILDS,
    "App.abuild": _BUILDS,
    "App.plan": _BUILDS,
    "App.aplan": _BUILDS,
    "App.ainvoke": {**_CALLS, "mode": f"await app.abuild(input, {_MODES_OF_BUILDS}"},
    "StateGraph": {
        "context_schema": "a node parameter named config, and invoke(..., config=...)",
        "config_schema": "a node parameter named config, and invoke(..., config=...)",
        "input_schema": "StateGraph(State, input=...)",
        "output_schema": "StateGraph(State, output=...)",
    },
    "StateGraph.compile": {
        "checkpointer": "compile(store='memory://') or compile(store='sqlite:///runs.db')",
        "debug": "observers=['logging']",
        "name": "StateGraph(State, name=...)",
        "max_steps": "graph.with_default_config(ExecutionConfig(max_steps=...))",
        "retry": "retry= of add_node() and @graph.node()",
    },
    "StateGraph.add_node": {
        "retry_policy": "retry=3 or retry=Retry(attempts=3)",
        "retries": "retry=3",
        "cache_policy": "cache=",
        "destinations": "goto=",
        "ends": "goto=",
        "input_schema": "give= of a subgraph; every other node gets the whole state",
    },
    "StateGraph.add_conditional_edges": {"path_map": "targets="},
    "StateGraph.add_edge": {"condition": "when="},
    "ExecutionOptions": {"recursion_limit": "max_steps="},
    "ExecutionConfig": {"recursion_limit": "max_steps="},
    "Retry": {
        "max_attempts": "attempts=",
        "initial_interval": "delay=",
        "backoff_factor": "factor=",
        "max_interval": "longest=",
        "retry_on": "on=",
    },
}

_USE = "use 'updates', 'state' or 'events'"

_MODES = {
    "values": "mode='state' for the whole state after each step",
    "custom": "mode='updates', which includes what a node passes to ctx.emit()",
    "messages": "mode='updates', and pass the tokens to ctx.emit() in the node",
    "debug": "mode='events'",
    "tasks": "mode='events'",
    "checkpoints": "mode='events'",
}

_IMPORTS = {
    **{name: f"milecastle.errors.{name}" for name in errors.__all__},
    "add_messages": "messages, the reducer of MessagesState",
    "RemoveMessage": "Remove(id); a RemoveMessage of LangChain means the same",
    "REMOVE_ALL_MESSAGES": "REMOVE_ALL",
    "MemorySaver": "compile(store='memory://')",
    "InMemorySaver": "compile(store='memory://')",
    "SqliteSaver": "compile(store='sqlite:///runs.db')",
    "PostgresSaver": "compile(store='postgresql://...')",
    "RetryPolicy": "Retry",
    "Runtime": "Context, a node parameter named ctx",
    "get_stream_writer": "ctx.emit(value) in a node with a parameter named ctx",
}


def refuse_attribute(owner: str, name: str) -> NoReturn:
    """Refuse a missing attribute; for a known one, name the replacement."""
    instead = _ATTRIBUTES.get(owner, {}).get(name)
    if instead is None:
        raise AttributeError(f"{owner} has no attribute '{name}'")
    raise AttributeError(f"{owner} has no '{name}': write {instead}")


def refuse_import(module: str, name: str, instead: str | None = None) -> NoReturn:
    """A name the package does not have.

    For a known habit it is an ``ImportError``: Python does not show the text of an
    ``AttributeError`` to ``from milecastle import name``.
    """
    instead = instead or _IMPORTS.get(name)
    if instead is not None:
        raise ImportError(f"{module} has no '{name}': write {instead}", name=name)
    raise AttributeError(f"module '{module}' has no attribute '{name}'")


def refuse_keywords(call: str, unknown: Collection[str], known: Collection[str]) -> None:
    for name in unknown:
        instead = _KEYWORDS.get(call, _KEYWORDS.get(call.partition(".")[0], {})).get(name)
        if instead is not None:
            raise InvalidRequest(f"{call}() does not take {name}=: write {instead}")
        import difflib

        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}=?" if near else f"it takes {'=, '.join(known)}="
        raise TypeError(f"{call}() does not take {name}=; {advice}")


def explains_keywords(call: F) -> F:
    @wraps(call)
    def explained(*args: Any, **given: Any) -> Any:
        try:
            return call(*args, **given)
        except TypeError:
            import inspect

            known = [*inspect.signature(call).parameters][1:]
            name = call.__qualname__.replace("GraphBuilder.", "StateGraph.")
            unknown = [one for one in given if one not in known]
            refuse_keywords(name.removesuffix(".__init__"), unknown, known)
            raise

    return cast("F", explained)


def refuse_thread(given: object) -> NoReturn:
    if isinstance(given, dict):
        raise InvalidRequest(
            f"pass the thread by name: write {_THREAD} instead of "
            "{'configurable': {'thread_id': 'my-thread'}}"
        )
    raise InvalidRequest(f"a thread is a str or a ThreadKey, not {type(given).__name__}")


def refuse_config(config: object) -> None:
    """Refuse a LangGraph config: here config belongs to the user and is not interpreted."""
    if not isinstance(config, Mapping):
        return
    if "recursion_limit" in config:
        raise InvalidRequest(f"config= is passed to the nodes and sets no limits: write {_OPTIONS}")
    inner = cast("Mapping[str, object]", config).get("configurable")
    if not isinstance(inner, Mapping):
        return
    if "checkpoint_id" in inner:
        raise InvalidRequest(
            "config= is passed to the nodes and does not select a checkpoint: write "
            "app.fork(thread, at=checkpoint_id), then app.resume(thread)"
        )
    if "thread_id" in inner:
        raise InvalidRequest(
            f"pass the thread by name: write {_THREAD} instead of "
            "config={'configurable': {'thread_id': 'my-thread'}}; in a node it is ctx.thread"
        )


def refuse_mode(mode: object) -> NoReturn:
    if isinstance(mode, str) and mode in _MODES:
        raise InvalidRequest(f"there is no stream mode '{mode}'; {_USE}: write {_MODES[mode]}")
    if isinstance(mode, list | tuple | set):
        raise InvalidRequest(
            f"a stream has one mode; {_USE}: write mode='events', which includes everything, and "
            "check each event's type"
        )
    raise InvalidRequest(f"there is no stream mode {mode!r}; {_USE}")
