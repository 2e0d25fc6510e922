"""What people know from LangGraph works, or fails with what to write instead."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, cast

import pytest

import milecastle
from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Context,
    ExecutionConfig,
    ExecutionOptions,
    InvalidRequest,
    Retry,
    StateGraph,
    Timeout,
)
from milecastle.stores.memory import MemoryStore
from milecastle.support import migration_hints as habits

CONFIGURABLE = {"configurable": {"thread_id": "a"}}


class Count(TypedDict):
    n: int


def up(state: Count) -> Count:
    return {"n": state["n"] + 1}


def declared() -> StateGraph[Count]:
    graph = StateGraph(Count)
    graph.add_node("up", up)
    graph.add_edges(START, "up", END)
    return graph


def made(**settings: Any) -> StateGraph[Count]:
    return StateGraph(Count, **settings)


def counting(**settings: Any) -> App[Count]:
    return declared().compile(**settings)


CALLS = ("invoke", "ainvoke", "stream", "astream", "resume", "aresume")


def call(app: App[Count], name: str, **given: Any) -> None:
    """Make a call in its sync or async form, and read what it streams."""
    found: Any = getattr(app, name)("a" if "resume" in name else {"n": 1}, **given)
    if inspect.isawaitable(found):
        asyncio.run(_awaited(found))
    elif name == "astream":
        asyncio.run(_read(found))
    elif name == "stream":
        list(found)


async def _awaited(found: Awaitable[Any]) -> None:
    await found


async def _read(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("name", CALLS)
def test_every_call_refuses_the_config_of_langgraph(name: str) -> None:
    """Seen to fail without ``refuse_config``: each call began a thread with a new name."""
    app = counting(store="memory://")
    with pytest.raises(InvalidRequest, match="write thread='my-thread' instead of config="):
        call(app, name, config=CONFIGURABLE)
    with pytest.raises(InvalidRequest, match=r"ExecutionOptions\(max_steps"):
        call(app, name, config={"recursion_limit": 5})
    with pytest.raises(InvalidRequest, match=r"app\.fork"):
        call(app, name, config={"configurable": {"checkpoint_id": "1"}})
    assert app.store is not None
    assert not app.store.threads("default")


@pytest.mark.parametrize("config", [{"configurable": {"model": "x"}}, {"name": "x"}, "x", ["x"]])
def test_any_other_config_reaches_the_nodes(config: Any) -> None:
    seen: list[Any] = []
    graph = StateGraph(Count)

    @graph.node
    def look(state: Count, config: Any) -> None:
        seen.append(config)

    graph.add_edges(START, "look", END)
    graph.compile().invoke({"n": 1}, config=config)
    assert seen == [config]


def test_a_configurable_dict_is_not_a_thread() -> None:
    app: Any = counting(store="memory://")
    for method in (app.invoke, app.stream):
        with pytest.raises(InvalidRequest, match="thread='my-thread'"):
            method({"n": 1}, CONFIGURABLE)
    for method in (app.state, app.history, app.resume, app.compatibility):
        with pytest.raises(InvalidRequest, match="thread='my-thread'"):
            method(CONFIGURABLE)
    with pytest.raises(InvalidRequest, match="thread='my-thread'"):
        app.update_state(CONFIGURABLE, {"n": 1})


def test_a_thread_of_another_type_is_refused() -> None:
    app: Any = counting(store="memory://")
    with pytest.raises(InvalidRequest, match="a str or a ThreadKey, not int"):
        app.invoke({"n": 1}, 7)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("habit", "instead"),
    [("stream_mode", "mode="), ("thread_id", "thread="), ("max_steps", "ExecutionOptions")],
)
def test_every_call_refuses_keywords_of_langgraph(name: str, habit: str, instead: str) -> None:
    """Seen to fail with Python's own "unexpected keyword argument"."""
    with pytest.raises(InvalidRequest, match=rf"App\.{name}\(\) does not take {habit}=.*{instead}"):
        call(counting(store="memory://"), name, **{habit: 1})


