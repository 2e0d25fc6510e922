"""Long-term memory in histories: the value of each item is the places that wrote it.

A tenant's ``STEPS`` is read and written with ``if_version=``, its ``NEWEST`` without, and each
input has an item of its own, which is deleted too. Names of inputs begin like others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from milecastle.records import MemoryItem

__all__ = [
    "MEMORY_ACTS",
    "NEWEST",
    "STEPS",
    "Shown",
    "act_on_memory",
    "count",
    "own",
    "put",
    "recall",
    "shown",
]

MEMORY_ACTS = (
    *("count", "count-fail1", "count-sleep", "count-once", "once-count-fail1", "recall-fail4"),
    *(
        "put",
        "put-fail1",
        "put-ask",
        "recall-put",
        "keep",
        "keep-recall-fail1",
        "drop",
        "drop-fail1",
    ),
)
"""``count`` reads ``STEPS`` and adds its place, ``put`` puts ``NEWEST``, ``keep`` and ``drop`` put
and delete the input's own item; ``recall`` reads them."""

STEPS, NEWEST = "own/steps", "own/newest"

Shown = list[tuple[str, int, list[str]]]
"""Items by name, with their versions and the places that wrote them."""


class Items(Protocol):
    """``ctx.memory``, or that of an app."""

    def get(self, namespace: Sequence[str], key: str) -> MemoryItem | None: ...

    def list(self, under: Sequence[str] = (), *, limit: int = 100) -> Sequence[MemoryItem]: ...

    def put(
        self, namespace: Sequence[str], key: str, value: Any, *, if_version: int | None = None
    ) -> None: ...

    def delete(self, namespace: Sequence[str], key: str) -> None: ...


def own(op: str) -> str:
    """The name of the item of an input."""
    return f"own/{op}/note"


def _place(name: str) -> tuple[tuple[str, ...], str]:
    *namespace, key = name.split("/")
    return tuple(namespace), key


def shown(items: Iterable[MemoryItem | None]) -> Shown:
    return [("/".join((*one.namespace, one.key)), one.version, one.value) for one in items if one]


def recall(memory: Items, under: str = "") -> Shown:
    """The items whose names begin with these labels."""
    return shown(memory.list(tuple(under.split("/")) if under else (), limit=1000))


def count(memory: Items, place: str) -> Shown:
    """Add a place to those of ``STEPS``, if nobody is faster; what it was before."""
    found = memory.get(*_place(STEPS))
    before: list[str] = found.value if found else []
    memory.put(*_place(STEPS), [*before, place], if_version=found.version if found else 0)
    return shown([found])


def put(memory: Items, name: str, place: str) -> None:
    memory.put(*_place(name), [place])


def act_on_memory(part: str, place: str, memory: Items, world: Any) -> list[str]:
    """Do one act; what it writes, as the state is to have it."""
    name = {"count": STEPS, "put": NEWEST}.get(part, own(place.partition("/")[0]))
    began, under = world.now(), ""
    if part == "recall":
        for under in ("", name.removesuffix("/note")):
            found = [began, under, recall(memory, under)]
            world.note("recalled", f"{place}={json.dumps(found)}")
        return []
    if part == "count":
        world.note("recalled", f"{place}={json.dumps([began, STEPS, count(memory, place)])}")
    elif part == "drop":
        memory.delete(*_place(name))
    else:
        put(memory, name, place)
    written = f"{'-' if part == 'drop' else '+'}{name}"
    world.note("wrote", f"{place}={written}")
    return [f"{written} {place}"]
