"""Lists that are updated by id, in runs: on every store, through crashes, in LangChain's types."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from milecastle import (
    END,
    REMOVE_ALL,
    START,
    App,
    ExecutionConfig,
    ExecutionError,
    MessagesState,
    Remove,
    Send,
    StateGraph,
    ThreadKey,
    add,
    append,
    initial,
)
from milecastle.codec.deltas import LogCodec
from milecastle.codec.objects import RecordShape, shape_for
from milecastle.codec.pickles import PickleCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import UntypedCodec, ValueCodec
from milecastle.errors import CodecError
from milecastle.testing import crash_everywhere
from tests.every_store import EVERY_KIND, Stores

Script = list[list[Any]]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


def texts(state: Any) -> list[str]:
    return [message["text"] for message in state["messages"]]


class Scripted(MessagesState):
    turn: Annotated[int, add, initial(int)]


def scripted(script: Script, **settings: Any) -> App[Scripted]:
    """Each step makes the next update of a script."""
    graph = StateGraph(Scripted)
    graph.add_node("say", lambda state: {"turn": 1, "messages": script[state["turn"]]})
    graph.add_edge(START, "say")
    graph.add_edge("say", "say", when=lambda state: state["turn"] < len(script))
    graph.add_edge("say", END)
    graph.with_default_config(ExecutionConfig(max_steps=1000, cycle_detection=False))
    return graph.compile(**settings)


def random_script(length: int) -> Script:
    random = Random(7)

    def item() -> Any:
        id = str(random.randrange(12))
        kind = random.random()
        if kind < 0.02:
            return REMOVE_ALL
        return Remove(id) if kind < 0.2 else {"id": id, "text": "x" * random.randrange(30)}

    return [[item() for _ in range(random.randrange(4))] for _ in range(length)]


@pytest.mark.requirement("G6")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_checkpoint_reads_as_it_was(stores: Stores, kind: str) -> None:
    """A list that is updated by id, at any point of its history.

    Fails if a store, a rollup or a snapshot changes what a chain of edits means.
    """
    script = random_script(300)
    app = scripted(script, store=stores.open(kind))
    seen = [event.state for event in app.stream({}, thread="t", mode="state")]
    history = [known.seq for known in app.history("t")][::-1]
    assert len(seen) == len(history) == 301
    for at in (*range(0, 300, 23), 128, 129, 130, 300):
        assert app.state("t", at=history[at]).state == seen[at]
    app.fork("t", at=history[150], as_thread="u")
    assert app.state("u").state == seen[150]
    app.update_state("t", {"messages": [REMOVE_ALL, {"id": "z", "text": "new"}]}, at=history[40])
    assert texts(app.state("t").state) == ["new"]
    app.update_state("t", {"messages": [{"id": "z", "text": "newer"}, {"id": "y", "text": "y"}]})
    assert texts(app.state("t").state) == ["newer", "y"]


class Shared(MessagesState):
    item: int


def family(**settings: Any) -> App[Shared]:
    """A fan-out whose tasks add messages, then a subgraph that changes, removes and adds some."""
    inner = StateGraph(Shared, name="inner")
    inner.add_node(
        "tidy",
        lambda state: {
            "messages": [
                Remove(state["messages"][1]["id"]),
                {**state["messages"][0], "text": "changed"},
                {"text": "from inside"},
            ]
        },
    )
    inner.add_edges(START, "tidy", END)
    graph = StateGraph(Shared)
    graph.add_node("split", lambda state: {})
    graph.add_node("work", lambda state: {"messages": [{"text": f"item {state['item']}"}]})
    graph.add_node("inner", inner.compile())
    graph.add_edges(START, "split")
    graph.add_conditional_edges(
        "split", lambda state: [Send("work", {"item": n}) for n in range(12)], ["work"]
    )
    graph.add_edges("work", "inner", END)
    return graph.compile(**settings)


EXPECTED = ["changed", *(f"item {n}" for n in range(12)), "from inside"]


@pytest.mark.requirement("G6")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_fan_outs_and_subgraphs_update_by_id(stores: Stores, kind: str) -> None:
    """Messages of parallel tasks and of subgraphs are merged by id.

    Fails if two items of a fan-out get one id, or a subgraph's removal is not part of its update.
    """
    app = family(store=stores.open(kind))
    given = {"messages": [{"text": "hello"}, {"text": "second"}], "item": 0}
    state = app.invoke(given, thread="t").state
    assert texts(state) == EXPECTED
    assert app.state("t").state == state
    assert len({message["id"] for message in state["messages"]}) == len(EXPECTED)
    assert app.invoke(given, thread="t").reused  # the ids are not part of the input


def test_no_crash_changes_the_messages(stores: Stores) -> None:
    """Fails if a crash repeats a committed message, loses one, or leaves two with one id."""

    def same(one: Shared, other: Shared) -> bool:
        ids = [message["id"] for message in other["messages"]]
        return texts(one) == texts(other) == EXPECTED and len(set(ids)) == len(ids)

    given = {"messages": [{"text": "hello"}, {"text": "second"}], "item": 0}
    report = crash_everywhere(family(), given, compare=same)
    assert report.crashes > 20


def test_an_id_is_made_once(stores: Stores) -> None:
    """Fails if an id is made when an update is applied and not when it is returned: the rows of
    tasks that finished before a failure would have none."""
    broken = True

    def second(state: Any) -> Any:
        if broken:
            raise RuntimeError
        return {"messages": [{"text": "second"}]}

    graph = StateGraph(MessagesState)
    graph.add_node("first", lambda state: {"messages": [{"text": "first"}]})
    graph.add_node("second", second)
    graph.add_edges(START, "first", END)
    graph.add_edges(START, "second", END)
    store = stores.open("sqlite")
    app = graph.compile(store=store)
    with pytest.raises(ExecutionError, match="second"):
        app.invoke({}, thread="t")
    (row,) = [
        row for row in store.results(ThreadKey("default", "t")) if row.task.endswith(":first")
    ]
    kept = LogCodec(UntypedCodec()).decode_state(LogCodec(UntypedCodec()).unseal_result(row))
    broken = False
    state = app.resume("t").state
    assert state["messages"][0] == kept["messages"][0]


class Stubborn:
    """A message that cannot be copied."""

    id = None

    def __copy__(self) -> Any:
        raise ValueError("no")


@pytest.mark.parametrize("width", [1, 2])
def test_a_message_that_cannot_get_an_id_fails_its_node(width: int) -> None:
    """Fails if its exception leaves the engine as it is, without the node."""
    graph = StateGraph(MessagesState)
    for n in range(width):
        graph.add_node(f"node{n}", lambda state: {"messages": [Stubborn()]})
        graph.add_edges(START, f"node{n}", END)
    with pytest.raises(ExecutionError, match="node0") as caught:
        graph.compile(store="memory://").invoke({}, thread="t")
    assert isinstance(caught.value.cause, ValueError)


def test_streamed_updates_have_the_ids_of_the_state() -> None:
    """Fails if a reader of the stream sees a message without the id that is stored."""
    app = scripted([[{"text": "a"}], [{"text": "b"}]])
    updates = [event.update for event in app.stream({}, mode="updates")]
    final = [event.state for event in app.stream({}, mode="state")][-1]
    assert all(update["messages"][0]["id"] for update in updates)
    assert texts(final) == ["a", "b"]


class Log(TypedDict):
    messages: Annotated[list[Any], append]


@pytest.mark.requirement("G6")
@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
def test_messages_cost_little_more_than_append(tmp_path: Path, kind: str) -> None:
    """600 short messages take at most 1.5 times the bytes of ``append``, which gives them no ids.

    Fails if more than the update is stored: with the new list in each entry it is 30 times.
    """

    def stored(state: Any, folder: str) -> int:
        graph = StateGraph(state)
        graph.add_node("say", lambda state: {"messages": [{"role": "ai", "content": "So be it."}]})
        graph.add_edge(START, "say")
        graph.add_edge("say", "say", when=lambda state: len(state["messages"]) < 600)
        graph.add_edge("say", END)
        graph.with_default_config(ExecutionConfig(max_steps=1000))
        stores = Stores(tmp_path / folder)
        (tmp_path / folder).mkdir()
        graph.compile(store=stores.open(kind)).invoke({}, thread="t")
        stores.close()
        return sum(path.stat().st_size for path in (tmp_path / folder).rglob("*") if path.is_file())

    assert stored(MessagesState, "messages") <= 1.5 * stored(Log, "append")


def test_a_start_value_that_was_added_later_is_stored(tmp_path: Path) -> None:
    """Fails if the first update of an added key is stored without the value that it was added to:
    the run would return 11, and reading it 1."""

    class Before(TypedDict):
        text: str

    class After(TypedDict):
        text: str
        count: Annotated[int, add, initial(lambda: 10)]

    def app_of(state: Any, update: Any) -> App[Any]:
        graph = StateGraph(state, name="grown")
        graph.add_node("one", lambda state: {})
        graph.add_node("two", lambda state: update)
        graph.add_edges(START, "one", "two", END)
        return graph.compile(store=f"sqlite:///{tmp_path}/x.db", interrupt_before=["two"])

    before = app_of(Before, {})
    before.invoke({"text": "a"}, thread="t")
    before.close()
    after = app_of(After, {"count": 1})
    assert after.resume("t").state == {"text": "a", "count": 11}
    assert after.state("t").state == {"text": "a", "count": 11}
    after.close()


# ---- LangChain


def codec() -> ValueCodec:
    return ValueCodec(TypeRegistry.for_annotations([]))


@pytest.fixture
def langchain() -> Any:
    return pytest.importorskip("langchain_core.messages", reason="langchain-core is not installed")


def every_message(langchain: Any) -> list[Any]:
    call = {"name": "find", "args": {"q": [1, None]}, "id": "c1", "type": "tool_call"}
    changed = langchain.AIMessage("late")
    changed.additional_kwargs["key"] = "set in place"
    return [
        langchain.HumanMessage("hi", id="1", name="me"),
        langchain.AIMessage("", tool_calls=[call], response_metadata={"model": "m"}),
        langchain.AIMessage([{"type": "text", "text": "part"}], more="extra"),
        changed,
        langchain.SystemMessage("rules"),
        langchain.ToolMessage("found", tool_call_id="c1", artifact=(1, {2}), status="error"),
        langchain.ChatMessage(role="critic", content="no"),
        langchain.FunctionMessage(name="f", content="x"),
        langchain.RemoveMessage(id="3"),
        langchain.AIMessageChunk(content="d", id="4"),
        langchain.HumanMessageChunk(content="d"),
    ]


def test_messages_of_langchain_come_back_exactly(langchain: Any) -> None:
    """Fails if a field, an extra field or the class is lost."""
    for message in every_message(langchain):
        read: Any = codec().decode(codec().encode([message]))
        assert type(read[0]) is type(message)
        assert read[0] == message
        assert read[0].model_dump() == message.model_dump()


def test_messages_of_langchain_come_back_with_the_fields_that_were_set(langchain: Any) -> None:
    """Fails if a field that was set to its default is lost, or one that was not set is stored."""
    message = langchain.HumanMessage("hi", name=None)
    read: Any = codec().decode(codec().encode(message))
    assert read.model_dump(exclude_unset=True) == message.model_dump(exclude_unset=True)


def test_messages_of_langchain_that_a_state_declares_are_stored_by_the_table(
    langchain: Any,
) -> None:
    """Fails if they are stored with all fields, so that the next version cannot read them."""
    declared = ValueCodec(TypeRegistry.for_annotations([list[langchain.AnyMessage]]))
    for message in every_message(langchain):
        assert declared.encode(message) == codec().encode(message)


def test_messages_that_earlier_versions_stored_are_read(langchain: Any) -> None:
    """Fails if a thread whose state declares LangChain's messages cannot be read any more."""
    message = langchain.AIMessage("old", id="1")
    shape = shape_for(langchain.AIMessage, "AIMessage")
    assert isinstance(shape, RecordShape)
    body = msgspec.msgpack.encode(["AIMessage", *shape.sections(message)])
    stored = msgspec.msgpack.encode(msgspec.msgpack.Ext(31, body))
    declared = ValueCodec(TypeRegistry.for_annotations([list[langchain.AnyMessage]]))
    assert declared.decode(stored) == message