@pytest.mark.parametrize(
    ("name", "keyword", "instead"),
    [
        ("invoke", "mode", "write app.build(input, mode='incremental')"),
        ("ainvoke", "mode", "write await app.abuild(input, mode='incremental')"),
        ("invoke", "workspace", "write compile(workspace=...), then app.build(input)"),
        ("ainvoke", "workspace", "write compile(workspace=...), then app.build(input)"),
        ("stream", "workspace", "write compile(workspace=...), then app.build(input)"),
    ],
)
def test_arguments_of_file_runs_are_refused_with_the_call_to_write(
    name: str, keyword: str, instead: str
) -> None:
    """Broken on purpose: the entries of the table left out; Python only said "unexpected"."""
    with pytest.raises(InvalidRequest, match=re.escape(instead)):
        call(counting(store="memory://"), name, **{keyword: "clean"})


def test_a_portable_file_is_named_once() -> None:
    """Broken on purpose: ``checkpoint=`` silently won over ``file=``."""
    with pytest.raises(InvalidRequest, match="as file= or as checkpoint=, not both"):
        counting().invoke(file="a.pkl", checkpoint="b.pkl")


def test_a_type_error_of_a_public_call_is_not_hidden() -> None:
    """Broken on purpose: every ``TypeError`` reported as an unknown keyword."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'thread'"):
        cast("Any", counting().resume)()


def test_public_calls_have_no_parameter_that_is_only_refused() -> None:
    """Seen to fail with ``**unknown`` in ``compile``."""
    for owner in (StateGraph, App):
        for name, member in vars(owner).items():
            if inspect.isroutine(member) and not name.startswith("_"):
                assert "unknown" not in inspect.signature(member).parameters, name


def test_declarations_return_the_graph() -> None:
    """Broken on purpose: ``with_default_config`` returned nothing."""
    graph = StateGraph(Count)
    config = ExecutionConfig(max_steps=3)
    made = graph.add_node("up", up).add_node("down", up).add_edges(START, "up", "down")
    made = made.add_edge("up", END, when=lambda state: state["n"] > 1).set_exit_point("down")
    assert made.with_default_config(config).add_edge("up", "down") is graph
    other = StateGraph(Count).add_node("a", up).set_entry_point("a")
    assert (
        other.add_conditional_edges("a", lambda state: END, [END]).compile().graph.name == "Count"
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_keyword_that_nearly_fits_says_which_was_meant(name: str) -> None:
    with pytest.raises(TypeError, match="did you mean option"):
        call(counting(store="memory://"), name, optoins=1)


@pytest.mark.parametrize(
    ("make", "instead"),
    [
        (lambda: counting(checkpointer=object()), r"compile\(store='memory://'\)"),
        (lambda: counting(debug=True), "observers="),
        (lambda: made(context_schema=dict), "named config"),
    ],
)
def test_a_declaration_refuses_keywords_of_langgraph(make: Callable[[], Any], instead: str) -> None:
    with pytest.raises(InvalidRequest, match=instead):
        make()


def test_a_node_and_an_edge_refuse_keywords_of_langgraph() -> None:
    graph: Any = declared()
    for keyword, instead in (("retry_policy", "retry="), ("retries", "retry=3"), ("ends", "goto=")):
        with pytest.raises(InvalidRequest, match=instead):
            graph.add_node("b", up, **{keyword: 3})
        with pytest.raises(InvalidRequest, match=instead):
            graph.node(**{keyword: 3})(up)
    with pytest.raises(InvalidRequest, match="targets="):
        graph.add_conditional_edges("up", up, path_map={})
    with pytest.raises(InvalidRequest, match="when="):
        graph.add_edge("up", END, condition=up)
    with pytest.raises(TypeError, match="did you mean timeout="):
        graph.add_node("b", up, time_out=3)
    with pytest.raises(TypeError, match="defer=True on a node that waits for all"):
        graph.add_edge(["a", "b"], "c")


@pytest.mark.parametrize(
    ("make", "habit", "instead"),
    [
        (Retry, "max_attempts", "attempts="),
        (Retry, "retry_on", "on="),
        (ExecutionOptions, "recursion_limit", "max_steps="),
        (ExecutionConfig, "recursion_limit", "max_steps="),
    ],
)
def test_settings_refuse_keywords_of_langgraph(make: Any, habit: str, instead: str) -> None:
    with pytest.raises(InvalidRequest, match=f"does not take {habit}=: write {instead}"):
        make(**{habit: 3})


@pytest.mark.parametrize("make", [Retry, Timeout, ExecutionOptions, CheckpointConfig])
def test_settings_say_what_they_take(make: Any) -> None:
    with pytest.raises(TypeError, match="it takes "):
        make(zzz=1)


@pytest.mark.parametrize(
    ("mode", "instead"),
    [
        ("values", "mode='state'"),
        ("messages", r"ctx\.emit"),
        ("custom", r"ctx\.emit"),
        ("debug", "mode='events'"),
        (["updates", "state"], "mode='events'"),
        ("nonsense", "use 'updates', 'state' or 'events'"),
    ],
)
def test_a_stream_mode_under_its_old_name_says_the_new_one(mode: Any, instead: str) -> None:
    with pytest.raises(InvalidRequest, match=instead):
        counting().stream({"n": 1}, mode=mode)


@pytest.mark.parametrize(
    ("habit", "instead"),
    [
        ("get_state", "app.state"),
        ("get_state_history", "app.history"),
        ("get_graph", "app.draw"),
        ("draw_mermaid", "app.draw"),
        ("batch", "app.invoke"),
        ("run", "app.invoke"),
    ],
)
def test_a_method_under_its_old_name_says_the_new_one(habit: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=instead):
        getattr(counting(), habit)


@pytest.mark.parametrize(
    ("habit", "instead"),
    [
        ("set_finish_point", "set_exit_point"),
        ("add_flow", "@flow"),
        ("add_sequence", "add_edges"),
        ("invoke", r"graph\.compile\(\)"),
    ],
)
def test_a_method_of_a_graph_under_its_old_name_says_the_new_one(habit: str, instead: str) -> None:
    """Seen to fail without ``StateGraph.__getattr__``."""
    with pytest.raises(AttributeError, match=instead):
        getattr(declared(), habit)


@pytest.mark.parametrize("habit", ["remember", "recall", "aremember", "arecall"])
def test_a_method_of_a_context_under_its_old_name_says_the_new_one(habit: str) -> None:
    """Seen to fail without ``Context.__getattr__``."""
    graph = StateGraph(Count)

    @graph.node
    def look(state: Count, ctx: Context) -> None:
        assert not hasattr(ctx, "nonsense")
        with pytest.raises(AttributeError, match=r"ctx\.memory"):
            getattr(ctx, habit)

    graph.add_edges(START, "look", END)
    graph.compile().invoke({"n": 1})


def test_a_key_of_the_state_is_not_an_attribute_of_the_result() -> None:
    """Seen to fail with Python's own message."""
    app = counting(store="memory://")
    result: Any = app.invoke({"n": 1}, thread="a")
    with pytest.raises(AttributeError, match=r"write result\['n'\], or result\.state"):
        _ = result.n
    snapshot: Any = app.state("a")
    with pytest.raises(AttributeError, match=r"snapshot\.interrupts"):
        _ = snapshot.tasks
    assert not hasattr(result, "nonsense")
    assert not hasattr(snapshot, "nonsense")


