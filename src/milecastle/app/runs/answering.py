"""Checking answers: which question they are for, and whether they are valid.

Everything is checked before anything is written: a rejected answer leaves the thread unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from milecastle.codec.answers import as_plain, check_answer
from milecastle.engine.position import Position
from milecastle.engine.renaming import label_renamed
from milecastle.engine.reserved_channels import ANSWERS, TIMED_OUT
from milecastle.engine.status import waits_at
from milecastle.engine.waiting import has_work, open_interrupts
from milecastle.errors import (
    AlreadyAnswered,
    InvalidAnswer,
    InvalidRequest,
    NotAsked,
    ResumeRefused,
)
from milecastle.graph.comparison import Renames
from milecastle.graph.structure import CompiledGraph
from milecastle.model.actor import Actor, AnswerRecord
from milecastle.model.checkpoint import to_datetime
from milecastle.model.interrupt import Interrupt


class Unanswered(msgspec.Struct, frozen=True):
    """Marks a missing answer, because ``None`` may be an answer."""

    def __repr__(self) -> str:
        return "UNANSWERED"


UNANSWERED: Final = Unanswered()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's answers: to the one open question, to ``question``, or to several by id.

    ``key`` identifies the answer: given again, it is the same one. ``timed_out`` are a subgraph's
    waits, by id, that its parent has committed as timed out; otherwise they are found here.
    """

    answer: Any = UNANSWERED
    answers: Mapping[str, Any] | None = None
    question: str | None = None
    key: str | None = None
    timed_out: Mapping[str, int] | None = None
    by: Actor | None = None

    def __post_init__(self) -> None:
        if self.question is not None and (self.answer is UNANSWERED or self.answers is not None):
            raise InvalidRequest("question= names the question of answer=: give both")
        if self.key is not None and not (self.key and self):
            raise InvalidRequest(
                "key= identifies an answer: give both, and a key that is not empty"
            )

    def __bool__(self) -> bool:
        return self.answer is not UNANSWERED or bool(self.answers)

    @property
    def ids(self) -> Sequence[str]:
        return (self.question,) if self.question is not None else tuple(self.answers or ())

    def renamed(self, renames: Renames) -> Given:
        if not renames:
            return self

        def renamed(id: str) -> str:
            place, mark, label = id.partition(":")
            return f"{place}{mark}{label_renamed(label, renames)}"

        if self.question is not None:
            return msgspec.structs.replace(self, question=renamed(self.question))
        answers, timed_out = self.answers or {}, self.timed_out
        return msgspec.structs.replace(
            self,
            answers={renamed(id): answers[id] for id in answers},
            timed_out=timed_out and {renamed(id): timed_out[id] for id in timed_out},
        )


NOTHING_GIVEN: Final = Given()


