from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle.draw.lettering import cells, clean, pixels, shorten


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("名前", 4), ("e\u0301", 1), ("\u00e9", 1), ("🎉", 2), ("", 0)]
)
def test_cells_are_columns_of_a_terminal(text: str, width: int) -> None:
    assert cells(text) == width


def test_pixels_follow_the_shape_of_letters() -> None:
    assert pixels("iii", 13) < pixels("aaa", 13) < pixels("AAA", 13) < pixels("WWW", 13)
    assert pixels("名", 13) == 14
    assert pixels("", 13) == 0


@given(st.text(), st.integers(4, 40))
def test_a_shortened_name_fits_and_keeps_both_ends(name: str, limit: int) -> None:
    short = shorten(name, limit)
    assert cells(short) <= limit
    if short != name:
        head, tail = short.split("\u2026")[0], short.split("\u2026")[-1]
        assert name.startswith(head)
        assert name.endswith(tail)


@given(st.text(st.characters(exclude_categories=())))
def test_a_clean_name_is_one_line_that_can_be_encoded(name: str) -> None:
    text = clean(name)
    assert len(text) == len(name)
    assert len(text.splitlines()) <= 1
    assert text.encode().decode() == text
    assert clean(text) == text