def test_messages_are_in_portable_files(langchain: Any) -> None:
    """Fails if a file with messages cannot be read, by Milecastle or by ``pickle.load``."""
    registry = TypeRegistry.for_annotations([])
    for message in (*every_message(langchain), Remove("1")):
        data = PickleCodec(registry).dumps([message])
        assert PickleCodec(registry).loads(data) == [message]
        assert pickle.loads(data) == [message]


@pytest.mark.parametrize("kind", ["memory", "jsonl", "sqlite"])
def test_an_agent_with_messages_of_langchain(stores: Stores, kind: str, langchain: Any) -> None:
    """Fails if they get no ids, are not replaced by id, or ``RemoveMessage`` does not remove."""
    graph = StateGraph(MessagesState)

    def model(state: MessagesState) -> Any:
        return {"messages": [langchain.AIMessage(f"you said {state['messages'][0].content}")]}

    def trim(state: MessagesState) -> Any:
        first, last = state["messages"]
        assert first.id
        return {"messages": [langchain.RemoveMessage(id=first.id), last.model_copy()]}

    graph.add_node("model", model)
    graph.add_node("trim", trim)
    graph.add_edges(START, "model", "trim", END)
    app = graph.compile(store=stores.open(kind))
    hello = langchain.HumanMessage("hi")
    (reply,) = app.invoke({"messages": [hello]}, thread="t").state["messages"]
    assert (type(reply), reply.content, hello.id) == (langchain.AIMessage, "you said hi", None)
    assert app.state("t").state["messages"] == [reply]
    everything = [langchain.RemoveMessage(id="__remove_all__"), langchain.HumanMessage("new")]
    app.update_state("t", {"messages": everything})
    assert [message.content for message in app.state("t").state["messages"]] == ["new"]


