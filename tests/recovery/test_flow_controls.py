"""Flows that decide at the wrong time: ``crash_everywhere`` must catch each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from milecastle import App, flow, gather, interrupt, receive, step
from milecastle.engine.calls import LATE, OPEN, CallLog, NewCall, RecordedCall
from milecastle.engine.received import Received
from milecastle.model.message import Message
from milecastle.stores.memory import MemoryStore
from milecastle.testing import UNANSWERED, CrashMismatch, crash_everywhere


def work() -> str:
    return "worked"


@flow
def collect() -> list[Any]:
    begun = receive("go")
    both = gather(lambda: receive("go"), lambda: step(work))
    return [begun, *both, receive("go")]


def check() -> None:
    """Three messages come at once; one is received while a step beside it commits."""
    app: App[Any] = collect.compile(store=MemoryStore())

    def send(topics: tuple[str, ...]) -> list[tuple[str, str]]:
        return [("go", value) for value in ("a", "b", "c")] if "go" in topics else []

    def is_right(_: Any, found: Any) -> bool:
        return bool(found["result"] == ["a", "b", "worked", "c"])

    crash_everywhere(app, {}, send=send, compare=is_right)


def consumes_on_receipt(patch: pytest.MonkeyPatch) -> None:
    """A batch consumes what was received, and not what it records."""
    consumes_nothing(patch)
    honest = CallLog.next_message

    def next_message(self: CallLog, topics: Sequence[str]) -> Message | None:
        found = honest(self, topics)
        if found is not None:
            received: Received = vars(self)["_received"]
            received.consume_numbers([found.number])
            time.sleep(0.02)  # the step beside it commits
        return found

    patch.setattr(CallLog, "next_message", next_message)


def consumes_nothing(patch: pytest.MonkeyPatch) -> None:
    honest = CallLog.note

    def note(self: CallLog, calls: Sequence[NewCall]) -> None:
        honest(self, [one._replace(message=None) for one in calls])

    def end(self: CallLog, calls: Sequence[NewCall]) -> None: ...

    patch.setattr(CallLog, "note", note)
    patch.setattr(CallLog, "end", end)


def test_messages_are_received_once_and_in_order() -> None:
    check()


@pytest.mark.parametrize("cheat", [consumes_on_receipt, consumes_nothing])
def test_a_flow_that_consumes_at_the_wrong_time_is_caught(
    cheat: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cheat(monkeypatch)
    with pytest.raises(CrashMismatch):
        check()


@flow
def approve() -> list[Any]:
    found = interrupt("ok?", answer=str, within=60, otherwise="nobody")
    return [found, step(work)]


def nobody_answers() -> None:
    app = approve.compile(store=MemoryStore())
    assert not crash_everywhere(app, {}, answer=lambda asked: UNANSWERED).mismatches


def test_a_timeout_is_decided_by_the_log() -> None:
    nobody_answers()


def test_a_timeout_decided_by_the_clock_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: code runs after a timeout that no log has, and a crash opens the question."""

    def by_clock(self: CallLog, known: dict[str, RecordedCall]) -> list[NewCall]:
        passed = [
            NewCall([*call[:3], call.value, LATE])
            for call in known.values()
            if call.how == OPEN and call.value is not None and call.value <= self.now()
        ]
        return [*honest(self, known), *passed]

    def nothing(*given: object) -> dict[str, int]:
        return {}

    honest = CallLog.ended_waits
    monkeypatch.setattr(CallLog, "ended_waits", by_clock)
    monkeypatch.setattr("milecastle.app.runs.starting.passed_deadlines", nothing)
    monkeypatch.setattr("milecastle.app.runs.starting.refuse_without_answer", nothing)
    with pytest.raises(CrashMismatch, match="asked again"):
        nobody_answers()
