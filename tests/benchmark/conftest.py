"""Tests of the benchmarks are for ``just proof``; CI runs two benchmarks, and these here."""

from __future__ import annotations

import pytest

QUICK = ("test_command_line.py", "test_scale_simulation.py", "test_server_pages.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "benchmark" and item.path.name not in QUICK:
            item.add_marker(pytest.mark.slow)
