"""OpenTelemetry: spans and run metrics. Needs the extra ``otel``."""

from __future__ import annotations

from milecastle.integrations.opentelemetry.observer import OpenTelemetryObserver

__all__ = ["OpenTelemetryObserver"]
