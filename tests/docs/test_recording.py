"""The pictures of the README are as the program draws them today."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts import recording
from scripts.recording import DEMO, GRAPH, IMAGES, Printed, drawn, normalised, paced, problems

SESSION = [
    Printed(0.0, "$ milecastle show <order> & more"),
    Printed(0.1, "run  01a1e69f-9ba5-70df-8a4d-617c14ff1430"),
    Printed(9.0, "lost: process 77 on host 'here' is gone, 01a1e69f-9ba5-70df-8a4d-617c14ff1431"),
]


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_the_readme_shows_what_the_demo_prints_today() -> None:
    """Seen to fail with another word in the demo."""
    assert recording.main(["--check"]) == 0


def test_a_stale_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / DEMO).write_text(drawn(SESSION), encoding="utf-8")
    (tmp_path / GRAPH).write_bytes((IMAGES / GRAPH).read_bytes())
    assert problems(SESSION, tmp_path) == []
    assert len(problems(SESSION[:2], tmp_path)) == 1
    (tmp_path / GRAPH).write_text("<svg/>", encoding="utf-8")
    assert len(problems(SESSION[:2], tmp_path)) == 2


def test_ids_are_replaced_and_stay_different() -> None:
    first, second = (line.text for line in normalised(SESSION)[1:])
    assert first == "run  01a1dd54-9d94-778f-b6e6-4ab28a758400"
    assert second == (
        "lost: process 4242 on host 'laptop' is gone, 01a1dd54-9d94-778f-b6e6-4ab28a758401"
    )


def test_pauses_can_be_read_and_none_is_long() -> None:
    """The first line is there at once: no reader sees an empty box."""
    assert [line.at for line in paced(SESSION)] == [0.0, 1.0, 3.0]


def test_without_motion_every_line_is_shown() -> None:
    """Lines are hidden by the animation only, which only those get who did not ask for less."""
    before, found, after = drawn(SESSION).partition("prefers-reduced-motion: no-preference")
    assert found
    assert "opacity" not in before
    assert "opacity" not in after.partition("</style>")[2]
