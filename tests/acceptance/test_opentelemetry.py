"""Spans and metrics of runs, as OpenTelemetry's SDK gets them."""

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import get_current_span

from milecastle import (
    END,
    START,
    Conflict,
    Context,
    Event,
    ExecutionError,
    InvalidRequest,
    Retry,
    Send,
    StateGraph,
    Worker,
    append,
    inbox,
    interrupt,
)
from milecastle.agents import agent, tool
from milecastle.integrations.opentelemetry import OpenTelemetryObserver
from tests.acceptance.telemetry import (
    Telemetry,
    about,
    id_of,
    links_of,
    parent_of,
    trace_of,
)

SECRET = "the-secret-of-the-state"


class Trip(TypedDict, total=False):
    n: Annotated[int, operator.add]
    word: str
    ok: bool


def line(*nodes: tuple[str, Any], name: str = "trip", **policies: Any) -> StateGraph[Trip]:
    graph: StateGraph[Trip] = StateGraph(Trip, name=name)
    for node, function in nodes:
        graph.add_node(node, function, **policies)
    graph.add_edges(START, *(node for node, _ in nodes), END)
    return graph


def step(state: Trip) -> Trip:
    return {"n": 1}


def ask(state: Trip) -> Trip:
    return {"ok": interrupt("go on?", answer=bool)}


def url(path: Path) -> str:
    return f"sqlite:///{path / 'threads.db'}"


@pytest.mark.requirement("O3", api="integrations.opentelemetry.OpenTelemetryObserver")
def test_a_run_its_steps_tasks_and_commits_are_spans(tmp_path: Path) -> None:
    """Each within the other, with run, thread, node and attempt. Fails if the observer starts
    tasks or commits in the context of the run instead of the step's, or never ends a step."""
    seen = Telemetry()
    app = line(("a", step), ("b", step)).compile(store=url(tmp_path), observers=[seen.observer])
    result = app.invoke({"n": 0}, thread="t")
    app.close()
    run = seen.one("run trip")
    assert parent_of(run) is None
    assert about(run, "milecastle.run.id") == result.run_id
    assert about(run, "milecastle.thread.id") == "t"
    assert about(run, "milecastle.run.status") == "completed"
    steps = seen.named("step")
    assert [about(one, "milecastle.step.number") for one in steps] == [1, 2]
    assert [parent_of(one) for one in steps] == [id_of(run)] * 2
    tasks = [seen.one("task a"), seen.one("task b")]
    assert [parent_of(one) for one in tasks] == [id_of(one) for one in steps]
    assert [about(one, "milecastle.task.attempt") for one in tasks] == [1, 1]
    commits = seen.named("commit")
    assert [about(one, "milecastle.checkpoint.source") for one in commits] == [
        *("input", "step", "step")
    ]
    assert [parent_of(one) for one in commits] == [id_of(run), *map(id_of, steps)]
    counts = seen.counts()
    assert counts["milecastle.segment.duration"] == {"trip completed": 1}
    assert counts["milecastle.step.duration"] == {"trip": 2}
    assert counts["milecastle.task.duration"] == {"trip a": 1, "trip b": 1}
    assert counts["milecastle.commit.duration"] == {"trip": 3}
    assert counts["milecastle.run.active"] == {"trip": 0}


def spanning(seen: Telemetry) -> list[tuple[str, Any]]:
    """Nodes that start their own spans: on the thread of the run, in threads, on the loop."""

    def own(state: Trip) -> Trip:
        with seen.tracer.start_as_current_span("mine"):
            return {"n": 1}

    async def aown(state: Trip) -> Trip:
        with seen.tracer.start_as_current_span("mine"):
            await asyncio.sleep(0)
            return {"n": 1}

    return [("sync", own), ("async", aown)]


