"""Inboxes: messages join the state at the end of each step, and start a run after the last."""

from __future__ import annotations

import asyncio
from threading import Event, Thread
from typing import Annotated, Any, TypedDict, cast
from unittest.mock import patch

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    ExecutionError,
    InvalidRequest,
    StateGraph,
    Store,
    ThreadKey,
    append,
    inbox,
)
from milecastle.errors import Unavailable
from tests.acceptance.fleet.working import work
from tests.acceptance.running import Runner

KEY = ThreadKey("default", "t")


class Chat(TypedDict):
    said: Annotated[list[str], append, inbox("user")]
    answered: Annotated[list[str], append]


def chatting(store: Store | None, during: Any = None) -> App[Chat]:
    """Answers everything that was said, and looks for more at the end of each turn."""
    graph: StateGraph[Chat] = StateGraph(Chat, name="chat")

    @graph.node
    def turn(state: Chat) -> dict[str, Any]:
        if during is not None:
            during(len(state["answered"]))
        return {"answered": state["said"][len(state["answered"]) :]}

    def more(state: Chat) -> str:
        return "turn" if len(state["said"]) > len(state["answered"]) else END

    graph.set_entry_point("turn")
    graph.add_conditional_edges("turn", more, ["turn", END])
    return graph.compile(store=store)


def said(text: str) -> dict[str, Any]:
    return {"said": [text], "answered": []}


@pytest.mark.requirement("M4")
def test_a_message_to_a_running_agent_is_in_its_next_step(store: Store, run: Runner) -> None:
    """Fails if the inbox is drained after the edges: the loop would end without the message."""

    def during(turn: int) -> None:
        if turn < 3:
            app.send("t", f"note {turn}", "user", key=f"n{turn}")

    app = chatting(store, during)
    result = run.invoke(app, said("hello"), "t")
    assert result.state["answered"] == ["hello", "note 0", "note 1", "note 2"]
    assert not app.mailbox("t")
    assert len(store.runs(KEY)) == 1


@pytest.mark.requirement("M4")
def test_a_message_after_the_end_starts_a_run(store: Store) -> None:
    """Fails if the completed thread's row does not wait for the topics of its inboxes."""
    app = chatting(store)
    app.submit(said("hello"), "t")
    work(app)
    assert app.send("t", "later", "user").status == "completed"
    app.send("t", "other", "topic")
    work(app)
    assert app.wait("t", timeout=30).state["answered"] == ["hello", "later"]
    assert [one.status for one in store.runs(KEY)] == ["completed", "completed"]
    assert [one.value for one in app.mailbox("t")] == ["other"]
    row = store.thread(KEY)
    assert row is not None
    assert (row.due_at, row.waiting_topics) == (None, (("user", 0),))


def test_a_discarded_message_starts_no_run(store: Store) -> None:
    app = chatting(store)
    app.submit(said("hello"), "t")
    work(app)
    app.discard("t", app.send("t", "later", "user").number)
    work(app)
    row = store.thread(KEY)
    assert row is not None
    assert (row.status, row.due_at, row.worker) == ("completed", None, "")
    assert len(store.runs(KEY)) == 1
    app.send("t", "again", "user")
    work(app)
    assert app.state("t").state["answered"] == ["hello", "again"]


@pytest.mark.requirement("M4")
def test_messages_that_meet_the_end_of_a_run_are_never_left(store: Store) -> None:
    """Six messages against a run that ends, ten times. Fails if the row of the completed
    thread does not wait for them.
    """
    begins = Event()

    def during(turn: int) -> None:
        begins.set()

    app = chatting(store, during)
    for number in range(10):
        thread = f"r{number}"
        app.submit(said("hello"), thread)
        begins.clear()

        def send(thread: str = thread) -> None:
            begins.wait(30)
            for text in "abcdef":
                app.send(thread, text, "user")

        sender = Thread(target=send)
        sender.start()
        work(app)
        sender.join()
        work(app)
        assert app.state(thread).state["answered"] == ["hello", *"abcdef"]
        assert not app.mailbox(thread)


def test_the_next_input_comes_with_the_messages_before_it(store: Store, run: Runner) -> None:
    app = chatting(store)
    run.invoke(app, said("hello"), "t")
    app.send("t", "between", "user")
    result = run.invoke(app, {"said": ["next"]}, "t")
    assert result.state["answered"] == ["hello", "next", "between"]
    assert not app.mailbox("t")


