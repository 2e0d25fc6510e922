"""Judges a log of effects, without knowing which runtime made it.

- *repeated*: a call took effect again that had begun after a later step of the same order had
  taken effect: its step must have been recorded by then. Where no process died or was stopped,
  each second effect counts.
- *in the gap*: it took effect again without that evidence: the process may have died between the
  effect and its record. No runtime closes this gap; it is counted, and compared with nothing.
- *wrong*: an order that is said to be done has another state than the only right one.
- *lost*: an order that is said to be done lacks an effect, or a start that was acknowledged is
  unknown.
- *stuck*: it is neither done nor refused when the patience is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from benchmarks.faults.outside import ITEMS, STEPS, final_state

CALLS = [
    *((kind, "") for kind in STEPS if kind not in ("pack", "audit")),
    *(("pack", item) for item in ITEMS),
]


class Line(TypedDict):
    """A line of the log of effects."""

    event: str
    order: str
    kind: str
    item: str
    time: int
    pid: int


class Status(TypedDict, total=False):
    """What a runtime says of an order."""

    status: str
    state: Mapping[str, object] | None


@dataclass(slots=True)
class Verdict:
    """What went wrong with the orders of one cell, and how often."""

    counts: Counter[str] = field(default_factory=Counter[str])
    notes: list[str] = field(default_factory=list[str])

    def add(self, what: str, note: str) -> None:
        """Count an anomaly, and say which."""
        self.counts[what] += 1
        self.notes.append(f"{what}: {note}")


def judge(
    lines: Sequence[Line],
    statuses: Mapping[str, Status],
    approved: Mapping[str, Sequence[str]],
    *,
    has_crashes: bool = True,
    without: str = "",
) -> Verdict:
    """Judge the orders.

    ``approved``: the answers of an order that were acknowledged, any of which is right.
    ``has_crashes``: processes were killed or stopped while they worked.
    ``without``: a call that the newest code no longer makes.
    """
    verdict = Verdict()
    for order, said in statuses.items():
        own = [line for line in lines if line["order"] == order]
        _judge_effects(order, own, has_crashes, verdict)
        verdict.counts["orders"] += 1
        if said.get("status") == "done":
            verdict.counts["done"] += 1
            _judge_missing(order, own, without, verdict)
            _judge_state(order, said, approved.get(order, ()), without, verdict)
        elif said.get("status") == "refused":
            verdict.counts["refused"] += 1
        elif said.get("status") == "none":
            verdict.add("lost", f"{order} is unknown to the runtime")
        else:
            verdict.add("stuck", f"{order} is {said.get('status')}")
    return verdict


def _judge_effects(order: str, lines: Sequence[Line], has_crashes: bool, verdict: Verdict) -> None:
    done: set[tuple[str, str]] = set()
    latest = -1
    begun: dict[tuple[int, str, str], bool] = {}
    for line in lines:
        call, step = (line["kind"], line["item"]), STEPS.index(line["kind"])
        made = (line["pid"], *call)
        if line["event"] == "began":
            begun[made] = call in done and latest > step
            continue
        if call in done:
            name = " ".join(call).strip()
            if begun.get(made) or not has_crashes:
                verdict.add("repeated", f"{order} {name} again after {STEPS[latest]}")
            else:
                verdict.counts["in the gap"] += 1
        done.add(call)
        latest = max(latest, step)


def _judge_missing(order: str, lines: Sequence[Line], without: str, verdict: Verdict) -> None:
    made = {(line["kind"], line["item"]) for line in lines if line["event"] == "effect"}
    wanted = [call for call in CALLS if call[0] != without]
    if missing := [" ".join(call).strip() for call in wanted if call not in made]:
        verdict.add("lost", f"{order} is done without {', '.join(missing)}")


def _judge_state(
    order: str, said: Status, approved: Sequence[str], without: str, verdict: Verdict
) -> None:
    state = dict(said.get("state") or {})
    right = final_state(order, state.get("approved"))
    wrong = [key for key, value in right.items() if state.get(key) != value]
    if without == "ship" and state.get("parcel") is None:
        wrong = [key for key in wrong if key != "parcel"]
    if state.get("approved") not in approved:
        wrong.append("approved")
    if wrong:
        verdict.add("wrong", f"{order} ended with another {', '.join(wrong)}")
