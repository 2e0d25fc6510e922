"""A session of the agent chat front end, replayed: each answer has the type that the SDK declares.

``recorded_session.json`` was made by ``record_session.mjs``: it runs the hook and the client of
LangGraph's JavaScript SDK, with the options that the front end gives them, against this server.
Ids that only the server knows are written as ``{thread}``, ``{run}`` and ``{head}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("langgraph_sdk")

from langgraph_sdk.schema import (
    Interrupt,
    Thread,
    ThreadState,
)
from langgraph_sdk.sse import BytesLineDecoder, SSEDecoder
from pydantic import TypeAdapter

from tests.acceptance.server.processes import Served

SESSION: Any = json.loads((Path(__file__).parent / "recorded_session.json").read_text("utf-8"))

Message = dict[str, Any]
SHAPES: dict[str, Any] = {
    "GET /info": dict[str, Any],
    "POST /threads/search": list[Thread],
    "POST /threads": Thread,
    "POST /threads/{thread}/history": list[ThreadState],
    "POST /threads/{thread}/runs/{run}/cancel": None,
}
EVENTS: dict[str, Any] = {
    "metadata": dict[str, Any],
    "values": dict[str, Any],
    "messages": tuple[Message, dict[str, Any]],
    "custom": dict[str, Any],
    "end": dict[str, str],
}


class Replay:
    """The front end, as far as it has come."""

    def __init__(self, server: Served) -> None:
        token = server.client.headers["Authorization"].removeprefix("Bearer ")
        self.client = httpx.Client(
            base_url=f"{server.client.base_url}langgraph",
            headers={"X-Api-Key": token},
            timeout=server.client.timeout,
        )
        self.known: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def send(self, call: Any) -> None:
        """Send a call, and check its answer."""
        text = None if call["body"] is None else self.named(json.dumps(call["body"]))
        name = f"{call['method']} {call['path'].partition('?')[0]}"
        request = self.client.build_request(
            call["method"], self.named(call["path"]), headers=call["headers"], content=text
        )
        response = self.client.send(request, stream=True)
        assert response.is_success, (name, response.read())
        if name.endswith("/stream"):
            self.read(response, until="values" if self.is_endless(call) else "end")
        else:
            self.check(name, response.read())
        response.close()

    def is_endless(self, call: Any) -> bool:
        """Whether the front end left this stream before its end: the run waits for minutes."""
        body: dict[str, Any] = call["body"] or {}
        given: dict[str, Any] = body.get("input") or {}
        return call["method"] == "GET" or int(given.get("pause", 0)) > 1

    def named(self, text: str) -> str:
        return re.sub(r"\{(thread|run|head)\}", lambda found: self.known[found[1]], text)

    def check(self, name: str, content: bytes) -> None:
        shape = SHAPES[name]
        if shape is None:
            assert content == b""
            return
        found = json.loads(content)
        TypeAdapter(shape).validate_python(found)
        if name == "POST /threads":
            self.known["thread"] = found["thread_id"]
        elif name.endswith("/history") and found:
            self.known["head"] = found[0]["checkpoint"]["checkpoint_id"]

    def read(self, response: httpx.Response, until: str) -> None:
        assert response.headers["content-type"].startswith("text/event-stream")
        self.known["run"] = response.headers["content-location"].rpartition("/")[2]
        for event, data in parts(response):
            TypeAdapter(EVENTS[event]).validate_python(data)
            if event == "values":
                interrupts = data.pop("__interrupt__", [])
                TypeAdapter(list[Interrupt]).validate_python(interrupts)
                self.values = {**data, "interrupts": interrupts}
            if event == until:
                return
        raise AssertionError(f"the stream ended before {until}")


def parts(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """The events of a stream, as the SDK reads them."""
    lines, events = BytesLineDecoder(), SSEDecoder()
    for chunk in response.iter_bytes():
        for line in lines.decode(chunk):
            part: Any = events.decode(bytes(line))
            if part is not None:
                yield part.event, part.data


def test_session_has_every_call_of_the_front_end() -> None:
    """Fails if a recording is cut short: these are the seven calls that the front end makes."""
    names = {f"{call['method']} {call['path'].partition('?')[0]}" for call in SESSION["calls"]}
    streams = {
        "POST /threads/{thread}/runs/stream",
        "GET /threads/{thread}/runs/{run}/stream",
    }
    assert names == {*SHAPES, *streams}


def test_every_answer_is_of_the_type_that_the_sdk_declares(server: Served) -> None:
    """Failed when the states of a history had no tasks."""
    replay = Replay(server)
    asked: list[int] = []
    with replay.client:
        for call in SESSION["calls"]:
            replay.send(call)
            asked.append(len(replay.values.get("interrupts", ())))
    said = [one["content"] for one in replay.values["messages"] if one["type"] == "ai"]
    assert said == ["You said: hello", "Deleted: approve"]
    assert sum(one["type"] == "human" for one in replay.values["messages"]) == 4
    assert max(asked) == 1
    ended = server.rests(replay.known["thread"], "cancelled")
    assert ended["run"]["run_id"] == replay.known["run"]
