"""Spans for runs, steps, tasks and commits.

Rules:

- A run's first segment starts a span, as a child of whatever is current where it starts. Its
  context is stored with the run. Each later segment, in whatever process, is its child, and so is a
  run continuing this one: together they are one trace. A link leads to the segment before, and to
  the current span where the run is resumed.
- A subgraph's run is a child of the task it runs in.
- A task's span is current while its node runs, so the node's spans are its children.
- Only the trace context is stored, never baggage. No state value is in a span, unless asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any

import msgspec
from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.status import StatusCode

from milecastle.app.runs.submission import require_shared
from milecastle.errors import Conflict
from milecastle.integrations.opentelemetry import names
from milecastle.integrations.opentelemetry.meters import Meters, observe_depths
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Segment
from milecastle.observers.annotations import annotated
from milecastle.ports.store import Store
from milecastle.version import __version__

Attributes = dict[str, str | int]

_propagator = TraceContextTextMapPropagator()

_BEFORE = "before"
"""Under this name the context of the newest segment is stored, beside that of the first."""

_STATUSES: Mapping[str, str] = {
    "graph_complete": "completed",
    "graph_failed": "failed",
    "interrupt": "interrupted",
    "sleep": "sleeping",
}


class _Timed:
    __slots__ = ("began", "context", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.context = trace.set_span_in_context(span, Context())
        self.began = monotonic()

    def end(self, error: str | None = None) -> float:
        if error is not None:
            self.span.set_attribute(names.ERROR, error)
            self.span.set_status(StatusCode.ERROR)
        self.span.end()
        return monotonic() - self.began


class _Run:
    def __init__(self, segment: Segment, whole: _Timed) -> None:
        self.graph = segment.graph
        self.key = segment.key
        self.whole = whole
        self.status = "queued"
        self.error: str | None = None
        self.number = 0
        self.step: _Timed | None = None
        self.started: dict[str, Event] = {}
        self.tasks: dict[str, _Timed] = {}

    @property
    def within(self) -> Context:
        return (self.step or self.whole).context


class OpenTelemetryObserver:
    """Reports runs to OpenTelemetry, by the process's providers or by those given here.

    ``genai`` adds the attributes of the GenAI conventions, which are in development, to runs, and
    to the model calls and tools of agents.
    ``values`` adds node results and exceptions, with their messages. While
    no provider is set, runs cost nothing more.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        genai: bool = False,
        values: bool = False,
    ) -> None:
        self._given = tracer_provider, meter_provider
        self._genai = genai
        self._values = values
        self._providers: tuple[TracerProvider, MeterProvider] | None = None
        self._runs: dict[str, _Run] = {}
        self._threads: dict[ThreadKey, _Run] = {}
        self._tracer: Tracer
        self._meters: Meters
        self._find()

    def observe_queue(self, store: Store) -> None:
        """Report a store's threads that wait for workers, whenever metrics are collected.

        Every process calling this reports the same numbers. Call it once, after the metrics
        provider was set.
        """
        provider = self._given[1] or metrics.get_meter_provider()
        meter = provider.get_meter(names.SCOPE, __version__)
        observe_depths(meter, require_shared(store).depths)

    def is_on(self) -> bool:
        """True if a provider does anything."""
        return self._find()

    def _find(self) -> bool:
        tracers = self._given[0] or trace.get_tracer_provider()
        meters = self._given[1] or metrics.get_meter_provider()
        if self._providers != (tracers, meters):
            self._tracer = tracers.get_tracer(names.SCOPE, __version__)
            meter = meters.get_meter(names.SCOPE, __version__)
            self._meters = Meters(meter)
            self._providers = tracers, meters
            self._is_on = not (_does_nothing(self._tracer) and _does_nothing(meter))
        return self._is_on

    # ---- segments

    def begin_segment(self, segment: Segment) -> dict[str, str]:
        """Start a run's span; its context is stored with the run."""
        first = _span_context(segment.carried)
        before = _span_context({"traceparent": segment.carried.get(_BEFORE, "")})
        current = trace.get_current_span().get_span_context()
        parent: Context | None = None
        linked: dict[str, SpanContext] = {}
        if segment.parent is not None:
            parent = self._task_of(*segment.parent)
            linked = {"before": before}
        elif first.is_valid:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(first), Context())
            linked = {"before": before, "caller": current}
        above = trace.get_current_span(parent).get_span_context()
        whole = _Timed(
            self._tracer.start_span(
                self._name(segment),
                parent,
                SpanKind.PRODUCER if segment.queues else SpanKind.INTERNAL,
                self._describe(segment),
                [
                    Link(found, {names.LINK: why})
                    for why, found in linked.items()
                    if found.is_valid and found.span_id != above.span_id
                ],
            )
        )
        self._runs[segment.run_id] = run = _Run(segment, whole)
        if segment.key is not None:
            self._threads[segment.key] = run
        self._meters.active(1, {names.GRAPH: segment.graph})
        own = _words(whole.context)
        return {**own, **segment.carried, _BEFORE: own["traceparent"]} if own else {}

    def message_sent(self) -> dict[str, str]:
        """Trace context of the sender's current span."""
        return _words(contexts.get_current()) if self._find() else {}

    def message_received(self, run_id: str, stored: Mapping[str, str]) -> None:
        """Link the run's span to its sender's."""
        run, sender = self._runs.get(run_id), _span_context(stored)
        if run is not None and sender.is_valid:
            run.whole.span.add_link(sender, {names.LINK: "sender"})

    def _name(self, segment: Segment) -> str:
        if segment.queues:
            return f"submit {segment.graph}"
        return f"{names.INVOKE_WORKFLOW if self._genai else 'run'} {segment.graph}"

    def _describe(self, segment: Segment) -> Attributes:
        found: Attributes = {names.RUN_ID: segment.run_id, names.GRAPH: segment.graph}
        if segment.key is not None:
            found |= {names.THREAD: segment.key.thread, names.TENANT: segment.key.tenant}
        if self._genai and not segment.queues:
            found[names.GENAI_OPERATION] = names.INVOKE_WORKFLOW
            found[names.GENAI_WORKFLOW] = segment.graph
            if segment.key is not None:
                found[names.GENAI_CONVERSATION] = segment.key.thread
        return found

    def _task_of(self, run_id: str, task: str) -> Context | None:
        run = self._runs.get(run_id)
        if run is None or task not in run.started:
            return None
        if task not in run.tasks:
            run.tasks[task] = self._start_task(run, run.started[task])
        return run.tasks[task].context

    def end_segment(self, run_id: str) -> None:
        """End a run's span, and everything still open in it."""
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        if run.key is not None and self._threads.get(run.key) is run:
            del self._threads[run.key]
        for task in run.tasks.values():
            task.end(run.error)
        self._end_step(run, run.error)
        about: Attributes = {names.GRAPH: run.graph}
        self._meters.active(-1, about)
        about[names.RUN_STATUS] = run.status
        run.whole.span.set_attributes(about)
        self._meters.run(run.whole.end(run.error), _with_error(about, run.error))

    # ---- events

    def on_event(self, event: Event) -> None:
        """Open and close step spans; note how the run stops."""
        run = self._runs.get(event.run_id)
        if run is None:
            return
        match event.type:
            case "node_start":
                if run.number != event.step:
                    self._end_step(run)
                    run.number = event.step
                    step: Attributes = {names.STEP: event.step, names.RUN_ID: event.run_id}
                    within = run.whole.context
                    run.step = _Timed(self._tracer.start_span("step", within, attributes=step))
                run.started[event.task or ""] = event
            case "node_complete" | "node_failed":
                self._end_task(run, event)
            case "state":
                if event.step == run.number:
                    self._end_step(run)
            case "retry":
                about: Attributes = {names.GRAPH: run.graph, names.NODE: event.node or ""}
                self._meters.retries(1, _with_error(about, event.data["error"]))
            case "interrupt" | "sleep" | "graph_complete":
                run.status = _STATUSES[event.type]
            case "graph_failed":
                run.error = event.data["error"]
                run.status = "cancelled" if run.error == "RunCancelled" else "failed"
            case _:
                pass

    def _end_step(self, run: _Run, error: str | None = None) -> None:
        step, run.step = run.step, None
        run.started.clear()
        if step is not None:
            self._meters.step(step.end(error), _with_error({names.GRAPH: run.graph}, error))

    def _end_task(self, run: _Run, event: Event) -> None:
        task = run.tasks.pop(event.task or "", None)
        error = event.data.get("error")
        if task is not None:
            self._record_task(run, event, task.end(error), error)
        if self._values and run.step is not None and event.type == "node_complete":
            update = msgspec.json.encode(event.update, enc_hook=repr).decode()
            about = {names.TASK: event.task or "", names.UPDATE: update}
            run.step.span.add_event("update", about)

    # ---- tasks and commits

    def wrap_task(self, event: Event) -> AbstractContextManager[object]:
        """A span, current while the node runs."""
        run = self._runs.get(event.run_id)
        if run is None:
            return nullcontext()
        timed = self._start_task(run, event)

        def record(seconds: float, raised: BaseException | None) -> None:
            self._record_task(run, event, seconds, _type_of(raised))

        within = _current(timed, record, shows=self._values)
        return _describing(timed.span, within) if self._genai else within

    def _start_task(self, run: _Run, event: Event) -> _Timed:
        about: Attributes = {
            names.RUN_ID: event.run_id,
            names.STEP: event.step,
            names.NODE: event.node or "",
            names.TASK: event.task or "",
            names.ATTEMPT: event.attempt or 1,
        }
        return _Timed(self._tracer.start_span(f"task {event.node}", run.within, attributes=about))

    def _record_task(self, run: _Run, event: Event, seconds: float, error: str | None) -> None:
        about: Attributes = {names.GRAPH: run.graph, names.NODE: event.node or ""}
        self._meters.task(seconds, _with_error(about, error))

    def wrap_commit(self, event: Event) -> AbstractContextManager[object]:
        """A span around a commit."""
        run = self._runs.get(event.run_id)
        if run is None and event.key is not None:
            run = self._threads.get(event.key)  # rows of tasks say nothing of their run
        if run is None:
            return nullcontext()
        about: Attributes = {}
        if event.seq is not None:
            about = {names.SEQ: event.seq, names.SOURCE: event.data["source"]}
        timed = _Timed(self._tracer.start_span("commit", run.within, attributes=about))
        return _current(timed, partial(self._record_commit, run, event))

    def _record_commit(
        self, run: _Run, event: Event, seconds: float, error: BaseException | None
    ) -> None:
        about: Attributes = {names.GRAPH: run.graph}
        self._meters.commit(seconds, _with_error(about, _type_of(error)))
        if isinstance(error, Conflict):
            self._meters.conflicts(1, about)
        elif error is None and event.data["superseded"] and event.data["source"] != "input":
            self._meters.takeovers(event.data["superseded"], about)


