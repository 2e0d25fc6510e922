"""Lanes: columns of stops in which links lead back up, beside the boxes that they join."""

from __future__ import annotations

from milecastle.graph.draw.ordering import Rows

__all__ = ["add_lane"]

# What it costs to lead a lane across another link, or along the left side.
_CROSSING = 4
_LEFT = 3


def add_lane(rows: Rows, top: int, bottom: int) -> list[int]:
    """Lead a lane from beside ``top`` down to beside ``bottom`` with the fewest crossings.

    The ends stand next to their boxes, with no box between; both are on the same side. The two
    boxes may be one.
    """
    position = rows.positions()
    span = range(rows.rank[top], rows.rank[bottom])
    steps = [_step_costs(rows, row, position) for row in span]
    right_cost, right = _best_slots(steps, position[top] + 1, position[bottom] + 1)
    left_cost, left = _best_slots(steps, position[top], position[bottom])
    lane: list[int] = []
    slots = right if right_cost <= left_cost + _LEFT else left
    for row, slot in enumerate(slots, start=rows.rank[top]):
        stop = rows.add_stop(row)
        rows.order[row].insert(slot, stop)
        if lane:
            rows.join(lane[-1], stop)
        lane.append(stop)
    rows.stubs += [(top, lane[0]), (bottom, lane[-1])]
    return lane


def _best_slots(steps: list[list[list[int]]], start: int, goal: int) -> tuple[int, list[int]]:
    """The cheapest slot for each row, by dynamic programming from the top row to the bottom."""
    costs = {start: 0}
    origins: list[dict[int, int]] = []
    for number, step in enumerate(steps, start=1):
        allowed = [goal] if number == len(steps) else range(len(step[0]))
        # Of equally cheap slots the rightmost.
        ways = {b: min((cost + step[a][b], -a) for a, cost in costs.items()) for b in allowed}
        origins.append({slot: -origin for slot, (_, origin) in ways.items()})
        costs = {slot: cost for slot, (cost, _) in ways.items()}
    slots = [goal]
    for origin in reversed(origins):
        slots.append(origin[slots[-1]])
    return costs[goal], slots[::-1]


def _step_costs(rows: Rows, row: int, position: list[int]) -> list[list[int]]:
    """What a lane pays for going from slot ``a`` of the row to slot ``b`` of the next."""
    upper, lower = len(rows.order[row]), len(rows.order[row + 1])
    table = [[0] * (lower + 1)]
    for point in rows.order[row]:
        counts = list(table[-1])
        for other in rows.below[point]:
            for b in range(position[other] + 1, lower + 1):
                counts[b] += 1
        table.append(counts)
    stubs = _stub_costs(rows, row + 1, position)
    # table[a][b]: joins that end left of both slots. Those left of one slot only are crossed.
    return [
        [
            _CROSSING * (table[a][lower] + table[upper][b] - 2 * table[a][b]) + stubs[b]
            for b in range(lower + 1)
        ]
        for a in range(upper + 1)
    ]


def _stub_costs(rows: Rows, row: int, position: list[int]) -> list[int]:
    """What a lane in each slot of the row pays for cutting off lanes from their boxes."""
    costs = [0] * (len(rows.order[row]) + 1)
    for box, stop in rows.stubs:
        if rows.rank[box] == row:
            low, high = sorted((position[box], position[stop]))
            for slot in range(low + 1, high + 1):
                costs[slot] += _CROSSING
    return costs