def match_answers(
    thread: str, position: Position, given: Given
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The answers by their questions' labels, and who gave them.

    Refuses answers to closed questions, and to those shown differently.
    """
    refuse_unasked(thread, position, given)
    found = _questions(position)
    answers = dict(given.answers or {})
    if given.answer is not UNANSWERED:
        answers[given.question or _only(thread, list(found.values()))] = given.answer
    matched: dict[str, Any] = {}
    answered_by: dict[str, list[Any]] = {}
    for id, answer in answers.items():
        interrupt = found[id]
        plain = as_plain(answer)
        try:
            check_answer(plain, interrupt.answer)
        except InvalidAnswer as error:
            raise InvalidAnswer(_not_taken(thread, interrupt, error.message)) from None
        by, digest = given.by, interrupt.digest
        if by is not None and by.shown not in (None, digest):
            changed = "it has changed since it was shown: look at it again, then answer"
            raise InvalidRequest(_not_taken(thread, interrupt, changed))
        label = id.removeprefix(f"{position.place}:")
        matched[label] = plain
        who = (None, None, None) if by is None else (by.id, by.how, by.reason)
        answered_by[label] = [*who, digest]
        if by is not None and by.on_behalf_of is not None:
            answered_by[label].append(by.on_behalf_of)
    return matched, answered_by


def _questions(position: Position) -> dict[str, Interrupt]:
    found = open_interrupts(position.reserved, position.place)
    return {interrupt.id: interrupt for interrupt in found if interrupt.asks}


def refuse_unasked(thread: str, position: Position, given: Given) -> None:
    found, answered = _questions(position), position.reserved.get(ANSWERS, {})
    timed_out: Mapping[str, int] = position.reserved.get(TIMED_OUT, {})
    for id in given.ids:
        place, _, label = id.partition(":")
        if id in found:
            continue
        open_ids = ", ".join(map(repr, found)) or "none"
        what = f"thread '{thread}' has no open question {id!r}"
        if place == position.place and label in timed_out:
            raise AlreadyAnswered(f"{what}: it timed out at {_moment(timed_out[label])}")
        if _is_past(place, position) or (place == position.place and label in answered):
            raise AlreadyAnswered(
                f"{what}: it was answered, or timed out, or the thread has left its step; "
                f"open: {open_ids}"
            )
        raise NotAsked(f"{what}: it is not asked yet, or in another branch; open: {open_ids}")
    if given and not given.ids and not found:
        what = f"thread '{thread}' has no open question"
        if timed_out:
            newest = max(timed_out.values())
            raise AlreadyAnswered(f"{what}: it timed out at {_moment(newest)}")
        if answered:
            raise AlreadyAnswered(f"{what}: it was answered")
        raise NotAsked(f"{what}: none is asked yet; resume('{thread}') continues it")


def refuse_timed_out(thread: str, given: Given, records: Iterable[AnswerRecord]) -> None:
    newest = None
    for record in records:
        if not given.ids or record.question in given.ids:
            newest = record
    if newest is not None and newest.timed_out:
        when = newest.time.isoformat(timespec="seconds")
        raise AlreadyAnswered(
            f"thread '{thread}' has no open question {newest.question!r}: it timed out at {when}"
        )


def _moment(time: int) -> str:
    return to_datetime(time).isoformat(timespec="seconds")


def _is_past(place: str, position: Position) -> bool:
    seq = place.partition(".")[0]
    return seq.isdecimal() and len(seq) < 18 and int(seq) < position.settled


def refuse_refused(thread: str, given: Given, interrupts: Sequence[Interrupt]) -> None:
    for interrupt in interrupts if given else ():
        if interrupt.refused and (not given.ids or interrupt.id in given.ids):
            raise InvalidAnswer(_not_taken(thread, interrupt, interrupt.refused))


def _not_taken(thread: str, interrupt: Interrupt, reason: str) -> str:
    return f"thread '{thread}', question {interrupt.id!r} of node '{interrupt.node}': {reason}"


def _only(thread: str, found: Sequence[Interrupt]) -> str:
    if len(found) == 1:
        return found[0].id
    ids = ", ".join(repr(interrupt.id) for interrupt in found)
    raise InvalidRequest(
        f"thread '{thread}' has {len(found)} open questions: choose with resume('{thread}', "
        f"answers={{id: ...}}); open: {ids}"
    )


def refuse_without_answer(thread: str, graph: CompiledGraph, position: Position, now: int) -> None:
    found = open_interrupts(position.reserved, position.place)
    topics = waits_at(position.reserved).topics
    if not (found or topics) or has_work(graph, position, now):
        return
    if not found:
        names = ", ".join(repr(topic) for topic, _ in topics)
        raise ResumeRefused(
            thread, [f"it waits for a message of topic {names}: send('{thread}', value, topic)"]
        )
    ids = ", ".join(repr(interrupt.id) for interrupt in found)
    raise ResumeRefused(
        thread,
        [f"it waits for an answer ({ids}): resume('{thread}', answer=...) or answers={{id: ...}}"],
    )