@contextmanager
def _current(
    timed: _Timed, record: Callable[[float, BaseException | None], None], *, shows: bool = False
) -> Generator[None, None, None]:
    """Make a span current; at its end ``record`` gets its seconds and exception.

    ``shows`` adds the exception to the span, with its message.
    """
    raised: BaseException | None = None
    token = contexts.attach(trace.set_span_in_context(timed.span))
    try:
        yield
    except BaseException as error:
        raised = error
        if shows:
            timed.span.record_exception(error)
        raise
    finally:
        contexts.detach(token)
        record(timed.end(_type_of(raised)), raised)


@contextmanager
def _describing(span: Span, within: AbstractContextManager[object]) -> Generator[None, None, None]:
    """Add the agent's facts about its task to the span, and name it by them."""

    def describe(facts: dict[str, Any]) -> None:
        used: dict[str, Any] = facts.get("usage", {})
        span.set_attributes(
            {name: facts[fact] for fact, name in names.GENAI_FACTS.items() if facts.get(fact)}
            | {name: used[count] for count, name in names.GENAI_USAGE.items() if count in used}
        )
        if "operation" in facts:
            subject = facts.get("tool") or facts.get("model") or ""
            span.update_name(f"{facts['operation']} {subject}".rstrip())

    with within, annotated(describe):
        yield


def _does_nothing(found: object) -> bool:
    return type(found).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _span_context(carried: Mapping[str, str]) -> SpanContext:
    return trace.get_current_span(_propagator.extract(carried, Context())).get_span_context()


def _words(context: Context) -> dict[str, str]:
    words: dict[str, str] = {}
    _propagator.inject(words, context)
    return words


def _with_error(about: Attributes, error: str | None) -> Attributes:
    return about if error is None else {**about, names.ERROR: error}


def _type_of(error: object) -> str | None:
    return None if error is None else type(error).__qualname__
