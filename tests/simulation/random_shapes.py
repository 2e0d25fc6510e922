"""Random shapes of graphs, as data: what the nodes do, and where they lead.

A shape is a row of stages between hubs, gone through a number of times. ``random_graphs`` makes a
graph of it, ``graph_model`` says how it must end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from milecastle.model.reducers import add, append

__all__ = [
    "INPUT",
    "Exit",
    "Kind",
    "Member",
    "Shape",
    "Tally",
    "items_of",
    "outcome",
    "random_shape",
]

Kind = Literal["plain", "once", "ask", "twice", "nap", "flaky", "broken", "child", "goto", "turn"]
"""What a node does: nothing special, record a step, ask once or twice, sleep, fail at first, fail
always, run a subgraph, choose its own way, end a round."""

WORK: tuple[Kind, ...] = ("plain", "once", "ask", "twice", "nap", "flaky", "broken", "child")
STAGES = ("single", "parallel", "map", "send", "goto", "uneven")
NAP = 3600.0


class Tally(TypedDict):
    """The state of a random graph."""

    round: int
    item: int
    n: Annotated[int, add]
    notes: Annotated[list[str], append]


INPUT: Mapping[str, Any] = {"round": 0, "item": 0, "n": 1, "notes": []}


class Exit(msgspec.Struct, frozen=True):
    """Where a node leads: to all ``targets``, to each of them for each item, to one of them..."""

    way: Literal["fixed", "map", "send", "goto", "loop"]
    targets: tuple[str, ...]


class Member(msgspec.Struct, frozen=True):
    """A node. ``fallback`` runs if it fails for good."""

    name: str
    kind: Kind
    exit: Exit
    defer: bool = False
    is_async: bool = False
    fallback: str | None = None


class Shape(msgspec.Struct, frozen=True):
    """A graph; its nodes in the order in which their updates are applied. ``child`` is a node's."""

    members: Sequence[Member]
    rounds: int
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    interval: int = 1
    child: Shape | None = None

    def member(self, name: str) -> Member:
        """The node of this name."""
        return next(member for member in self.members if member.name == name)


def items_of(state: Mapping[str, Any]) -> list[int]:
    """What a fan-out is over: none to three items."""
    return list(range(state["n"] % 4))


def outcome(member: Member, state: Mapping[str, Any], said: Sequence[Any]) -> dict[str, Any]:
    """The update that a node makes; ``said`` is what it was answered, or its subgraph noted."""
    told = f"={','.join(map(str, said))}" if said else ""
    update: dict[str, Any] = {
        "notes": [f"{member.name}.{state['item']}{told}"],
        "n": 1 + len(state["notes"]) % 3,
    }
    if member.kind == "turn":
        update["round"] = state["round"] + 1
    return update


def random_shape(random: Random, *, is_child: bool = False) -> Shape:
    """A shape; that of a subgraph is small and has no subgraph."""
    stages = random.choices(STAGES, k=random.randint(1, 1 if is_child else 3))
    kinds = WORK[:-1] if is_child else WORK
    made = [
        member
        for number, stage in enumerate(stages)
        for member in _stage(random, stage, number, kinds)
    ]
    last = f"h{len(stages)}"
    made.append(Member(last, "turn", Exit("loop", ("h0",))))
    hubs = [f"h{number}" for number in range(len(stages))]
    may_stop = [*hubs, *(member.name for member in made if member.name[0] == "w")]
    return Shape(
        members=made,
        rounds=random.choice((1, 1, 2)),
        before=tuple(random.sample(may_stop, 1)) if random.random() < 0.2 else (),
        after=tuple(random.sample(may_stop, 1)) if random.random() < 0.1 else (),
        interval=2 if random.random() < 0.1 else 1,
        child=None if is_child else random_shape(random, is_child=True),
    )


def _stage(random: Random, stage: str, number: int, kinds: Sequence[Kind]) -> list[Member]:
    """A hub and what it leads to; all of that leads to the next hub."""
    hub, end = f"h{number}", Exit("fixed", (f"h{number + 1}",))
    count = 1 if stage in ("single", "map") else random.randint(2, 3)
    names = [f"w{number}{place}" for place in "abc"[:count]]
    if stage == "uneven":
        return _uneven(random, number, kinds)
    way: Any = stage if stage in ("map", "send", "goto") else "fixed"
    kind: Kind = "goto" if stage == "goto" else random.choice(("plain", "plain", "once", "ask"))
    made = [Member(hub, kind, Exit(way, tuple(names)))]
    for name in names:
        made += _worker(random, name, random.choice(kinds), end)
    return made


def _worker(random: Random, name: str, kind: Kind, end: Exit) -> list[Member]:
    if kind == "broken":
        mend = f"m{name}"
        return [
            Member(name, kind, end, fallback=mend),
            Member(mend, "plain", end),
        ]
    is_async = kind in ("plain", "once", "ask") and random.random() < 0.03
    return [Member(name, kind, end, is_async=is_async)]


def _uneven(random: Random, number: int, kinds: Sequence[Kind]) -> list[Member]:
    """A long branch and a short one, and a join that waits for both."""
    hub, end = f"h{number}", Exit("fixed", (f"h{number + 1}",))
    long, longer, short, join = (f"w{number}{place}" for place in "abcj")
    whole: list[Kind] = [kind for kind in kinds if kind != "broken"]
    last: Kind = random.choice(("plain", "once", "ask"))
    return [
        Member(hub, "plain", Exit("fixed", (long, short))),
        Member(long, random.choice(whole), Exit("fixed", (longer,))),
        Member(longer, random.choice(whole), Exit("fixed", (join,))),
        Member(short, random.choice(whole), Exit("fixed", (join,))),
        Member(join, last, end, defer=True),
    ]
