"""Row assignment: links go down, except those closing a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

Pair = tuple[int, int]
_Links = Mapping[int, list[int]] | list[list[int]]

# The maximum number of boxes in one row.
WIDEST = 9


def find_back_links(count: int, pairs: Sequence[Pair], strong: Iterable[int] = ()) -> set[int]:
    """The numbers of the links closing a cycle, self loops too.

    Links are taken depth first from node 0, those in ``strong`` before all others: certain links
    show the way better than possible ones.
    """
    below: list[list[int]] = [[] for _ in range(count)]
    back: set[int] = set()
    certain = _leaving(count, pairs, strong)
    everything = _leaving(count, pairs, range(len(pairs)))
    roots = range(count)
    for number in dict.fromkeys(
        (*_walk(pairs, certain, roots[:1]), *_walk(pairs, everything, roots))
    ):
        source, target = pairs[number]
        if _reaches(below, target, source):
            back.add(number)
        else:
            below[source].append(target)
    return back


def _leaving(count: int, pairs: Sequence[Pair], numbers: Iterable[int]) -> list[list[int]]:
    leaving: list[list[int]] = [[] for _ in range(count)]
    for number in numbers:
        leaving[pairs[number][0]].append(number)
    return leaving


def _walk(pairs: Sequence[Pair], leaving: list[list[int]], roots: Iterable[int]) -> Iterator[int]:
    seen: set[int] = set()
    for root in roots:
        stack = [] if root in seen else [iter(leaving[root])]
        seen.add(root)
        while stack:
            number = next(stack[-1], None)
            if number is None:
                stack.pop()
                continue
            yield number
            target = pairs[number][1]
            if target not in seen:
                seen.add(target)
                stack.append(iter(leaving[target]))


def _reaches(below: list[list[int]], start: int, goal: int) -> bool:
    seen = {start}
    stack = [start]
    while stack:
        node = stack.pop()
        if node == goal:
            return True
        fresh = [other for other in below[node] if other not in seen]
        seen.update(fresh)
        stack += fresh
    return False


def assign_ranks(
    count: int, pairs: Sequence[Pair], first: int | None, last: int | None
) -> list[int]:
    """A row for each node, from 0, without empty rows; ``pairs`` must hold no cycle.

    ``first`` has the top row and ``last`` the bottom row for itself. Rows that would be too wide
    are folded into several.
    """
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        below[source].append(target)
        above[target].append(source)
    order = topological(range(count), above, below)
    rank = [0] * count
    for node in order:
        floor = 0 if node == first or first is None else 1
        rank[node] = max([floor, *(rank[other] + 1 for other in above[node])])
    for node in reversed(order):
        # Lower what leads to more than it comes from: its links grow shorter.
        if node != first and len(below[node]) > len(above[node]):
            rank[node] = max(rank[node], min(rank[other] for other in below[node]) - 1)
    if last is not None:
        rank[last] = max((rank[node] for node in range(count) if node != last), default=-1) + 1
    return _fold(rank)


def topological(nodes: Iterable[int], above: _Links, below: _Links) -> list[int]:
    waiting = {node: len(above[node]) for node in nodes}
    order = [node for node, missing in waiting.items() if not missing]
    for node in order:
        for other in below[node]:
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return order


def _fold(rank: list[int]) -> list[int]:
    """Number the rows again, from 0 and without gaps, none wider than ``WIDEST``.

    Neighbours go to different rows, like bricks, and so stand closer than their widths.
    """
    rows: dict[int, list[int]] = {}
    for node, row in enumerate(rank):
        rows.setdefault(row, []).append(node)
    folded = [0] * len(rank)
    top = 0
    for row in sorted(rows):
        nodes = rows[row]
        parts = -(-len(nodes) // WIDEST)
        for index, node in enumerate(nodes):
            folded[node] = top + index % parts
        top += parts
    return folded