@pytest.mark.requirement("O3")
@pytest.mark.parametrize("number", [0, 1], ids=["sync", "async"])
@pytest.mark.parametrize("fans_out", [False, True], ids=["alone", "fan-out"])
def test_spans_of_a_node_are_children_of_its_task(number: int, fans_out: bool) -> None:
    """On the thread of the run, in worker threads and on the loop. Fails if ``wrap_task`` does
    not make its span current."""
    seen = Telemetry()
    name, function = spanning(seen)[number]
    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node(name, function)
    if fans_out:
        sends: Callable[[Trip], list[Send]] = lambda _: [Send(name, {}) for _ in range(3)]  # noqa: E731 -- a router by a name
        graph.add_conditional_edges(START, sends, [name])
    else:
        graph.add_edge(START, name)
    graph.add_edge(name, END)
    graph.compile(observers=[seen.observer]).invoke({"n": 0})
    tasks = sorted(id_of(one) for one in seen.named(f"task {name}"))
    assert len(tasks) == (3 if fans_out else 1)
    assert sorted(parent_of(one) or 0 for one in seen.named("mine")) == tasks
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.requirement("O3")
def test_the_run_of_a_subgraph_is_a_child_of_its_task(tmp_path: Path) -> None:
    """Also when both continue after a question inside of it. Fails if ``begin_child`` does not say
    which task a subgraph runs in."""
    seen = Telemetry()
    inner = line(("deep", step), ("ask", ask), name="inner").compile()
    app = line(("sub", inner)).compile(store=url(tmp_path), observers=[seen.observer])
    assert app.invoke({"n": 0}, thread="t").status == "interrupted"
    assert app.resume("t", answer=True).status == "completed"
    app.close()
    tasks, runs = seen.named("task sub"), seen.named("run inner")
    assert [parent_of(one) for one in runs] == [id_of(one) for one in tasks]
    assert [about(one, "milecastle.run.status") for one in runs] == ["interrupted", "completed"]
    assert links_of(runs[1]) == {"before": id_of(runs[0])}
    assert len({trace_of(one) for one in seen.spans}) == 1


@pytest.mark.requirement("O3")
def test_a_caller_is_the_parent_and_who_resumes_is_linked(tmp_path: Path) -> None:
    """One trace, that of the first caller. Fails if the context is not stored with the run, or if
    the caller of the resume becomes its parent."""
    seen = Telemetry()
    app = line(("a", step), ("ask", ask)).compile(store=url(tmp_path), observers=[seen.observer])
    with seen.tracer.start_as_current_span("request"):
        app.invoke({"n": 0}, thread="t")
    with seen.tracer.start_as_current_span("answer"):
        app.resume("t", answer=True)
    stored = app.state("t").metadata
    app.close()
    first, second = seen.named("run trip")
    assert parent_of(first) == id_of(seen.one("request"))
    assert parent_of(second) == id_of(first)
    assert trace_of(second) == trace_of(first)
    assert links_of(second) == {"caller": id_of(seen.one("answer"))}
    assert f"{trace_of(first):032x}-{id_of(first):016x}" in stored["observer.traceparent"]


@pytest.mark.requirement("O3")
def test_a_run_that_continues_a_failed_one_is_in_its_trace(tmp_path: Path) -> None:
    """With a link to the segment before. Fails if ``_new_record`` does not take over what observers
    stored with the previous run."""
    seen, broken = Telemetry(), [True, True]

    def work(state: Trip) -> Trip:
        if broken and broken.pop():
            raise OSError(SECRET)
        return {"n": 1}

    app = line(("work", work)).compile(store=url(tmp_path), observers=[seen.observer])
    for _ in range(2):
        with pytest.raises(ExecutionError):
            app.invoke({"n": 0}, thread="t")
    assert app.invoke({"n": 0}, thread="t").status == "completed"
    app.close()
    runs = seen.named("run trip")
    assert len({about(one, "milecastle.run.id") for one in runs}) == 3
    assert [about(one, "milecastle.run.status") for one in runs] == [
        *("failed", "failed", "completed")
    ]
    assert [parent_of(one) for one in runs] == [None, id_of(runs[0]), id_of(runs[0])]
    assert [links_of(one) for one in runs] == [{}, {}, {"before": id_of(runs[1])}]
    failed = seen.named("task work")[0]
    assert about(failed, "error.type") == "OSError"
    assert not failed.status.is_ok


@pytest.mark.requirement("O3")
def test_context_is_carried_over_the_queue(tmp_path: Path) -> None:
    """Also with an input that waits behind the run of another. Fails if ``enqueue`` stores
    nothing, or if ``submit`` starts no segment."""
    seen = Telemetry()
    app = line(("a", step), ("ask", ask)).compile(store=url(tmp_path), observers=[seen.observer])
    with seen.tracer.start_as_current_span("first"):
        app.submit({"n": 0}, thread="t")
    with seen.tracer.start_as_current_span("second"):
        assert app.submit({"n": 5}, thread="t", if_busy="queue").status == "queued"
    asyncio.run(Worker([app]).run_until_idle())
    app.answer("t", True)
    asyncio.run(Worker([app]).run_until_idle())
    app.close()
    first, second, answer = seen.named("submit trip")
    assert [parent_of(first), parent_of(second)] == [
        id_of(seen.one("first")),
        id_of(seen.one("second")),
    ]
    runs = seen.named("run trip")
    assert [parent_of(one) for one in runs] == [id_of(first), id_of(first), id_of(second)]
    assert parent_of(answer) == id_of(first)
    assert links_of(runs[1]) == {"before": id_of(answer)}


