"""JSON Patches, applied by another implementation of RFC 6902."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle.server.chat.agui.translating import json_patch

jsonpatch: Any = pytest.importorskip("jsonpatch")

SCALARS = st.none() | st.booleans() | st.integers(0, 3) | st.text("a/~0", max_size=2)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("a/~0", max_size=2), inner),
    max_leaves=8,
)
STATES = st.dictionaries(st.sampled_from(["messages", "a/b", "~", "n"]), VALUES)


@given(STATES, STATES)
def test_patch_makes_the_new_value_of_the_old(old: Any, new: Any) -> None:
    """Fails if names are not escaped, items are removed from the front, or True is taken for 1."""
    made = jsonpatch.apply_patch(old, json_patch(old, new))
    assert repr(sorted(made.items())) == repr(sorted(new.items())) or made == new
    assert json_patch(new, new) == []


def test_appended_message_is_one_operation() -> None:
    """Fails if a list that grows is sent again."""
    old = {"messages": [{"id": str(n)} for n in range(100)]}
    new = {"messages": [*old["messages"], {"id": "new"}]}
    assert json_patch(old, new) == [{"op": "add", "path": "/messages/-", "value": {"id": "new"}}]


def test_booleans_are_not_numbers() -> None:
    assert json_patch({"n": 1}, {"n": True}) == [{"op": "replace", "path": "/n", "value": True}]
