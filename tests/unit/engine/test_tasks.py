"""Tasks of a step: their ids."""

from __future__ import annotations

import pytest

from milecastle.engine.tasks import task_id


@pytest.mark.parametrize(
    ("name", "id"), [("work", "work"), ("a/b", "a#sb"), ("a#b", "a#hb"), ("a#s", "a#hs")]
)
def test_id_tells_names_apart_and_holds_no_separator(name: str, id: str) -> None:
    """Fails if two names have one id, or a name looks like an item or a task of a subgraph.

    Ids are stored: they never change.
    """
    assert task_id(name) == id
