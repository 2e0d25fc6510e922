"""Checking answers: which question they are for, and whether they are valid.

Everything is checked before anything is written: a rejected answer leaves the thread unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from milecastle.codec.answers import as_plain, check_answer
from milecastle.engine.position import Position
from milecastle.engine.renaming import label_renamed
from milecastle.engine.waiting import has_work, open_interrupts
from milecastle.errors import InvalidAnswer, InvalidRequest, ResumeRefused
from milecastle.graph.comparison import Renames
from milecastle.graph.structure import CompiledGraph
from milecastle.model.interrupt import Interrupt


class Unanswered(msgspec.Struct, frozen=True):
    """Means that no answer was given, because ``None`` may be an answer."""

    def __repr__(self) -> str:
        return "UNANSWERED"


UNANSWERED: Final = Unanswered()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller answers: to the one open question, or to several by their ids."""

    answer: Any = UNANSWERED
    answers: Mapping[str, Any] | None = None

    def __bool__(self) -> bool:
        return self.answer is not UNANSWERED or bool(self.answers)

    def renamed(self, renames: Renames) -> Given:
        """The same, with ids under the new names of nodes: a caller may have read the old ones."""
        if not renames or not self.answers:
            return self
        found: dict[str, Any] = {}
        for id, answer in self.answers.items():
            place, mark, label = id.partition(":")
            found[f"{place}{mark}{label_renamed(label, renames)}"] = answer
        return Given(answer=self.answer, answers=found)


NOTHING_GIVEN: Final = Given()


def match_answers(thread: str, position: Position, given: Given) -> dict[str, Any]:
    """The answers by the labels of their questions.

    Refuses answers to questions that are not open.
    """
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
                f"thread '{thread}' has no open question {id!r}: it was answered, or belongs to "
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
    """Raise if an answer was refused when the node received it; the question is open again."""
    for interrupt in interrupts if given else ():
        if interrupt.refused and (given.answers is None or interrupt.id in given.answers):
            raise InvalidAnswer(_not_taken(thread, interrupt, interrupt.refused))


def _not_taken(thread: str, interrupt: Interrupt, reason: str) -> str:
    return f"thread '{thread}', question {interrupt.id!r} of node '{interrupt.node}': {reason}"


def _only(thread: str, found: Sequence[Interrupt]) -> str:
    if len(found) == 1:
        return found[0].id
    if not found:
        raise InvalidRequest(
            f"thread '{thread}' has no open question; resume('{thread}') continues it"
        )
    ids = ", ".join(repr(interrupt.id) for interrupt in found)
    raise InvalidRequest(
        f"thread '{thread}' has {len(found)} open questions: choose with resume('{thread}', "
        f"answers={{id: ...}}); open: {ids}"
    )


def refuse_without_answer(thread: str, graph: CompiledGraph, position: Position, now: int) -> None:
    """A thread whose tasks all wait for an answer or a time cannot continue without one."""
    found = open_interrupts(position.hidden, position.place)
    if not found or has_work(graph, position, now):
        return
    ids = ", ".join(repr(interrupt.id) for interrupt in found)
    raise ResumeRefused(
        thread,
        [f"it waits for an answer ({ids}): resume('{thread}', answer=...) or answers={{id: ...}}"],
    )
