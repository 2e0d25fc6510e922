"""What OpenTelemetry's SDK has collected in a test: spans and metrics, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Tracer

from milecastle.integrations.opentelemetry import OpenTelemetryObserver


class Telemetry:
    """Providers of a test, an observer that reports to them, and what they have."""

    def __init__(self, sampler: Sampler | None = None, **settings: Any) -> None:
        self._spans = InMemorySpanExporter()
        self._tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer: Tracer = self._tracers.get_tracer("test")
        self.observer = OpenTelemetryObserver(
            tracer_provider=self._tracers, meter_provider=self._meters, **settings
        )

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended."""
        return self._spans.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of this name, in the order in which they ended."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (found,) = self.named(name)
        return found

    def counts(self) -> dict[str, dict[str, float]]:
        """The value of each metric by the values of its attributes; of a histogram the count."""
        data, found = self._reader.get_metrics_data(), dict[str, dict[str, float]]()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found[metric.name] = {
                        " ".join(map(str, (point.attributes or {}).values())): getattr(
                            point, "count", getattr(point, "value", 0)
                        )
                        for point in metric.data.data_points
                    }
        return found


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def about(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def links_of(span: ReadableSpan) -> dict[str, int]:
    """Where a span leads to, by what each link says."""
    return {
        str((link.attributes or {})["milecastle.link"]): link.context.span_id for link in span.links
    }
