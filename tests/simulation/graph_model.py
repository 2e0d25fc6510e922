"""The model: how a graph of a random shape must end, told in the simplest way.

No effects, no log, no store: tasks of a step see the state, their updates are applied in order,
and what runs next follows. Answers are looked up by where they were asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.random_shapes import Member, Shape, items_of, outcome

__all__ = ["Model", "Unanswered"]

State = dict[str, Any]
Planned = tuple[str, int | None]
"""A task: a node, and the item that it is sent, if it is sent one."""


class Unanswered(Exception):
    """The run ended, and nobody had answered a question on its way."""


class Model:
    """Runs one shape. ``answers`` are those of one branch, by place: ``2:w0a/0``.

    ``updates`` are what people changed, by the step after which they did.
    """

    def __init__(
        self,
        shape: Shape,
        answers: Mapping[str, int],
        updates: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
        prefix: str = "",
    ) -> None:
        self._shape = shape
        self._answers = answers
        self._updates = updates or {}
        self._prefix = prefix
        self._order = {member.name: place for place, member in enumerate(shape.members)}

    def end(self, input: Mapping[str, Any]) -> State:
        """The state in which the run must end."""
        state: State = dict(input)
        step, tasks = 0, self._sorted([("h0", None)])
        while True:
            for update in self._updates.get(step, ()):
                _apply(state, update)
            if not tasks:
                return state
            step += 1
            tasks = self._step(state, step, tasks)

    def _step(self, state: State, step: int, tasks: list[Planned]) -> list[Planned]:
        """Run one step; the tasks of the next one."""
        member = self._shape.member
        ready = [task for task in tasks if not member(task[0]).defer] or tasks
        held = [task for task in tasks if task not in ready]
        seen, counts, names = dict(state), dict[str, int](), dict[str, None]()
        for name, item in ready:
            names[name] = None
            task = name
            if item is not None:
                task = f"{name}#{counts.get(name, 0)}"
                counts[name] = counts.get(name, 0) + 1
            given = seen if item is None else {**seen, "item": item}
            _apply(state, self._update(member(name), given, f"{self._prefix}{step}:{task}"))
        found = [target for name in names for target in self._targets(member(name), seen, state)]
        return self._sorted([*found, *held])

    def _update(self, member: Member, state: State, place: str) -> State:
        if member.kind == "broken":
            return {}
        if member.kind == "child" and self._shape.child is not None:
            given: State = {"round": 0, "item": state["item"], "n": state["n"], "notes": []}
            notes = Model(self._shape.child, self._answers, prefix=f"{place}/").end(given)["notes"]
            return {"notes": [f"{member.name}({' '.join(notes)})"], "n": len(notes)}
        asked = {"ask": 1, "twice": 2}.get(member.kind, 0)
        return outcome(member, state, [self._answer(f"{place}/{n}") for n in range(asked)])

    def _answer(self, place: str) -> int:
        if place not in self._answers:
            raise Unanswered(place)
        return self._answers[place]

    def _targets(self, member: Member, seen: State, state: State) -> list[Planned]:
        way, targets = member.exit.way, member.exit.targets
        if member.kind == "broken" and member.fallback:
            return [(member.fallback, None)]
        if way == "goto":
            return [(targets[seen["n"] % len(targets)], None)]
        if way == "map":
            beyond = self._shape.member(targets[0])
            sent: list[Planned] = [(targets[0], item) for item in items_of(state)]
            return sent or [(target, None) for target in beyond.exit.targets]
        if way == "send":
            sent = [(targets[item % len(targets)], item) for item in items_of(state)]
            return sent or [(targets[0], None)]
        if way == "loop" and state["round"] >= self._shape.rounds:
            return []
        return [(target, None) for target in targets]

    def _sorted(self, tasks: Sequence[Planned]) -> list[Planned]:
        """In the order of the nodes; a node that is led to several times runs once."""
        plain = dict.fromkeys(task for task in tasks if task[1] is None)
        sent = [task for task in tasks if task[1] is not None]
        return sorted([*plain, *sent], key=lambda task: self._order[task[0]])


def _apply(state: State, update: Mapping[str, Any]) -> None:
    for name, value in update.items():
        state[name] = state[name] + value if name in ("n", "notes") else value
