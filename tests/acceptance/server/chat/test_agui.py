"""AG-UI against a real server: every event is read by the types of the protocol's own package.

``Client`` does what front ends do: it keeps messages and state by the events, and refuses events in
an order that the clients of the protocol refuse.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

pytest.importorskip("ag_ui.core")


from ag_ui.core import (
    PROTOCOL_VERSION,
    Event,
    EventType,
    ResumeEntry,
    RunAgentInput,
    UserMessage,
)
from pydantic import TypeAdapter

from tests.acceptance.server.chat.graphs import PAUSES
from tests.acceptance.server.processes import Served

jsonpatch: Any = pytest.importorskip("jsonpatch")
EVENTS: Final[TypeAdapter[Any]] = TypeAdapter(Event)
APPROVE = {"decisions": [{"type": "approve"}]}


class Client:
    """A front end with one thread."""

    def __init__(self, server: Served, thread: str) -> None:
        self.server = server
        self.thread = thread
        self.messages: list[Any] = []
        self.state: Any = None
        self.runs = 0

    def say(self, text: str, **more: Any) -> list[Any]:
        self.messages.append({"id": f"{self.runs}", "role": "user", "content": text})
        return self.run(**more)

    def resume(self, **entry: Any) -> list[Any]:
        return self.run(resume=[ResumeEntry(**entry)])

    def run(self, path: str = "/agui", **more: Any) -> list[Any]:
        """Send a run and read its events, as the last event of a run says when to stop."""
        self.runs += 1
        asked = RunAgentInput(
            thread_id=self.thread,
            run_id=f"run-{self.runs}",
            protocol_version=PROTOCOL_VERSION,
            messages=self.messages,
            **more,
        )
        found: list[Any] = []
        body = asked.model_dump(mode="json", by_alias=True)
        with self.server.client.stream("POST", path, json=body) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            data = (one for one in response.iter_lines() if one.startswith("data: "))
            found += [EVENTS.validate_json(one.removeprefix("data: ")) for one in data]
        for event in found:
            assert not event.model_extra, event
            self.take(event)
        check_order(found)
        assert (found[0].thread_id, found[0].run_id) == (self.thread, f"run-{self.runs}")
        return found

    def take(self, event: Any) -> None:
        if event.type == EventType.STATE_SNAPSHOT:
            self.state = event.snapshot
        elif event.type == EventType.STATE_DELTA:
            patch = [one.model_dump(mode="json", by_alias=True) for one in event.delta]
            self.state = jsonpatch.apply_patch(self.state, patch)
        elif event.type == EventType.TEXT_MESSAGE_START:
            self.messages.append({"id": event.message_id, "role": event.role, "content": ""})
        elif event.type == EventType.TEXT_MESSAGE_CONTENT:
            (message,) = (one for one in self.messages if one["id"] == event.message_id)
            message["content"] += event.delta
        elif event.type == EventType.MESSAGES_SNAPSHOT:
            self.messages = [one.model_dump(mode="json", by_alias=True) for one in event.messages]

    def stored(self) -> Any:
        return self.server.client.get(f"/v1/threads/{self.thread}").json()["state"]


def check_order(events: list[Any]) -> None:
    """What ends had begun, nothing is open at the end, and the run is the first and the last."""
    kinds = [event.type for event in events]
    assert kinds[0] == EventType.RUN_STARTED
    assert kinds[-1] in (EventType.RUN_FINISHED, EventType.RUN_ERROR)
    assert not {EventType.RUN_STARTED, EventType.RUN_FINISHED} & set(kinds[1:-1])
    is_open: Counter[tuple[str, str]] = Counter()
    for event in events:
        name: str = getattr(event, "step_name", "") or getattr(event, "message_id", "")
        kind: str = event.type.value
        what, _, how = kind.rpartition("_")
        is_open[what, name] += {"STARTED": 1, "START": 1, "FINISHED": -1, "END": -1}.get(how, 0)
        assert set(is_open.values()) <= {0, 1} or what == "RUN", event
        if how == "CONTENT":
            assert is_open[what, name] == 1
    is_open.pop(("RUN", ""), None)
    assert not any(is_open.values())


def kinds_of(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


def heard(server: Served) -> tuple[Client, list[Any]]:
    """A client whose first run was heard from its beginning, with the events of that run."""
    for pause in PAUSES:
        client = Client(server, f"talk-{pause}")
        events = client.say("hello", state={"pause": pause})
        if "CUSTOM" in kinds_of(events):
            return client, events
    raise AssertionError("what nodes emit does not come")


def test_conversation_is_streamed(server: Served) -> None:
    """Fails if a patch is wrong, a message comes twice, or a message that is known is stored again.

    The text of the answer is there before its checkpoint: it is not sent again.
    """
    client, first = heard(server)
    assert first[0].protocol_version == PROTOCOL_VERSION
    assert first[-1].outcome.type == "success"
    assert {"STATE_SNAPSHOT", "STATE_DELTA", "TEXT_MESSAGE_CONTENT"} <= set(kinds_of(first))
    steps = [one.step_name for one in first if one.type == EventType.STEP_STARTED]
    assert steps == ["answer"]
    (custom,) = (one for one in first if one.type == EventType.CUSTOM)
    assert (custom.name, custom.value) == ("answer", {"progress": 1})
    client.say("again", state=client.state)
    assert client.state == client.stored()
    assert [one["content"] for one in client.messages] == [
        "hello",
        "You said: hello",
        "again",
        "You said: again",
    ]
    assert [one["id"] for one in client.messages] == [
        one["id"] for one in client.stored()["messages"]
    ]
    assert client.state["turns"] == 2


def test_state_that_the_client_changed_is_an_input(server: Served) -> None:
    """Fails if all of the state is sent to the run, or nothing of it."""
    client = Client(server, "moods")
    client.say("hello", state={"mood": "good"})
    assert client.state["mood"] == "good"
    client.say("again", state={**client.state, "mood": "bad"})
    assert (client.stored()["mood"], client.stored()["turns"]) == ("bad", 2)


def test_question_is_an_outcome_and_its_answer_a_resume(server: Served) -> None:
    """Fails if the schema is missing, or an answer starts another run."""
    client = Client(server, "asks")
    asked = client.say("delete it")
    (interrupt,) = asked[-1].outcome.interrupts
    assert asked[-1].outcome.type == "interrupt"
    assert interrupt.response_schema["$defs"]["Answer"]["required"] == ["decisions"]
    assert interrupt.metadata["question"]["action_requests"][0]["name"] == "delete"
    done = client.resume(interrupt_id=interrupt.id, status="resolved", payload=APPROVE)
    assert done[-1].outcome.type == "success"
    assert client.messages[-1]["content"] == "Deleted: approve"
    assert client.state == client.stored()
    assert len(server.client.get("/v1/threads/asks/runs").json()["runs"]) == 1


def test_question_that_is_abandoned_cancels_the_run(server: Served) -> None:
    client = Client(server, "abandons")
    (interrupt,) = client.say("delete it")[-1].outcome.interrupts
    done = client.resume(interrupt_id=interrupt.id, status="cancelled")
    assert done[-1].outcome.type == "cancelled"
    assert server.rests("abandons", "cancelled")
    assert client.say("sorry")[-1].outcome.type == "success"


def test_answer_of_another_type_is_refused(server: Served) -> None:
    """Fails if it is found out in the stream, where clients see no status."""
    client = Client(server, "wrong")
    (interrupt,) = client.say("delete it")[-1].outcome.interrupts
    entry = {"interruptId": interrupt.id, "status": "resolved", "payload": 7}
    body: Any = {"threadId": "wrong", "runId": "x", "messages": [], "resume": [entry]}
    refused = server.client.post("/agui", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "MC303")


def test_run_that_fails_is_an_error(server: Served) -> None:
    """Fails if the next message is refused, or what was said before is forgotten."""
    client = Client(server, "fails")
    failed = client.say("fail now")
    assert (failed[-1].type, failed[-1].message) == (EventType.RUN_ERROR, "no ink")
    client.say("better")
    said = [one["content"] for one in client.stored()["messages"]]
    assert said == ["fail now", "better", "You said: better"]


def test_same_run_sent_again_is_not_run_again(server: Served) -> None:
    """Fails if the id of the run is not its idempotency key."""
    message = UserMessage(id="u", role="user", content="once")
    asked = RunAgentInput(thread_id="once", run_id="same", messages=[message])
    body = asked.model_dump(mode="json", by_alias=True)
    for _ in range(2):
        answer = server.client.post("/agui/chat", json=body)
        assert '"type": "RUN_FINISHED"' in answer.text
    assert len(server.client.get("/v1/threads/once/runs").json()["runs"]) == 1


def test_graph_that_is_not_served_is_refused(server: Served) -> None:
    body: Any = {"threadId": "t", "runId": "r", "messages": []}
    assert server.client.post("/agui/other", json=body).status_code == 404


def test_client_that_has_no_messages_gets_those_of_the_thread(server: Served) -> None:
    """Fails if old messages are spoken again, or are missing."""
    Client(server, "joined").say("first")
    late = Client(server, "joined")
    late.runs = 7
    events = late.say("second")
    assert [one["content"] for one in late.messages][-3:] == [
        "You said: first",
        "second",
        "You said: second",
    ]
    starts = [one.message_id for one in events if one.type == EventType.TEXT_MESSAGE_START]
    assert starts == ["answer-3"]