@pytest.mark.requirement("O3")
def test_inputs_that_are_submitted_together_have_the_same_caller(tmp_path: Path) -> None:
    """Fails if ``submit_many`` leaves the context of its caller behind."""
    seen = Telemetry()
    app = line(("a", step)).compile(store=url(tmp_path), observers=[seen.observer])
    with seen.tracer.start_as_current_span("request"):
        app.submit_many({"one": {"n": 0}, "two": {"n": 0}})
    app.close()
    request = id_of(seen.one("request"))
    assert [parent_of(one) for one in seen.named("submit trip")] == [request] * 2


@pytest.mark.requirement("O3")
def test_no_value_of_the_state_is_in_a_span_unless_asked(tmp_path: Path) -> None:
    """Not in names, attributes, events or statuses, of nodes that return and that raise. Fails if
    the observer records exceptions or updates by default."""

    def speak(state: Trip) -> Trip:
        return {"word": SECRET}

    def fail(state: Trip) -> Trip:
        raise ValueError(SECRET)

    def said(**settings: Any) -> str:
        seen = Telemetry(**settings)
        app = line(("speak", speak), ("fail", fail)).compile(
            store="memory://", observers=[seen.observer]
        )
        with pytest.raises(ExecutionError):
            app.invoke({"n": 0, "word": SECRET}, thread="t")
        return "".join(span.to_json() for span in seen.spans)

    assert SECRET not in said()
    assert SECRET not in said(genai=True)
    shown = said(values=True)
    assert shown.count(SECRET) >= 3  # the update, the message and the stack trace


@pytest.mark.requirement("O3")
def test_retries_conflicts_and_takeovers_are_counted(tmp_path: Path) -> None:
    """Fails if ``wrap_commit`` does not meet what the store raises, or if superseded runs are not
    in its event."""
    seen, failed = Telemetry(), [True]

    def flaky(state: Trip) -> Trip:
        if failed:
            failed.clear()
            raise OSError
        return {"n": 1}

    def overtaken(state: Trip) -> Trip:
        if state.get("n") == 1:
            other.resume("t", take_over=True)
        return {"n": 1}

    graph: StateGraph[Trip] = StateGraph(Trip, name="trip")
    graph.add_node("flaky", flaky, retry=Retry(attempts=2, delay=0))
    graph.add_node("overtaken", overtaken)
    graph.add_edges(START, "flaky", "overtaken", END)
    app = graph.compile(store=url(tmp_path), observers=[seen.observer])
    other = line(("flaky", step), ("overtaken", step)).compile(
        store=url(tmp_path), observers=[seen.observer]
    )
    with pytest.raises(Conflict):
        app.invoke({"n": 0}, thread="t")
    app.close()
    other.close()
    counts = seen.counts()
    assert counts["milecastle.task.retries"] == {"trip flaky OSError": 1}
    assert counts["milecastle.commit.conflicts"] == {"trip": 1}
    assert counts["milecastle.run.takeovers"] == {"trip": 1}
    assert [about(one, "error.type") for one in seen.named("commit")].count("Conflict") == 1
    assert counts["milecastle.segment.duration"]["trip failed Conflict"] == 1


@pytest.mark.requirement("O3")
def test_the_depth_of_the_queue_is_reported(tmp_path: Path) -> None:
    """By graph, whenever metrics are collected. Fails if ``observe_queue`` reads it only once."""
    seen = Telemetry()
    app = line(("a", step)).compile(store=url(tmp_path), observers=[seen.observer])
    seen.observer.observe_queue(app.store)
    app.submit({"n": 0}, thread="t")
    app.submit({"n": 0}, thread="later", delay=600)
    assert seen.counts()["milecastle.queue.depth"] == {
        "trip due": 1,
        "trip later": 1,
        "trip running": 0,
    }
    asyncio.run(Worker([app]).run_until_idle())
    assert seen.counts()["milecastle.queue.depth"]["trip due"] == 0
    app.close()


