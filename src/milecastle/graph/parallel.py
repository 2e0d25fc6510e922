"""Which nodes may run in the same step, judged by the structure.

Two nodes may run together if something leads to both at once, or if they follow two such nodes.
A node set is an int here, one bit a node: the number of meetings grows with the square of
the node count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from milecastle.graph.edges import PlainEdge, Router
from milecastle.model.manifest import END


def meetings(
    edges: Sequence[PlainEdge], routers: Sequence[Router], groups: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """For each group: a node, and others possibly in the same step.

    Every node that may meet another in its group is named at least once, and no more often than
    that takes. A router counts as choosing one target, except for those in its ``together``.
    """
    if all(len(members) < 2 for members in groups.values()):
        return
    numbers = _numbers(edges, routers, groups)
    names = tuple(numbers)
    met = _meet(edges, routers, numbers)
    for key, members in groups.items():
        among = _mask(numbers[name] for name in members)
        named = 0
        for number in _bits(among):
            others = met[number] & among
            if others and (others | 1 << number) & ~named:
                found = others & ~named or others
                named |= found | 1 << number
                yield key, names[number], tuple(names[other] for other in _bits(found))


def _numbers(
    edges: Sequence[PlainEdge], routers: Sequence[Router], groups: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    found = dict.fromkeys(name for members in groups.values() for name in members)
    for edge in edges:
        found |= {edge.source: None, edge.target: None}
    for router in routers:
        found |= dict.fromkeys((router.source, *router.targets.values()))
    return {name: number for number, name in enumerate(found)}


def _meet(
    edges: Sequence[PlainEdge], routers: Sequence[Router], numbers: Mapping[str, int]
) -> list[int]:
    ways = [0] * len(numbers)
    met = [0] * len(numbers)
    for source, choices in _choices(edges, routers, numbers).items():
        for choice, others in zip(choices, _all_but_each(choices), strict=True):
            ways[source] |= choice
            for number in _bits(choice):
                met[number] |= others & ~(1 << number)
    for router in routers:
        for names in router.together:
            together = _mask(numbers[name] for name in names if name != END)
            for number in _bits(together):
                met[number] |= together & ~(1 << number)
    _follow(ways, met)
    return met


def _choices(
    edges: Sequence[PlainEdge], routers: Sequence[Router], numbers: Mapping[str, int]
) -> dict[int, list[int]]:
    fixed: dict[int, dict[int, None]] = {}
    tried: dict[int, int] = {}
    conditional = {edge.source for edge in edges if edge.when is not None}
    for edge in edges:
        source, target = numbers[edge.source], _mask([numbers[edge.target]])
        if edge.target == END:
            continue
        if edge.source in conditional:
            tried[source] = tried.get(source, 0) | target
        else:
            fixed.setdefault(source, {})[target] = None
    choices = {source: list(targets) for source, targets in fixed.items()}
    for source, targets in tried.items():
        choices[source] = [targets]
    for router in routers:
        names = (name for name in router.targets.values() if name != END)
        choices.setdefault(numbers[router.source], []).append(_mask(numbers[n] for n in names))
    return choices


def _all_but_each(sets: list[int]) -> list[int]:
    before = accumulate(sets[:-1], int.__or__, initial=0)
    after = list(accumulate(reversed(sets[1:]), int.__or__, initial=0))
    return [left | right for left, right in zip(before, reversed(after), strict=True)]


def _follow(ways: list[int], met: list[int]) -> None:
    fresh = list(met)
    waiting = deque(number for number, others in enumerate(fresh) if others)
    targets = [tuple(_bits(way)) for way in ways]
    while waiting:
        number = waiting.popleft()
        others, fresh[number] = fresh[number], 0
        if not targets[number]:
            continue
        beyond = 0
        for other in _bits(others):
            beyond |= ways[other]
        for target in targets[number]:
            new = beyond & ~met[target] & ~(1 << target)
            if new:
                if not fresh[target]:
                    waiting.append(target)
                met[target] |= new
                fresh[target] |= new


def _mask(numbers: Iterable[int]) -> int:
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
