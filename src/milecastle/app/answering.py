"""Answers on their way in: which question they are for, and whether it takes them.

Everything is checked before anything is written: a rejected answer leaves the thread as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from milecastle.codec.answers import as_plain, check_answer
from milecastle.engine.desk import open_interrupts
from milecastle.engine.pausing import has_work
from milecastle.engine.position import Position
from milecastle.errors import InvalidAnswer, InvalidRequest, ResumeRefused
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.interrupt import Interrupt

__all__ = [
    "NOTHING_GIVEN",
    "UNANSWERED",
    "Given",
    "match_answers",
    "refuse_refused",
    "refuse_without_answer",
]


class Unanswered(msgspec.Struct, frozen=True):
    """Stands for an answer that was not given: ``None`` may be one."""

    def __repr__(self) -> str:
        return "UNANSWERED"


UNANSWERED: Final = Unanswered()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller answers: to the one open question, or to several by their ids."""

    answer: Any = UNANSWERED
    answers: Mapping[str, Any] | None = None

    def __bool__(self) -> bool:
        return self.answer is not UNANSWERED or bool(self.answers)


NOTHING_GIVEN: Final = Given()


def match_answers(thread: str, position: Position, given: Given) -> dict[str, Any]:
    """The answers by the labels of their questions; refuses what fits no open question."""
    found = {
        interrupt.id: interrupt
        for interrupt in open_interrupts(position.hidden, position.place)
        if interrupt.asks
    }
    answers = dict(given.answers or {})
    if given.answer is not UNANSWERED:
        answers[_only(thread, list(found.values()))] = given.answer
    matched: dict[str, Any] = {}
    for id, answer in answers.items():
        interrupt = found.get(id)
        if interrupt is None:
            open_ids = ", ".join(map(repr, found)) or "none"
            raise InvalidRequest(
                f"thread '{thread}' has no open question {id!r}: it was answered, or is of "
                f"another step or branch; open: {open_ids}"
            )
        plain = as_plain(answer)
        try:
            check_answer(plain, interrupt.answer)
        except InvalidAnswer as error:
            raise InvalidAnswer(_not_taken(thread, interrupt, error.message)) from None
        matched[id.removeprefix(f"{position.place}:")] = plain
    return matched


def refuse_refused(thread: str, given: Given, interrupts: Sequence[Interrupt]) -> None:
    """Raise if an answer was refused when the node was given it; the question is open again."""
    for interrupt in interrupts if given else ():
        if interrupt.refused and (given.answers is None or interrupt.id in given.answers):
            raise InvalidAnswer(_not_taken(thread, interrupt, interrupt.refused))


def _not_taken(thread: str, interrupt: Interrupt, reason: str) -> str:
    return f"thread '{thread}', question {interrupt.id!r} of node '{interrupt.node}': {reason}"


def _only(thread: str, found: Sequence[Interrupt]) -> str:
    if len(found) == 1:
        return found[0].id
    if not found:
        raise InvalidRequest(f"thread '{thread}' has no open question; resume('{thread}') goes on")
    ids = ", ".join(repr(interrupt.id) for interrupt in found)
    raise InvalidRequest(
        f"thread '{thread}' has {len(found)} open questions: say which, "
        f"resume('{thread}', answers={{id: ...}}); they are {ids}"
    )


def refuse_without_answer(thread: str, graph: CompiledGraph, position: Position, now: int) -> None:
    """A thread whose every task waits for an answer or a time cannot go on without one."""
    found = open_interrupts(position.hidden, position.place)
    if not found or has_work(graph, position, now):
        return
    ids = ", ".join(repr(interrupt.id) for interrupt in found)
    raise ResumeRefused(
        thread,
        [f"it waits for an answer ({ids}): resume('{thread}', answer=...) or answers={{id: ...}}"],
    )
