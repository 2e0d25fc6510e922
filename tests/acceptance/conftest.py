"""What acceptance tests get: both drivers, and nodes of every colour; pairs of these, not all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from typing import Any

import pytest

from tests.acceptance.running import Every, Runner, Wrap

DRIVERS_AND_NODES = ("call", "paint", "run", "wrap")
Pair = frozenset[tuple[str, Any]]


@pytest.fixture(params=["blocking", "asynchronous"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Calls an app, from plain code and from an event loop."""
    return Runner(request.param)


@pytest.fixture(params=[0, 1, 2], ids=["sync nodes", "async nodes", "mixed nodes"])
def wrap(request: pytest.FixtureRequest) -> Wrap:
    """Makes functions async: none, all, or every second one."""
    return Every(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to ``just proof`` what shows no new pair of store, driver, nodes and case."""
    same: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "acceptance" in item.path.parts and hasattr(item, "callspec"):
            same[item.nodeid.partition("[")[0]].append(item)
    for group in same.values():
        for item in repeating(group):
            item.add_marker(pytest.mark.slow)


def repeating(group: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of a function whose pairs others have; each time the one with most is kept."""
    left = {item: pairs_of(item) for item in group}
    missing = set[Pair]().union(*left.values())
    while missing:
        best = max(left, key=lambda item: len(left[item] & missing))
        missing -= left.pop(best)
    return list(left)


def pairs_of(item: pytest.Item) -> set[Pair]:
    """The pairs that a test shows. Engine and stores cannot see each other: a case and a store are
    none, unless the test has nothing else."""
    params: dict[str, Any] = vars(item)["callspec"].params
    given = {name: repr(value) for name, value in params.items()}
    names = [name for name in (*DRIVERS_AND_NODES, "store") if name in given]
    around: list[tuple[str, Any]] = [(name, given.pop(name)) for name in names]
    case: tuple[str, Any] = ("case", tuple(sorted(given.items())))
    pairs: set[Pair] = {frozenset(pair) for pair in combinations([case, *around], 2)}
    if len(around) > 1:
        pairs -= {frozenset((case, one)) for one in around if one[0] == "store"}
    return pairs or {frozenset([case])}
