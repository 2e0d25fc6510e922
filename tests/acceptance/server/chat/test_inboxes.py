"""Chat clients that speak to a busy thread whose messages have an inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Annotated, Any, TypedDict

import httpx
import pytest

from milecastle import END, START, App, StateGraph, inbox
from milecastle import messages as by_id
from milecastle.server.application import assemble
from milecastle.server.serving import listen
from milecastle.server.tokens import new_secret
from tests.acceptance.server.chat.conftest import serving
from tests.acceptance.server.processes import LIMIT, is_ready
from tests.postgres_cluster import wait_until

COUNT = 20


class Chat(TypedDict):
    messages: Annotated[list[dict[str, Any]], by_id, inbox("user")]


class Busy:
    """A served graph whose first step waits until it is told to go on."""

    def __init__(self, store: str) -> None:
        self.begun, self.go = Event(), Event()
        graph: StateGraph[Chat] = StateGraph(Chat, name="chat")
        graph.add_node("think", self._think)
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", self._more, ["think", END])
        self.app: App[Chat] = graph.compile(store=store)
        self.url, self.headers = "", dict[str, str]()

    def _think(self, state: Chat) -> dict[str, Any]:
        self.begun.set()
        assert self.go.wait(LIMIT)
        return {"messages": [{"id": f"answer-{len(state['messages'])}", "role": "assistant"}]}

    def _more(self, state: Chat) -> str:
        return END if state["messages"][-1]["role"] == "assistant" else "think"


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    token, listening = new_secret(), listen("127.0.0.1", 0)
    found = Busy(f"sqlite:///{tmp_path / 'runs.db'}")
    found.url = f"http://{listening.address}/"
    found.headers = {"Authorization": f"Bearer {token}"}
    with closing(found.app) as app:
        application = assemble([app], tokens=None, token=token, hosts=[], worker=None)
        with (
            serving(application, listening),
            httpx.Client(base_url=found.url, headers=found.headers, timeout=LIMIT) as client,
        ):
            wait_until(lambda: is_ready(client), LIMIT)
            try:
                yield found
            finally:
                found.go.set()


def agui(number: int) -> tuple[str, dict[str, Any]]:
    said = {"id": f"m{number}", "role": "user", "content": f"word {number}"}
    given: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return "agui", {"threadId": "t", "runId": f"run-{number}", "messages": [said], **given}


def langgraph(number: int) -> tuple[str, dict[str, Any]]:
    said = {"id": f"m{number}", "type": "human", "content": f"word {number}"}
    return "langgraph/threads/t/runs", {"assistant_id": "chat", "input": {"messages": [said]}}


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("client", [agui, langgraph])
def test_messages_to_a_busy_thread_are_all_stored_and_read_in_order(
    busy: Busy, client: Callable[[int], tuple[str, dict[str, Any]]]
) -> None:
    """Was broken: AG-UI's were refused while the first run was busy."""

    async def talk() -> list[int]:
        async with httpx.AsyncClient(
            base_url=busy.url, headers=busy.headers, timeout=LIMIT
        ) as sender:

            async def say(number: int) -> int:
                path, body = client(number)
                return (await sender.post(path, json=body)).status_code

            said = [asyncio.create_task(say(0))]
            await asyncio.to_thread(busy.begun.wait, LIMIT)
            said += [asyncio.create_task(say(number)) for number in range(1, COUNT + 1)]
            await asyncio.to_thread(wait_until, lambda: len(sent(busy)) == COUNT, LIMIT)
            busy.go.set()
            return await asyncio.gather(*said)

    def sent(busy: Busy) -> list[Any]:
        found = busy.app.mailbox("t")
        kept.extend(one.value["id"] for one in found[len(kept) :])
        return [*found]

    kept: list[str] = []
    assert asyncio.run(talk()) == [200] * (COUNT + 1)
    busy.app.wait("t", timeout=LIMIT)
    asked = [one["id"] for one in busy.app.state("t").state["messages"] if one["id"][0] == "m"]
    assert asked == ["m0", *kept]
    assert len(set(kept)) == COUNT
    assert not busy.app.mailbox("t")
