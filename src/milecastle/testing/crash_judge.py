"""The judge: holds a course against the undisturbed one.

Each course must end in the same state, along the same path, with a history with no gap, with
every acknowledged checkpoint in it, with no finished task run twice, no recorded step repeated,
no answered question asked again, the same messages left unread, with no run left open and nothing
left over of an unfinished step, in the subgraph threads as well. Called again after the end, it
returns that and runs nothing.
Where not every step is saved, those that were not may be repeated, and the path is compared where
it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from milecastle.app.application import App
from milecastle.app.threads.children import children_of, is_child
from milecastle.app.threads.difference import difference
from milecastle.app.threads.log import log_codec_for
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.testing.crash_course import Course, CourseRecord, encode_or_none
from milecastle.testing.crash_report import Mismatch

S = TypeVar("S")

_Path = list[tuple[str, int, tuple[str, ...], tuple[str, ...]]]


class Judge(Generic[S]):
    def __init__(
        self, app: App[S], store: Store, calm: Course, compare: Callable[[S, S], bool] | None
    ) -> None:
        self._app = app
        self._store = store
        self._calm = calm
        self._compare = compare
        self._codec = log_codec_for(app.graph)
        self._expected: S = self._copy(calm.result.state)
        self._path = _path(self._history(calm))
        steps = [step for source, step, _, _ in self._path if source == "step"]
        self._saves_every_step = steps == list(range(1, len(steps) + 1))

    def mismatches(self, course: Course) -> Iterator[Mismatch]:
        paths: list[str] = []
        problems = [course.problem] if course.problem else []
        if not course.problem:
            paths = list(dict.fromkeys(self._paths(course)))
            problems = list(self._problems(course))
        if paths or problems:
            yield Mismatch(
                point=course.point,
                kind=course.kind,
                thread=str(course.thread),
                paths=tuple(paths),
                problems=tuple(problems),
            )

    def _paths(self, course: Course) -> Iterator[str]:
        if course.result is not None and course.result.status == "completed":
            yield from self._differences(course.result.state)
        if not course.worked_again:
            yield from self._differences(course.again.state)
            yield from self._differences(self._app.state(course.thread).state)

    def _differences(self, found: S) -> Iterator[str]:
        if self._compare is not None:
            if not self._compare(self._expected, found):
                yield "$"
            return
        schema = self._app.graph.schema
        expected, values = schema.read_input(self._expected), schema.read_input(found)
        if self._same(expected, values):
            return
        for change in difference(expected, values):
            if not self._same({"": change.old}, {"": change.new}):
                yield f"{change.path} ({change.kind})"

    def _same(self, old: dict[str, Any], new: dict[str, Any]) -> bool:
        before = encode_or_none(self._codec, old)
        return before is not None and before == encode_or_none(self._codec, new)

    def _copy(self, state: S) -> S:
        schema = self._app.graph.schema
        payload = encode_or_none(self._codec, schema.read_input(state))
        return state if payload is None else schema.present(self._codec.decode_state(payload))

    def _problems(self, course: Course) -> Iterator[str]:
        reached = course.point.effect if course.point else 0
        is_same_path = course.kinds[:reached] == self._calm.kinds[:reached]
        if not self._app.graph.has_flow and not (is_same_path and course.crashed == bool(reached)):
            yield "the run took a different path before the crash: the graph is not deterministic"
        history = self._history(course)
        yield from _gaps(history)
        for key, acknowledged in course.record.acknowledged.items():
            yield from _lost(self._store, key, acknowledged)
        if course.worked_again or not course.again.reused:
            yield "called again after completion, it ran again instead of returning its result"
        elif not self._is_same_path(_path(history)):
            yield "the path through the graph differs"
        yield from _repeats(course.record, self._calm.record)
        if course.asked_again or len(course.answered) != len(self._calm.answered):
            yield "a question was asked again after its answer was acknowledged, or it timed out"
        if not self._same({"": [*course.unread]}, {"": [*self._calm.unread]}):
            yield "messages were lost, or left unread"
        root = history[-1].key
        for key in (root, *(child.key for child in children_of(self._store, root))):
            yield from _leftovers(self._store, key)

    def _is_same_path(self, found: _Path) -> bool:
        if self._app.graph.has_flow:
            return found[-1] == self._path[-1]  # how many results an entry has depends on the crash
        if self._saves_every_step:
            return found == self._path
        known = {(source, step): place for source, step, *place in self._path}
        return all(known.get((source, step), place) == place for source, step, *place in found)

    def _history(self, course: Course) -> list[CheckpointMetadata]:
        return list(self._app.history(course.thread))[::-1]


def _repeats(record: CourseRecord, calm: CourseRecord) -> Iterator[str]:
    if record.wasted:
        names = ", ".join(sorted(record.wasted))
        yield f"the result of a finished task was committed, but the task ran again: {names}"
    if record.unsaved:
        names = ", ".join(sorted(record.unsaved))
        yield f"a parallel task finished, but its result was not saved: {names}"
    again = {row for (_, row), count in record.done.items() if count > 2} | record.repeated
    if again:
        yield f"recorded side effects were repeated: {', '.join(sorted(again))}"
    if sum(record.done.values()) > sum(calm.done.values()) + 1:
        yield "one crash repeated more than one side effect that should run once"


def _leftovers(store: Store, key: ThreadKey) -> Iterator[str]:
    whose = " of a subgraph" if is_child(key) else ""
    for run in store.runs(key):
        if run.status not in ("completed", "superseded"):
            yield f"a run{whose} was left as '{run.status}'"
    chain = store.read(key)
    if chain is not None and chain.results:
        yield f"results of tasks{whose} were not removed"


def _gaps(history: list[CheckpointMetadata]) -> Iterator[str]:
    seqs = [known.seq for known in history]
    if seqs != list(range(1, len(seqs) + 1)):
        yield f"the history has gaps: its seqs are {seqs}"


def _lost(store: Store, key: ThreadKey, acknowledged: dict[int, str]) -> Iterator[str]:
    ids = {known.seq: known.id for known in store.history(key)}
    for seq, checkpoint_id in sorted(acknowledged.items()):
        if ids.get(seq) != checkpoint_id:
            yield f"checkpoint {seq} was acknowledged but lost"


def _path(history: list[CheckpointMetadata]) -> _Path:
    return [
        (known.source, known.step, known.nodes, known.next)
        for known in history
        if known.source != "takeover"
    ]