def test_settings_of_another_type_are_refused() -> None:
    """Seen to fail: a dict of options failed in the run, ``"logging"`` was read by letters."""
    app: Any = counting()
    with pytest.raises(InvalidRequest, match=r"options= takes ExecutionOptions\(max_steps"):
        app.invoke({"n": 1}, options={"max_steps": 3})
    with pytest.raises(InvalidRequest, match="write store='memory://'"):
        counting(checkpoint="memory://")
    graph: Any = declared()
    with pytest.raises(TypeError, match="takes ExecutionConfig"):
        graph.with_default_config({"max_steps": 3})
    assert counting(observers="logging").invoke({"n": 1})["n"] == 2


def test_any_other_attribute_is_just_not_there() -> None:
    assert not hasattr(counting(), "nonsense")
    assert not hasattr(declared(), "nonsense")
    assert not hasattr(milecastle, "nonsense")


def test_an_import_under_its_old_name_says_the_new_one() -> None:
    """Seen to fail without the module's ``__getattr__``: Python said only "cannot import name"."""
    for name in ("add_messages", "MemorySaver", "RetryPolicy"):
        with pytest.raises(ImportError, match="write "):
            exec(f"from milecastle import {name}")
    for name in ("StateGraph", "START", "END"):
        with pytest.raises(ImportError, match=f"from milecastle import {name}"):
            exec(f"from milecastle.graph import {name}")