def test_async_senders_are_all_answered(store: Store) -> None:
    """Twenty messages at once to a busy thread: stored in the order of their numbers."""
    app = chatting(store)
    app.submit(said("hello"), "t")

    async def send() -> list[int]:
        calls = [app.asend("t", f"m{number}", "user") for number in range(20)]
        return [sent.number for sent in await asyncio.gather(*calls)]

    assert sorted(asyncio.run(send())) == list(range(1, 21))
    order = [one.value for one in app.mailbox("t")]
    work(app)
    assert app.state("t").state["answered"] == ["hello", *order]


def test_an_inbox_has_a_valid_topic() -> None:
    with pytest.raises(InvalidRequest, match="a topic"):
        inbox("__user")


def unread_fails(store: Store, times: int = 1) -> Any:
    """Let the next reads of mailboxes fail, as if the store could not be reached."""
    mailbox = type(store.mailbox)
    honest, left = cast("Any", mailbox).unread, [Unavailable("on purpose")] * times

    def unread(self: Any, *given: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return honest(self, *given, **named)

    return patch.object(mailbox, "unread", unread)


def test_an_inbox_that_cannot_be_read_does_not_end_the_run(store: Store) -> None:
    """Was recorded as a failed run, which nothing retries: a schedule lost its tick. Fails if the
    run records a failure when the store cannot be reached.
    """
    app = chatting(store)
    app.submit(said("hello"), "t")
    with unread_fails(store):
        work(app)
    work(app)
    assert app.state("t").state["answered"] == ["hello"]
    assert [one.status for one in store.runs(KEY)] == ["completed"]


def test_a_first_input_without_its_inbox_leaves_no_trace(store: Store, run: Runner) -> None:
    """Was listed as failed, while ``state`` and ``retry`` said that there is no such thread."""
    app = chatting(store)
    with unread_fails(store), pytest.raises(Unavailable):
        run.invoke(app, said("hello"), "t")
    assert [one.key for one in app.threads()] == []
    assert run.invoke(app, said("hello"), "t").state["answered"] == ["hello"]


def test_an_input_whose_messages_are_refused_is_stored_and_can_be_retried(store: Store) -> None:
    """Was a failed run without an entry: the thread stayed completed and due, and workers started
    a new run for the same message without end. Fails if the error is raised before the input is
    stored.
    """

    def strict(known: list[str], new: list[str]) -> list[str]:
        if "bad" in new:
            raise ValueError("refused")
        return known + new

    class Box(TypedDict):
        said: Annotated[list[str], strict, inbox("user")]
        log: Annotated[list[str], append]

    graph: StateGraph[Box] = StateGraph(Box, name="box")
    graph.add_node("only", lambda state: {"log": ["ran"]})
    graph.add_edges(START, "only", END)
    app = graph.compile(store=store)
    app.submit({"said": ["first"], "log": []}, "t")
    work(app)
    app.send("t", "bad", "user")
    work(app)
    assert (app.state("t").status, app.state("t").next) == ("failed", ("only",))
    assert [one.status for one in store.runs(KEY)] == ["failed", "completed"]
    app.discard("t", app.mailbox("t")[0].number)
    app.retry("t")
    work(app)
    assert app.state("t").state == {"said": ["first"], "log": ["ran", "ran"]}


def test_a_message_that_its_reducer_refuses_stays_unread(store: Store, run: Runner) -> None:
    """Fails if the batch of the failure, with steps that were not saved, consumes the message."""

    def strict(known: list[str], new: list[str]) -> list[str]:
        if "bad" in new:
            raise ValueError("refused")
        return known + new

    class Box(TypedDict):
        said: Annotated[list[str], strict, inbox("user")]

    def send(state: Box) -> dict[str, Any]:
        app.send("t", "bad", "user", key="k")
        return {}

    graph: StateGraph[Box] = StateGraph(Box, name="box")
    graph.add_node("first", lambda state: {"said": ["first"]})
    graph.add_node("send", send)
    graph.add_edges(START, "first", "send", END)
    app = graph.compile(checkpoint=CheckpointConfig(store=store, interval=10))
    with pytest.raises(ExecutionError, match="reducer"):
        run.invoke(app, {"said": []}, "t")
    assert app.state("t").state["said"] == ["first"]
    assert [one.value for one in app.mailbox("t")] == ["bad"]
