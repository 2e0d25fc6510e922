"""A worker's metrics in Prometheus' text format, version 0.0.4.

The queue is reported by graph and tenant. At most ``MOST`` of these pairs are named, those with the
most due threads; the others are added up under ``(other)``, so the number of series is bounded
however many tenants there are. All workers of a store report the same queue: take the maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from milecastle.ports.buckets import BucketLevel
from milecastle.ports.workers import LaneDepth

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MOST = 100
"""How many pairs of lane and tenant are named."""

Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True):
    name: str
    type: Literal["counter", "gauge"]
    help: str
    samples: Mapping[Labels, float]

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.type, self.help)
        for labels, value in self.samples.items():
            yield sample(self.name, labels, value)


class Metric(Protocol):
    def lines(self) -> Iterator[str]: ...


def render(families: Iterable[Metric]) -> str:
    return "".join(f"{line}\n" for family in families for line in family.lines())


def head(name: str, type: str, help: str) -> Iterator[str]:
    yield f"# HELP milecastle_{name} {_escaped(help)}"
    yield f"# TYPE milecastle_{name} {type}"


def sample(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels)
    return f"milecastle_{name}{{{shown}}} {value!r}" if shown else f"milecastle_{name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()
    return _escaped(plain).replace('"', '\\"')


def queue_families(depths: Sequence[LaneDepth]) -> list[Family]:
    ranked = sorted(depths, key=lambda one: (-one.due, -one.running, one.lane, one.tenant))
    shown = {_labels(one): one for one in ranked[:MOST]}
    if rest := ranked[MOST:]:
        other = LaneDepth(
            lane="(other)@",
            tenant="(other)",
            due=sum(one.due for one in rest),
            later=sum(one.later for one in rest),
            running=sum(one.running for one in rest),
            oldest=max(one.oldest for one in rest),
        )
        shown[_labels(other)] = other

    def gauge(name: str, help: str, field: str) -> Family:
        samples = {labels: float(getattr(one, field)) for labels, one in shown.items()}
        return Family(name, "gauge", help, samples)

    return [
        gauge("queue_due", "Threads that wait for a worker.", "due"),
        gauge("queue_later", "Threads whose time has not come: sleeps, delays, retries.", "later"),
        gauge("queue_running", "Threads that have a worker.", "running"),
        gauge("queue_oldest_seconds", "For how long the first due thread has waited.", "oldest"),
    ]


def bucket_families(levels: Sequence[BucketLevel], now: int) -> list[Family]:
    shown = levels[:MOST]
    labels = [(("bucket", one.bucket.name), ("tenant", one.bucket.tenant)) for one in shown]

    def gauge(name: str, help: str, values: Iterable[float]) -> Family:
        return Family(name, "gauge", help, dict(zip(labels, map(float, values), strict=True)))

    if not shown:
        return []
    return [
        gauge("bucket_left", "How much may be taken at once.", [one.left(now) for one in shown]),
        gauge("bucket_waiting", "Turns that wait for their time.", [one.waiting for one in shown]),
        gauge("bucket_wait_seconds", "When the next turn is.", [one.backlog(now) for one in shown]),
    ]


def _labels(depth: LaneDepth) -> Labels:
    graph, _, fingerprint = depth.lane.rpartition("@")
    return ("graph", graph), ("fingerprint", fingerprint), ("tenant", depth.tenant)
