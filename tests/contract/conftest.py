"""Each commit runs its share of what repeats other tests here, and ``just proof`` all of it.

A store around others owns few clauses, and a broken store is caught by one clause like another.
"""

from __future__ import annotations

import pytest

from tests.seeds import first_seed

AROUND = ("Sharded", "Offloading", "WithOneOpenFile")
"""Parts of the names of classes that hold a store to the contract whose inner store has its own."""
ONE_IN = 1
BROKEN = "test_broken_"
ONE_BROKEN_IN = 8


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent.name == "contract"]
    around = [item for item in here if any(part in item.nodeid for part in AROUND)]
    broken = [item for item in here if BROKEN in item.path.name and hasattr(item, "callspec")]
    for group, one_in in ((around, ONE_IN), (broken, ONE_BROKEN_IN)):
        for number, item in enumerate(group):
            if number % one_in != first_seed() % one_in:
                item.add_marker(pytest.mark.slow)
