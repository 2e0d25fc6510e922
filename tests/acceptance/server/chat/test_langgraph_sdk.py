"""LangGraph's server interface against a real server, with LangGraph's own SDK as the client.

What comes back is read by the types that the SDK declares.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, get_type_hints

import httpx
import pytest

pytest.importorskip("langgraph_sdk")

from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.errors import APIStatusError
from langgraph_sdk.schema import (
    Assistant,
    GraphSchema,
    Run,
    Thread,
    ThreadState,
    ThreadUpdateStateResponse,
)
from pydantic import TypeAdapter, create_model

from tests.acceptance.server.chat.graphs import PAUSES
from tests.acceptance.server.processes import LIMIT, Served

APPROVE = {"decisions": [{"type": "approve"}]}
CHAT = ["values", "messages-tuple", "custom"]
"""The modes that the chat front end asks for."""


def base(server: Served) -> str:
    return f"{server.client.base_url}langgraph"


def token(server: Served) -> str:
    return server.client.headers["Authorization"].removeprefix("Bearer ")


@pytest.fixture
def sdk(server: Served) -> Iterator[Any]:
    with get_sync_client(url=base(server), api_key=token(server), timeout=LIMIT) as client:
        yield client


# pydantic does not know the protocols that a context may follow
fields: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(Assistant).items()}
made: Any = create_model
Graph: Any = made("Graph", **(fields | {"context": (dict[str, Any], ...)}))


def typed(shape: Any, found: Any) -> Any:
    """What was answered, which must be what the SDK says that it is."""
    TypeAdapter(shape).validate_python(found)
    return found


@contextmanager
def refused(status: int) -> Generator[None, None, None]:
    """The SDK raises the one or the other, depending on the call."""
    with pytest.raises((APIStatusError, httpx.HTTPStatusError)) as raised:
        yield
    assert raised.value.response.status_code == status


def human(text: str, **more: Any) -> dict[str, Any]:
    message = {"type": "human", "id": f"human-{text}", "content": [{"type": "text", "text": text}]}
    return {"messages": [message], **more}


def texts(values: Any) -> list[Any]:
    return [one["content"] for one in values["messages"] if one["type"] == "ai"]


def test_graphs_are_assistants(sdk: Any) -> None:
    (found,) = typed(list[Graph], sdk.assistants.search())
    assert typed(Graph, sdk.assistants.get(found["assistant_id"]))["graph_id"] == "chat"
    schemas = typed(GraphSchema, sdk.assistants.get_schemas("chat"))
    assert "messages" in schemas["input_schema"]["properties"]
    edges = sdk.assistants.get_graph("chat")["edges"]
    assert {"source": "answer", "target": "__end__", "conditional": False} in edges
    assert sdk.assistants.search(graph_id="other") == []
    with refused(404):
        sdk.assistants.get("other")


def heard(sdk: Any) -> tuple[str, list[Any], list[Any]]:
    """A thread whose run was heard from its beginning, what was said of the run, and its parts."""
    for pause in PAUSES:
        thread = typed(Thread, sdk.threads.create(graph_id="chat"))["thread_id"]
        created: list[Any] = []
        how = {"stream_mode": [*CHAT, "updates"], "on_run_created": created.append}
        parts = [*sdk.runs.stream(thread, "chat", input=human("hi", pause=pause), **how)]
        if "custom" in {part.event for part in parts}:
            return thread, created, parts
    raise AssertionError("what nodes emit does not come")


def test_run_is_streamed(sdk: Any) -> None:
    """Fails if a mode is missing, a message has no type, or the run is not named before it runs."""
    thread, created, parts = heard(sdk)
    names = [part.event for part in parts]
    assert (names[0], names[-1]) == ("metadata", "end")
    assert parts[0].data["run_id"] == created[0]["run_id"]
    assert created[0]["thread_id"] == thread
    assert [part.data for part in parts if part.event == "custom"] == [{"progress": 1}]
    chunks = [part.data[0] for part in parts if part.event == "messages"]
    assert [one["content"] for one in chunks] == ["You ", "said: ", "You said: hi"]
    assert {one["id"] for one in chunks} == {"answer-1"}
    assert [one["type"] for one in chunks] == ["AIMessageChunk", "AIMessageChunk", "ai"]
    (update,) = (part.data for part in parts if part.event == "updates")
    assert (update["answer"]["turns"], len(update["answer"]["messages"])) == (1, 1)
    last = [part.data for part in parts if part.event == "values"][-1]
    assert texts(last) == ["You said: hi"]


def test_thread_is_found_and_shown(sdk: Any) -> None:
    """Fails if a thread is listed without its graph: the list of the front end is then empty."""
    sdk.runs.wait("shown", "chat", input=human("one"))
    sdk.runs.wait("shown", "chat", input=human("two"))
    found = typed(list[Thread], sdk.threads.search(metadata={"graph_id": "chat"}, limit=1))
    assert [one["thread_id"] for one in found] == ["shown"]
    assert sdk.threads.search(metadata={"graph_id": "other"}) == []
    assert sdk.threads.search(status="busy", ids=["shown"]) == []
    assert typed(Thread, sdk.threads.get("shown"))["status"] == "idle"
    runs = typed(list[Run], sdk.runs.list("shown"))
    assert [one["status"] for one in runs] == ["success", "success"]
    assert typed(Run, sdk.runs.get("shown", runs[0]["run_id"])) == runs[0]
    with refused(404):
        sdk.threads.get("nothing")
    with refused(404):
        sdk.runs.get("shown", "nothing")


def test_history_and_state(sdk: Any) -> None:
    """Fails if a state is not that of its checkpoint, or ``before`` is not looked at."""
    sdk.runs.wait("old", "chat", input=human("one"))
    sdk.runs.wait("old", "chat", input=human("two"))
    history = typed(list[ThreadState], sdk.threads.get_history("old", limit=100))
    head = typed(ThreadState, sdk.threads.get_state("old"))
    assert head == history[0]
    assert texts(head["values"]) == ["You said: one", "You said: two"]
    assert history[-1]["parent_checkpoint"] is None
    parents = [one["parent_checkpoint"] for one in history[:-1]]
    assert parents == [one["checkpoint"] for one in history[1:]]
    older = sdk.threads.get_history("old", limit=1, before=head["checkpoint"])
    assert older == history[1:2]
    first = history[-1]["checkpoint"]
    by_place = sdk.threads.get_state("old", checkpoint=first)
    by_id = sdk.threads.get_state("old", checkpoint_id=first["checkpoint_id"])
    assert by_place == by_id == history[-1]
    assert sdk.threads.get_history("never-run") == []


def test_question_is_an_interrupt_and_resumed(sdk: Any) -> None:
    """Fails if the question is missing from the values, the state or the thread."""
    parts = [*sdk.runs.stream("sdk-asks", "chat", input=human("delete it"), stream_mode=CHAT)]
    (interrupt,) = [part.data for part in parts if part.event == "values"][-1]["__interrupt__"]
    assert interrupt["value"]["action_requests"][0]["name"] == "delete"
    assert interrupt["response_schema"]["$defs"]["Answer"]["required"] == ["decisions"]
    state = typed(ThreadState, sdk.threads.get_state("sdk-asks"))
    assert state["tasks"][-1]["interrupts"] == state["interrupts"] == [interrupt]
    thread = typed(Thread, sdk.threads.get("sdk-asks"))
    assert (thread["status"], thread["interrupts"]) == ("interrupted", {"delete": [interrupt]})
    assert typed(list[Run], sdk.runs.list("sdk-asks"))[0]["status"] == "interrupted"
    with refused(422):
        sdk.runs.wait("sdk-asks", "chat", command={"resume": 7})
    values = sdk.runs.wait("sdk-asks", "chat", command={"resume": {interrupt["id"]: APPROVE}})
    assert texts(values) == ["Deleted: approve"]
    assert len(sdk.runs.list("sdk-asks")) == 1


def test_question_is_answered_without_its_id_or_abandoned(sdk: Any) -> None:
    """Fails if the messages of a run that is abandoned are forgotten."""
    sdk.runs.wait("only", "chat", input=human("delete it"))
    assert texts(sdk.runs.wait("only", "chat", command={"resume": APPROVE})) == ["Deleted: approve"]
    sdk.runs.wait("only", "chat", input=human("delete more"))
    parts = [*sdk.runs.stream("only", "chat", command={"goto": "__end__"})]
    assert parts[-1].event == "end"
    assert sdk.threads.get("only")["status"] == "idle"
    sdk.runs.wait("only", "chat", input=human("delete again"))
    values = sdk.runs.wait("only", "chat", input=human("never mind"))
    assert texts(values)[-1] == "You said: never mind"
    humans = [one["id"] for one in values["messages"] if one["type"] == "human"]
    words = ("delete it", "delete more", "delete again", "never mind")
    assert humans == [f"human-{word}" for word in words]


def test_run_that_fails(sdk: Any) -> None:
    with pytest.raises(Exception, match="RuntimeError: no ink"):
        sdk.runs.wait("sdk-fails", "chat", input=human("fail now"))
    parts = [*sdk.runs.stream("sdk-fails", "chat", input=human("fail later"))]
    assert parts[-1].event == "error"
    assert parts[-1].data == {"error": "RuntimeError", "message": "no ink"}
    assert sdk.threads.get("sdk-fails")["status"] == "error"
    state = typed(ThreadState, sdk.threads.get_state("sdk-fails"))
    assert state["tasks"][-1]["error"] == "no ink"


def test_checkpoint_of_a_submission_goes_back_unless_it_is_the_head(sdk: Any) -> None:
    """Fails if the head is taken for a fork: the front end sends it with each message."""
    sdk.runs.wait("forks", "chat", input=human("one"))
    head = sdk.threads.get_state("forks")["checkpoint"]
    place = {name: value for name, value in head.items() if name != "thread_id"}
    sdk.runs.wait("forks", "chat", input=human("two"), checkpoint=place)
    history = sdk.threads.get_history("forks", limit=100)
    assert "fork" not in {one["metadata"]["source"] for one in history}
    values = sdk.runs.wait("forks", "chat", input=human("three"), checkpoint=place)
    assert texts(values) == ["You said: one", "You said: three"]


def test_state_is_updated_copied_and_deleted(sdk: Any) -> None:
    sdk.runs.wait("kept", "chat", input=human("one"))
    place = typed(ThreadUpdateStateResponse, sdk.threads.update_state("kept", {"mood": "good"}))
    assert sdk.threads.get_state("kept")["checkpoint"] == place["checkpoint"]
    copy = typed(Thread, sdk.threads.copy("kept"))
    assert copy["values"]["mood"] == "good"
    sdk.threads.delete("kept")
    with refused(404):
        sdk.threads.get("kept")


def test_strategies_for_a_busy_thread(sdk: Any) -> None:
    """Fails if a second message is lost, or one that is to be refused runs."""
    slow = sdk.runs.create("busy", "chat", input=human("slow", pause=600))
    with refused(409):
        sdk.runs.create("busy", "chat", input=human("no"), multitask_strategy="reject")
    next = typed(Run, sdk.runs.create("busy", "chat", input=human("next", pause=0)))
    assert next["status"] == "pending"
    sdk.runs.cancel("busy", slow["run_id"])
    assert texts(sdk.runs.join("busy", next["run_id"]))[-1] == "You said: next"
    sdk.runs.create("busy", "chat", input=human("slow again", pause=600))
    values = sdk.runs.wait(
        "busy", "chat", input=human("now", pause=0), multitask_strategy="interrupt"
    )
    assert texts(values)[-1] == "You said: now"


def test_messages_that_are_sent_at_once_all_run(server: Served) -> None:
    """Fails if a message is queued only behind a run that was seen before: the others get 409."""
    words = [f"word {number}" for number in range(8)]

    async def send() -> list[Any]:
        async with get_client(url=base(server), api_key=token(server)) as found:
            client: Any = found
            await client.runs.wait("at-once", "chat", input=human("first"))
            sent = (client.runs.create("at-once", "chat", input=human(word)) for word in words)
            runs = await asyncio.gather(*sent)
            await asyncio.gather(*(client.runs.join("at-once", run["run_id"]) for run in runs))
            listed: list[Any] = await client.runs.list("at-once", limit=100)
            return listed

    assert [run["status"] for run in asyncio.run(send())] == ["success"] * 9


@pytest.mark.parametrize("first", ["fail now", "delete it"])
def test_messages_that_are_sent_at_once_to_a_thread_that_waits_are_all_kept(
    server: Served, first: str
) -> None:
    """Was broken: each closed the run of the one before, and five were acknowledged, one stored."""
    words, thread = [f"word {number}" for number in range(6)], f"at-once-{first[:4]}"

    async def send() -> Any:
        async with get_client(url=base(server), api_key=token(server)) as found:
            client: Any = found
            with suppress(Exception):  # the SDK raises what a run failed with
                await client.runs.wait(thread, "chat", input=human(first))
            sent = (client.runs.create(thread, "chat", input=human(word)) for word in words)
            runs = await asyncio.gather(*sent)
            await asyncio.gather(*(client.runs.join(thread, run["run_id"]) for run in runs))
            return (await client.threads.get_state(thread))["values"]

    found = asyncio.run(send())["messages"]
    kept = [one["content"][0]["text"] for one in found if one["type"] == "human"]
    assert kept[0] == first
    assert sorted(text for text in kept if text in words) == words


def test_what_cannot_be_done_is_refused(sdk: Any) -> None:
    """Fails if a setting is accepted and then has no effect."""
    for more in (
        {"webhook": "http://localhost/"},
        {"interrupt_before": ["answer"]},
        {"config": {"recursion_limit": 5}},
        {"metadata": {"user": "ann"}},
        {"context": {"a": 1}},
        {"command": {"goto": "answer"}},
        {"on_completion": "delete"},
    ):
        with refused(400):
            sdk.runs.create("refused", "chat", input=human("x"), **more)
    for call in (
        lambda: sdk.threads.create(metadata={"user": "ann"}),
        lambda: sdk.threads.create(ttl=5),
        lambda: [*sdk.runs.stream("refused", "chat", input={}, stream_mode="debug")],
    ):
        with refused(400):
            call()
    assert sdk.threads.search(ids=["refused"]) == []


def test_stateless_runs_have_threads_of_their_own(sdk: Any) -> None:
    assert texts(sdk.runs.wait(None, "chat", input=human("alone"))) == ["You said: alone"]
    assert [*sdk.runs.stream(None, "chat", input=human("alone"))][-1].event == "end"


# ---- streams that are cut


@contextmanager
def cutting(server: Served, needed: bytes) -> Generator[str, None, None]:
    """A proxy that cuts its first connection after it has passed some bytes on."""
    listener = socket.create_server(("127.0.0.1", 0))
    cuts = [needed]

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=pump, args=(near,), daemon=True).start()

    def pump(near: socket.socket) -> None:
        to = server.client.base_url
        with near, socket.create_connection((to.host, to.port or 80), LIMIT) as far:
            threading.Thread(target=copy, args=(near, far), daemon=True).start()
            seen = b""
            while part := far.recv(65_536):
                near.sendall(part)
                seen += part
                if cuts and cuts[0] in seen:
                    cuts.clear()
                    near.shutdown(socket.SHUT_RDWR)
                    return

    def copy(near: socket.socket, far: socket.socket) -> None:
        try:
            while part := near.recv(65_536):
                far.sendall(part)
        except OSError:
            pass

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/langgraph"
    finally:
        listener.close()


def test_cut_stream_is_continued_by_the_sdk(server: Served) -> None:
    """The connection ends after the first state. The SDK comes back with its ``Last-Event-ID``.

    Fails without ``Location``, if the modes are not in it, and if ids are those of other events.
    """

    async def talk(url: str) -> list[Any]:
        async with get_client(url=url, api_key=token(server)) as client:
            given = human("cut", pause=1.0)
            stream = client.runs.stream("cut", "chat", input=given, stream_mode=["values"])
            return [part async for part in stream]

    with cutting(server, b"event: values") as url:
        parts = asyncio.run(talk(url))
    values = [part for part in parts if part.event == "values"]
    ids = [int(part.id) for part in values]
    assert ids == [*range(1, len(ids) + 1)]
    assert texts(values[-1].data) == ["You said: cut"]
    assert {part.event for part in parts} == {"metadata", "values", "end"}
    assert [part.event for part in parts].count("metadata") == 2
    assert len(server.client.get("/v1/threads/cut/runs").json()["runs"]) == 1


def test_run_is_joined_from_its_beginning_and_from_its_end(server: Served) -> None:
    """Fails if ``-1`` does not replay the run, or replays another."""

    async def join() -> tuple[list[Any], list[Any], Any]:
        async with get_client(url=base(server), api_key=token(server)) as found:
            client: Any = found
            await client.runs.wait("joins", "chat", input=human("one"))
            run = await client.runs.create("joins", "chat", input=human("two"))
            values = await client.runs.join("joins", run["run_id"])
            stream = client.runs.join_stream("joins", run["run_id"], last_event_id="-1")
            whole = [part async for part in stream]
            stream = client.runs.join_stream("joins", run["run_id"], stream_mode=["values"])
            return whole, [part async for part in stream], values

    whole, end, values = asyncio.run(join())
    states = [part.data for part in whole if part.event == "values"]
    assert texts(states[0]) == ["You said: one"]
    assert states[-1] == values
    assert [part.event for part in end] == ["metadata", "values", "end"]
    assert end[1].data == values


def test_stream_that_is_to_cancel_cancels_when_its_reader_leaves(server: Served, sdk: Any) -> None:
    """Fails if the run goes on, and in the second case if it is cancelled."""
    for mode, expected in (("cancel", "cancelled"), ("continue", "running")):
        body = {"assistant_id": "chat", "input": human("x", pause=600), "on_disconnect": mode}
        path = f"{base(server)}/threads/leaves-{mode}/runs/stream"
        headers = {"x-api-key": token(server)}
        with httpx.stream("POST", path, json=body, headers=headers, timeout=LIMIT) as stream:
            lines = stream.iter_lines()  # as long as it is there, the stream is open
            while next(lines) != "event: values":
                pass
            server.rests(f"leaves-{mode}", "running")
        server.rests(f"leaves-{mode}", expected)
    run = sdk.threads.get_state("leaves-continue")["metadata"]["run_id"]
    sdk.runs.cancel("leaves-continue", run, wait=True)
    assert sdk.runs.get("leaves-continue", run)["status"] == "interrupted"
