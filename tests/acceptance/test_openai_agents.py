"""Sessions and run states of the OpenAI Agents SDK in stores: nothing is lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import Session, SessionSettings
from openai.types.responses import ResponseFunctionToolCall

from milecastle import (
    END,
    START,
    CheckpointStore,
    Context,
    InvalidRequest,
    Retry,
    StateGraph,
    ThreadKey,
    interrupt,
)
from milecastle.errors import CodecError
from milecastle.integrations.openai_agents import (
    RecordedModel,
    RunStates,
    ThreadSession,
    record_tool,
)
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from tests.every_store import EVERY_KIND, POSTGRES, Stores

set_tracing_disabled(True)


def message(text: str) -> Any:
    return {"role": "user", "content": text}


def texts(items: list[Any]) -> list[str]:
    return [item["content"] for item in items]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_session_does_what_the_protocol_says(kind: str, stores: Stores) -> None:
    """Of every store. Fails if ``limit`` takes the oldest items, or a pop removes none."""
    session = ThreadSession("a", CheckpointStore(stores.open(kind)))
    assert isinstance(session, Session)

    async def use() -> None:
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([])
        await session.add_items([message("one"), message("two")])
        await session.add_items([message("three")])
        assert texts(await session.get_items(2)) == ["two", "three"]
        assert await session.get_items(0) == []
        assert await session.pop_item() == message("three")
        session.session_settings = SessionSettings(limit=1)
        assert texts(await session.get_items()) == ["two"]
        await session.clear_session()
        assert await session.get_items() == []

    asyncio.run(use())


@pytest.mark.parametrize("kind", ["memory", pytest.param("postgres", marks=POSTGRES)])
def test_writers_of_one_session_lose_no_items(kind: str, stores: Stores) -> None:
    """Four write and one pops: each item is in the session, or was popped once."""
    store = CheckpointStore(stores.open(kind))

    async def write(name: int) -> None:
        for number in range(5):
            await ThreadSession("a", store).add_items([message(f"{name} {number}")])

    async def pop() -> list[Any]:
        return [await ThreadSession("a", store).pop_item() for _ in range(6)]

    async def race() -> list[Any]:
        results: list[Any] = await asyncio.gather(*map(write, range(4)), pop())
        return [*filter(None, results[-1]), *await ThreadSession("a", store).get_items()]

    found = texts(asyncio.run(race()))
    assert sorted(found) == sorted(f"{name} {number}" for name in range(4) for number in range(5))


class Overtaken(CheckpointStore):
    """Lets another writer be first, once, between a read and what is put after it."""

    other: Callable[[], object] | None = None

    def get_latest(self, key: ThreadKey) -> Any:
        found = super().get_latest(key)
        other, self.other = self.other, None
        if other is not None:
            other()
        return found


def test_a_writer_that_was_overtaken_reads_again() -> None:
    """Fails if a change is written on whatever head there is (``head=None``): the other's item is
    lost then, and both pops return the same. Fails if a writer that lost gives up, too.
    """
    store = Overtaken(MemoryStore())
    mine, others = ThreadSession("a", store), ThreadSession("a", CheckpointStore(store.store))
    store.other = lambda: asyncio.run(others.add_items([message("first")]))
    asyncio.run(mine.add_items([message("second")]))
    assert texts(asyncio.run(mine.get_items())) == ["first", "second"]
    popped: list[Any] = []
    store.other = lambda: popped.append(asyncio.run(others.pop_item()))
    popped.append(asyncio.run(mine.pop_item()))
    assert texts(popped) == ["second", "first"]
    assert asyncio.run(mine.get_items()) == []


def test_a_long_session_is_not_stored_again_with_each_item() -> None:
    """Fails if ``delta=True`` is left out: 200 items then take a hundred times the bytes."""
    written: list[int] = []

    class Measuring(WrappedStore):
        def commit(self, batch: Any) -> None:
            written.extend(len(entry.payload) for entry in batch.entries)
            super().commit(batch)

    session = ThreadSession("a", CheckpointStore(Measuring(MemoryStore())))

    async def use() -> None:
        for number in range(200):
            await session.add_items([message(f"{number} " + "x" * 100)])
            if number % 10 == 0:
                await session.pop_item()

    asyncio.run(use())
    assert len(asyncio.run(session.get_items())) == 180
    assert sum(written) < 200 * 130 * 4


def test_a_stored_item_of_an_unknown_type_is_refused() -> None:
    """Fails if what is read is turned into objects: items are plain data, or an error."""

    class Item:
        pass

    session = ThreadSession("a", CheckpointStore(MemoryStore()))
    with pytest.raises(CodecError):
        asyncio.run(session.add_items([message(Item())]))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert asyncio.run(session.get_items()) == []


# -- in a node -----------------------------------------------------------------------------


class State(TypedDict):
    seen: list[str]


def test_a_session_in_a_node_is_changed_once(stores: Stores) -> None:
    """The node fails after each of its changes, before it is recorded, while others write.

    Fails if a change is not looked for by its mark, and if a read is not the one of the first
    attempt.
    """
    store = stores.open("sqlite")
    session = ThreadSession("a", CheckpointStore(store))
    asyncio.run(session.add_items([message("before")]))
    graph = StateGraph(State)
    commit, failed = session._commit, list[str]()  # pyright: ignore[reportPrivateUsage]

    def failing(change: Any, mark: str = "", since: int = 0) -> Any:
        result = commit(change, mark, since)
        if mark and mark not in failed:
            failed.append(mark)
            commit(lambda old: ([*old, message("another's")], None))
            raise ConnectionError
        return result

    @graph.node(retry=Retry(attempts=9, delay=0))
    async def node(state: State) -> dict[str, list[str]]:
        seen = texts(await session.get_items())
        await session.add_items([message("one")])
        await session.add_items([message("two")])
        popped: Any = await session.pop_item()
        return {"seen": [*seen, popped["content"]]}

    graph.add_edges(START, "node", END)
    session._commit = failing  # type: ignore[method-assign] # pyright: ignore[reportPrivateUsage]
    done = graph.compile(store=store).invoke({"seen": []}, thread="t")
    assert len(failed) == 3
    assert done["seen"] == ["before", "another's"]
    left = texts(asyncio.run(session.get_items()))
    assert left == ["before", "one", "another's", "two", "another's"]


class Asking(Model):
    """Asks for one call of the tool."""

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        call = {"type": "function_call", "call_id": "1", "name": "pay", "arguments": "{}"}
        made = ResponseFunctionToolCall.model_validate(call)
        return ModelResponse([made], Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def test_a_tool_that_asks_is_refused(stores: Stores) -> None:
    """Fails if the question is let through: after a resume its answer would be another's."""

    @record_tool
    @function_tool(failure_error_function=None)
    def pay() -> bool:
        return interrupt("Pay?", answer=bool)

    graph = StateGraph(State)

    @graph.node
    async def node(state: State, ctx: Context) -> None:
        model = RecordedModel(Asking())
        with pytest.raises(InvalidRequest, match="streamed"):
            model.stream_response()
        await Runner.run(Agent[None](name="a", model=model, tools=[pay]), "?")

    graph.add_edges(START, "node", END)
    with pytest.raises(Exception, match="cannot ask or sleep"):
        graph.compile(store=stores.open("memory")).invoke({"seen": []}, thread="t")


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_run_state_is_approved_by_another_process(kind: str, stores: Stores) -> None:
    """Saved, loaded with another agent object, approved, cleared; corrupted, it is refused.

    Fails if ``load`` returns what was saved first, or if ``clear`` leaves it.
    """
    paid: list[str] = []

    @function_tool(needs_approval=True)
    def pay() -> str:
        paid.append("paid")
        return "paid"

    make = partial(Agent[None], name="a", tools=[pay], tool_use_behavior="stop_on_first_tool")
    states = RunStates(CheckpointStore(stores.open(kind)))

    async def use() -> None:
        assert await states.load("r", make()) is None
        result = await Runner.run(make(model=Asking()), "?")
        await states.save("r", result.to_state())
        agent = make(model=Asking())
        loaded = await states.load("r", agent)
        assert loaded is not None
        assert paid == []
        (item,) = loaded.get_interruptions()
        loaded.approve(item)
        await states.save("r", loaded)
        again = await states.load("r", agent)
        assert again is not None
        assert (await Runner.run(agent, again)).final_output == "paid"
        await states.clear("r")
        assert await states.load("r", agent) is None
        assert paid == ["paid"]

    asyncio.run(use())


def test_names_of_sessions_and_runs_do_not_meet() -> None:
    """Fails if both use the thread of their name."""
    store = CheckpointStore(MemoryStore())
    asyncio.run(ThreadSession("a", store).add_items([message("one")]))
    asyncio.run(RunStates(store).clear("a"))
    assert texts(asyncio.run(ThreadSession("a", store).get_items())) == ["one"]
    assert store.get_latest(ThreadKey("default", "a")) is None


def test_session_is_not_the_subgraph_of_another() -> None:
    """Failed: it was not listed, and was deleted with the other."""
    with pytest.raises(InvalidRequest, match="U\\+001F"):
        ThreadSession("ann\x1fmallory", CheckpointStore(MemoryStore()))
