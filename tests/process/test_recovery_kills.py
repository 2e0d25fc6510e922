"""kill -9 a build at any moment: resumed, it ends with the same bytes and repeats nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.process.recovery_kills import kill_often

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")


def judge(found: dict[str, int], kills: int) -> None:
    assert found["kills"] + found["ended"] == kills
    assert found["kills"] >= kills / 5, found  # on a busy machine some end before they are killed
    assert found["reused"] > 0
    assert (found["refused"], found["wrong"], found["forgotten"]) == (0, 0, 0), found
    assert (found["again"], found["repeated"]) == (1, 0), found


def test_killed_build_continues_with_what_was_complete(tmp_path: Path) -> None:
    judge(kill_often(tmp_path, 10, 1), 10)


@pytest.mark.slow
def test_two_hundred_killed_builds_continue_with_what_was_complete(tmp_path: Path) -> None:
    judge(kill_often(tmp_path, 200, 2), 200)


def test_nodes_that_are_complete_before_they_ran_are_found_out(tmp_path: Path) -> None:
    found = kill_often(tmp_path, 3, 3, "cheat")
    assert found["wrong"] + found["refused"] > 0, found