def test_what_is_written_instead_is_there() -> None:
    """Every call that a hint names exists; seen to fail with a hint that names app.nothing()."""
    tables = vars(habits)
    hints = " ".join(map(str, (tables["_ATTRIBUTES"], tables["_KEYWORDS"], tables["_MODES"])))
    for owner, found in (("app", App), ("graph", StateGraph)):
        named = set(re.findall(rf"\b{owner}\.(\w+)", hints))
        assert named
        assert [name for name in named if not hasattr(found, name)] == []
    for call, keywords in tables["_KEYWORDS"].items():
        if "." not in call and call not in ("App", "StateGraph"):
            fields = getattr(milecastle, call)._fields
            assert [to for to in keywords.values() if to.rstrip("=") not in fields] == []
        if "." in call:
            owner, _, name = call.partition(".")
            method = getattr(getattr(milecastle, owner), name)
            assert not set(keywords) & set(inspect.signature(method).parameters)


@pytest.mark.parametrize(
    "given", ["runs.db", "data/runs.sqlite", "../a b.sqlite3", Path("runs.db")]
)
def test_the_path_of_a_database_is_refused_with_its_url(given: Any) -> None:
    """Seen to fail: a path was "no URL and no registered name", and a ``Path`` was taken."""
    with pytest.raises(InvalidRequest, match=rf"write store='sqlite:///{given}'"):
        counting(store=given)


def test_the_path_of_a_folder_is_refused_with_its_url() -> None:
    with pytest.raises(InvalidRequest, match="write store='file://runs'"):
        counting(store="runs/")
    with pytest.raises(InvalidRequest, match="a URL, not a path"):
        counting(store=Path("runs"))


@pytest.mark.parametrize("given", ["user:hunter2@host/runs.db", "password=hunter2 dbname=runs.db"])
def test_a_text_that_may_hold_a_password_is_not_repeated(given: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        counting(store=given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("given", [MemoryStore, object(), True, 7])
def test_what_is_not_a_store_is_refused_when_compiled(given: Any) -> None:
    """Seen to fail: the first run raised AttributeError."""
    with pytest.raises(InvalidRequest, match="a registered name or a Store, not "):
        counting(store=given)


ADDRESSED: list[Callable[[Any], Any]] = [
    lambda store: store.put("t", {}),
    lambda store: store.get_latest("t"),
    lambda store: store.get_by_id("t", "id"),
    lambda store: list(store.list_history("t")),
    lambda store: store.update_state("t", "id", new_state={}),
    lambda store: store.delete_thread("t"),
    lambda store: store.prune("t", keep_last=1),
]


@pytest.mark.parametrize("use", ADDRESSED)
def test_a_store_refuses_a_thread_without_a_tenant(use: Callable[[Any], Any]) -> None:
    """Seen to fail: the memory store took ``put("t", {})`` and then could not list its threads."""
    store = milecastle.open_store("memory://")
    with pytest.raises(TypeError, match=r"write ThreadKey\('default', 'my-thread'\)"):
        use(store)
    assert list(store.list_threads("default")) == []


def test_none_as_input_is_resume() -> None:
    app = counting(store="memory://")
    with pytest.raises(Exception, match="no thread 'a'"):
        app.invoke(None, thread="a")


def test_a_router_may_return_a_bool() -> None:
    graph = StateGraph(Count)
    graph.add_node("up", up)
    graph.add_edge(START, "up")

    def enough(state: Count) -> bool:
        return state["n"] >= 3

    graph.add_conditional_edges("up", enough, {True: END, False: "up"})
    assert graph.compile().invoke({"n": 0})["n"] == 3


def test_a_single_name_to_stop_at_needs_no_list() -> None:
    assert counting(store="memory://", interrupt_before="up").invoke({"n": 0}).next == ("up",)


@pytest.mark.parametrize(
    ("module", "old"),
    [
        ("milecastle", "Corrupted"),
        ("milecastle", "CopyReport"),
    ],
)
def test_names_of_another_module_say_which(module: str, old: str) -> None:
    """Fails if a class of another module is just missing."""
    with pytest.raises(ImportError, match=f"{module} has no '{old}': write \\w"):
        getattr(import_module(module), old)