def adapted(name: str, part: Any) -> bytes:
    body = msgspec.msgpack.encode([name, part])
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(33, body))


@pytest.mark.parametrize(
    "name",
    [
        "AIMessage",
        "langchain.AIMessage",
        "langchain.BaseMessage",
        "langchain.convert_to_messages",
        "langchain_core.messages.AIMessage",
        "langchain_core.messages.ai.AIMessage",
        "os.system",
        "subprocess.Popen",
        "",
    ],
)
def test_stored_names_that_are_not_in_the_table_are_refused(name: str, langchain: Any) -> None:
    """Fails if a class, a function or a module is found by what was stored."""
    assert codec().decode(adapted("langchain.AI", {"content": "x"})) == langchain.AIMessage("x")
    with pytest.raises(CodecError, match="neither declared by the state nor registered"):
        codec().decode(adapted(name, {"content": "x"}))


@pytest.mark.parametrize(
    "part",
    [None, [], "text", {}, {"id": "1"}, {"content": "x", "_fields_set": []}, {1: "x"}],
)
def test_stored_messages_without_their_fields_are_refused(part: Any, langchain: Any) -> None:
    """Fails if a message without content is made, or another exception is raised."""
    with pytest.raises(CodecError, match=r"from_plain of langchain\.AI|damaged"):
        codec().decode(adapted("langchain.AI", part))


def test_nothing_of_langchain_is_imported_because_it_is_stored() -> None:
    """Fails if reading, or ``import milecastle``, imports LangChain or pydantic."""
    script = (
        "import sys, milecastle\n"
        "from milecastle.codec.registry import TypeRegistry\n"
        "from milecastle.codec.values import UntypedCodec, ValueCodec\n"
        f"data = {adapted('langchain.AI', {'content': 'x'})!r}\n"
        "try: ValueCodec(TypeRegistry()).decode(data)\n"
        "except milecastle.errors.CodecError: print('refused')\n"
        "print(dict(UntypedCodec().decode(data)))\n"
        "print(sorted({'langchain_core', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "refused",
        "{'$type': 'langchain.AI', 'value': {'content': 'x'}}",
        "[]",
    ]
