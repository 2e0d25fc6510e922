"""Whether a recorded history of a thread could have come from one log, written by one hand.

Each operation has the time when it was asked for and the time when it was answered. A history is
linearizable if each operation can be given one moment between the two, such that a plain log, to
which they are applied in the order of those moments, gives the very same answers.

The log is as small as can be: how long it is, and the id of its newest entry. An append at ``head``
succeeds if the log is that long, and makes it one longer; otherwise it is refused, and told how
long the log is. A read returns both. An append without an answer may have taken effect at any
moment after it was asked for, or never.

The search goes through the answers in the order in which they came, and keeps every state that the
log may be in, together with the operations that already had their moment (Wing and Gong, with what
Lowe calls just-in-time linearization). Few operations overlap, so few states are ever kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Answer = Literal["kept", "refused", "read", "unknown"]


class Operation(NamedTuple):
    """One call. For a read ``head`` and ``id`` are what was seen; ``wanted`` is of no meaning.

    For an append ``wanted`` is the head that it was for, and ``id`` that of its entry; ``head``
    is what a refused one got in its error, -1 if it got nothing.
    """

    asked: float
    answered: float
    answer: Answer
    id: str
    wanted: int = -1
    head: int = -1


class Log(NamedTuple):
    """What can be seen of a log."""

    length: int = 0
    newest: str = ""


class Case(NamedTuple):
    """A state that the log may be in, and who, of those not answered yet, had its moment."""

    log: Log
    done: frozenset[int]


def apply(operation: Operation, log: Log) -> Log | None:
    """The log after an operation, or ``None`` if it could not have been answered as it was."""
    if operation.answer == "read":
        return log if (operation.head, operation.id) == log else None
    if operation.answer == "refused":
        told = operation.head in (-1, log.length)
        return log if told and log.length != operation.wanted else None
    if operation.wanted == log.length:
        return Log(log.length + 1, operation.id)
    return None


def first_contradiction(history: Iterable[Operation]) -> Operation | None:
    """The first answer that no log could have given; ``None`` if the history is linearizable."""
    operations = list(history)
    cases = {Case(Log(), frozenset[int]())}
    under_way: set[int] = set()
    for _, is_answer, number in _events(operations):
        if not is_answer:
            under_way.add(number)
            continue
        cases = _having_done(number, cases, under_way, operations)
        if not cases:
            return operations[number]
        under_way.remove(number)
    return None


def _events(operations: Sequence[Operation]) -> list[tuple[float, bool, int]]:
    """Questions and answers in their order; at the same time, questions first."""
    asked = [(each.asked, False, number) for number, each in enumerate(operations)]
    answered = [
        (each.answered, True, number)
        for number, each in enumerate(operations)
        if each.answer != "unknown"
    ]
    return sorted(asked + answered)


def _having_done(
    number: int, cases: set[Case], under_way: set[int], operations: Sequence[Operation]
) -> set[Case]:
    """Every case in which this operation had its moment, before or now, after others or not."""
    found: set[Case] = set()
    seen, left = set(cases), list(cases)
    while left:
        case = left.pop()
        if number in case.done:
            found.add(Case(case.log, case.done - {number}))
            continue
        for other in under_way - case.done:
            log = apply(operations[other], case.log)
            if log is not None:
                after = Case(log, case.done | {other})
                if after not in seen:
                    seen.add(after)
                    left.append(after)
    return found
