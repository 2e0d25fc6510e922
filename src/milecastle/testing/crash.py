from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from milecastle.app.application import App
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.testing.crash_course import Answer, Course, CourseRecord, Courses, Sender
from milecastle.testing.crash_judge import Judge
from milecastle.testing.crash_report import CrashMismatch, CrashReport, Mismatch
from milecastle.testing.process import CrashPoint, When

S = TypeVar("S")

_SIDES: tuple[When, ...] = ("before", "after")


def crash_everywhere(
    app: App[S],
    input: S | Mapping[str, Any],
    *,
    thread: str | ThreadKey = "crash",
    options: ExecutionOptions | None = None,
    config: Any = None,
    answer: Answer | None = None,
    compare: Callable[[S, S], bool] | None = None,
    seed: int = 0,
    send: Sender | None = None,
) -> CrashReport:
    """Crash a run of ``app`` at every effect, continue, and compare the ends.

    The run is done once undisturbed; then, for every effect, once with a crash before it and once
    with a crash after it. Each time it is continued as a careful user would: ``invoke`` with the
    same input if the run was cut short, ``resume`` if the thread waits at an interrupt, with
    ``answer``'s result for each open question, or at its deadline if that is ``UNANSWERED``. A
    sleeping thread is woken when its time has come, which is virtual. If it waits for messages that
    have not come, ``send`` is called with their topics, and returns pairs with a topic and a value:
    each is sent twice, with one key. Unread messages at the end are compared, too. After the end
    ``invoke`` with the same input must return the same and run nothing. A node's ``ctx.once``
    record is an effect like any other.

    Nodes run for real, many times over. The app's store is used (a memory store if it has none),
    with a separate thread for each course, named after ``thread`` and deleted if all was well.
    ``compare`` says whether two final states count as equal, for graphs that store times or random
    numbers, or read long-term memory, which outlives the courses; by default they must be exactly
    equal. ``seed`` decides the order of parallel tasks.

    Raises:
        CrashMismatch: some crash changes the outcome; its ``report`` says which, and how.
        MilecastleError: the undisturbed run does not end.
    """
    courses = Courses(
        app,
        input,
        thread=thread,
        options=options,
        config=config,
        answer=answer,
        seed=seed,
        send=send,
    )
    calm = courses.run(None)
    judge = Judge(courses.app, courses.store, calm, compare)
    found = list(judge.mismatches(calm))
    points = [] if found else _points(len(calm.kinds))
    repeated: Counter[str] = Counter()
    for point in points:
        found += _crash_at(point, courses, calm, judge, repeated)
    report = CrashReport(
        effects=len(calm.kinds),
        crashes=len(points),
        repeated=dict(repeated),
        mismatches=tuple(found),
        hint=_hint(calm.record, found),
    )
    if found:
        raise CrashMismatch(report)
    courses.forget(calm)
    return report


def _crash_at(
    point: CrashPoint, courses: Courses[S], calm: Course, judge: Judge[S], repeated: Counter[str]
) -> list[Mismatch]:
    """Problems with the course that crashes there; its thread is removed if there are none."""
    course = courses.run(point, most_calls=calm.calls + 1)
    repeated.update((course.record.runs - calm.record.runs).keys())
    mismatches = list(judge.mismatches(course))
    if not mismatches:
        courses.forget(course)
    return mismatches


def _points(effects: int) -> list[CrashPoint]:
    return [CrashPoint(effect, when) for effect in range(1, effects + 1) for when in _SIDES]


def _hint(record: CourseRecord, found: list[Mismatch]) -> str:
    if not found:
        return ""
    if not any(mismatch.paths for mismatch in found):
        return (
            "what a store acknowledges must be durable, and a batch is written whole or not at all"
        )
    if record.changed:
        nodes = ", ".join(f"'{name}'" for name in sorted(record.changed))
        return (
            f"changed a value of its input state in place: {nodes}; only the update that a node "
            "returns is saved"
        )
    return (
        "a graph whose outcome differs from run to run (it depends on time, random numbers or "
        "outside data) needs compare="
    )