@pytest.mark.requirement("O3")
def test_genai_attributes_are_set_if_asked_for() -> None:
    """Fails if they are set by default, or if they miss the thread."""
    plain, seen = Telemetry(), Telemetry(genai=True)
    for one in (plain, seen):
        graph = line(("a", step))
        graph.compile(store="memory://", observers=[one.observer]).invoke({"n": 0}, thread="t")
    assert not any("gen_ai" in span.to_json() for span in plain.spans)
    run = seen.one("invoke_workflow trip")
    assert about(run, "gen_ai.operation.name") == "invoke_workflow"
    assert about(run, "gen_ai.workflow.name") == "trip"
    assert about(run, "gen_ai.conversation.id") == "t"


@pytest.mark.requirement("O3")
@pytest.mark.parametrize("is_async", [False, True])
def test_model_calls_and_tools_of_an_agent_have_the_names_of_genai(is_async: bool) -> None:
    """Tokens, model and tool, whatever thread the tool runs in. Fails if they are set by default,
    if facts of parallel tools are mixed, or if a tool's arguments are in a span.
    """

    def model(messages: list[Any]) -> dict[str, Any]:
        usage = {"input": 90, "output": 5, "cache_read": 40, "model": 1, "operation": 2}
        found: dict[str, Any] = {"model": "gpt-5", "usage": usage, "content": "done"}
        calls: list[dict[str, Any]] = [
            {"name": "look", "args": {"title": SECRET}},
            {"name": "fails", "args": {}},
        ]
        return found | ({} if messages[-1]["role"] == "tool" else {"tool_calls": calls})

    async def model_on_loop(messages: list[Any]) -> dict[str, Any]:
        return model(messages)

    async def look(title: str) -> str:
        return title

    def look_now(title: str) -> str:
        return title

    def fails() -> None:
        raise LookupError(SECRET)

    plain, seen = Telemetry(), Telemetry(genai=True)
    tools: list[Any] = [tool(look if is_async else look_now, name="look"), fails]
    for one in (plain, seen):
        app = agent(model_on_loop if is_async else model, tools).compile(
            store="memory://", observers=[one.observer]
        )
        given: Any = {"messages": [{"role": "user", "content": SECRET, "id": "u"}]}
        result = asyncio.run(app.ainvoke(given, thread="t"))
        assert result.status == "completed"
    assert not any("gen_ai" in span.to_json() for span in plain.spans)
    first, second = seen.named("chat gpt-5")
    for span in (first, second):
        assert about(span, "gen_ai.operation.name") == "chat"
        assert about(span, "gen_ai.request.model") == "gpt-5"
        assert about(span, "gen_ai.usage.input_tokens") == 90
        assert about(span, "gen_ai.usage.output_tokens") == 5
        assert about(span, "gen_ai.usage.cache_read.input_tokens") == 40
    found, failed = seen.one("execute_tool look"), seen.one("execute_tool fails")
    assert about(found, "gen_ai.tool.name") == "look"
    assert about(found, "gen_ai.tool.call.id") != about(failed, "gen_ai.tool.call.id")
    assert about(failed, "error.type") == "LookupError"
    assert about(found, "gen_ai.agent.name") == "agent"
    assert not any(SECRET in span.to_json() for span in seen.spans)


@pytest.mark.requirement("O3")
def test_a_sampler_decides_for_the_whole_run(tmp_path: Path) -> None:
    """Spans of nodes and later segments follow the decision; metrics count all. Fails if stored
    contexts are marked as sampled, or if an unsampled task is not current in its node."""
    seen = Telemetry(ParentBased(ALWAYS_OFF))
    nodes = [spanning(seen)[0], ("ask", ask)]
    app = line(*nodes).compile(store=url(tmp_path), observers=[seen.observer])
    app.invoke({"n": 0}, thread="t")
    later = Telemetry()  # samples whatever has no parent
    again = line(*nodes).compile(store=url(tmp_path), observers=[later.observer])
    assert again.resume("t", answer=True).status == "completed"
    app.close()
    again.close()
    assert [*seen.spans, *later.spans] == []
    assert seen.counts()["milecastle.task.duration"]["trip sync"] == 1


class Counting(OpenTelemetryObserver):
    """Counts how often it is called."""

    calls = 0

    def on_event(self, event: Event) -> None:
        self.calls += 1
        super().on_event(event)

    def wrap_task(self, event: Event) -> Any:
        self.calls += 1
        return super().wrap_task(event)

    def wrap_commit(self, event: Event) -> Any:
        self.calls += 1
        return super().wrap_commit(event)


@pytest.mark.requirement("O3")
def test_without_a_provider_a_run_is_not_observed() -> None:
    """No event is created and no node wrapped, so a step costs what it costs without an observer.
    Fails if ``switched_on`` does not ask, or if a proxy counts as a provider."""
    observer = Counting()
    app = line(("a", step)).compile(store="memory://", observers=[observer])
    assert app.invoke({"n": 0}, thread="t").status == "completed"
    assert observer.calls == 0
    assert "observer.traceparent" not in app.state("t").metadata


@pytest.mark.requirement("O3")
def test_a_failing_provider_does_not_break_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if ``begin_segment``, ``end_segment`` or ``wrap_commit`` are called unguarded."""

    for method in ("begin_segment", "end_segment", "wrap_commit", "wrap_task", "on_event"):
        seen = Telemetry()

        def fail(*_: Any) -> Any:
            raise RuntimeError

        setattr(seen.observer, method, fail)
        app = line(("a", step)).compile(store="memory://", observers=[seen.observer])
        assert app.invoke({"n": 0}, thread="t").status == "completed"
        assert "raised RuntimeError" in caplog.text, method
        caplog.clear()


def test_observer_that_raises_releases_its_run() -> None:
    """Failed: the run and its open spans stayed in memory, and the run counted as active."""
    for method in ("on_event", "wrap_commit", "wrap_task"):
        seen = Telemetry()

        def fail(*_: Any) -> Any:
            raise RuntimeError

        ended: list[str] = []
        end = seen.observer.end_segment

        def noted(run_id: str, end: Any = end, ended: list[str] = ended) -> None:
            ended.append(run_id)
            end(run_id)

        setattr(seen.observer, method, fail)
        seen.observer.end_segment = noted  # type: ignore[method-assign]
        app = line(("a", step)).compile(store="memory://", observers=[seen.observer])
        assert ended == [app.invoke({"n": 0}, thread="t").run_id], method


@pytest.mark.requirement("O2", api="StateGraph.compile")
def test_the_observer_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the package declares it, by an entry point. Fails if ``find_observers`` does not look
    for entry points, or hides why one cannot be loaded."""
    known = tmp_path / "signals-1.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: signals\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text(
        "[milecastle.observers]\n"
        "signals = milecastle.integrations.opentelemetry:OpenTelemetryObserver\n"
        "gone = no_such_package:Observer\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    app = line(("a", step)).compile(observers=["signals"])
    (found,) = app.runner.settings.observers
    assert isinstance(found, OpenTelemetryObserver)
    with pytest.raises(InvalidRequest, match=r"no_such_package.*cannot be loaded"):
        line(("a", step)).compile(observers=["gone"])


class Talk(TypedDict):
    said: Annotated[list[str], append, inbox("user")]


@pytest.mark.requirement("O3")
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_run_is_linked_with_the_senders_of_its_messages(is_async: bool) -> None:
    """Sent by a caller, and by a node; received, and drained by an inbox. Tried: no context stored
    with a message; an inbox that is drained without a report."""
    seen = Telemetry()

    def listen(state: Talk, ctx: Context) -> Talk:
        return {"said": [ctx.receive("go")]}

    async def alisten(state: Talk, ctx: Context) -> Talk:
        return {"said": [await ctx.areceive("go")]}

    def forward(state: Talk, ctx: Context) -> None:
        if state["said"] == ["go a"]:
            ctx.send("b", "from a", "user")

    graph: StateGraph[Talk] = StateGraph(Talk, name="talk")
    graph.add_node("listen", alisten if is_async else listen)
    graph.add_node("forward", forward)
    graph.add_edges(START, "listen", "forward", END)
    app = graph.compile(store="memory://", observers=[seen.observer])

    def go(thread: str, **given: Any) -> Any:
        if is_async:
            return asyncio.run(app.ainvoke(given or None, thread=thread))
        return app.invoke(given or None, thread=thread)

    for thread in ("a", "b"):
        go(thread, said=[])
        with seen.tracer.start_as_current_span(f"webhook {thread}"):
            app.send(thread, f"go {thread}", "go")
    assert go("a").status == go("b").status == "completed"
    (first, second) = seen.named("run talk")[2:]
    assert links_of(first)["sender"] == id_of(seen.one("webhook a"))
    senders = [
        one.context.span_id for one in second.links if "sender" in (one.attributes or {}).values()
    ]
    (forwarded, _) = sorted(seen.named("task forward"), key=lambda one: one.start_time or 0)
    assert sorted(senders) == sorted([id_of(seen.one("webhook b")), id_of(forwarded)])
    assert app.state("b").state["said"] == ["go b", "from a"]
