"""File names: valid on every system, readable, and one for each id on any disk."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle.disk.names import file_name
from milecastle.model.keys import MAX_ID_BYTES
from milecastle.testing.entries import HARD_IDS

DIGITS = "0123456789\xb9\xb2\xb3"
RESERVED = {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}.union(
    f"{port}{digit}" for port in ("COM", "LPT") for digit in DIGITS
)

hostile = st.text(
    st.sampled_from('aAbB_-. \t\n\\/:*?"<>|~%conCON\u0131\u0130\xdf\xe9\u0301\u212a\u200b0f'),
    min_size=1,
    max_size=12,
)
any_id = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=80
)
ids = (hostile | any_id | st.sampled_from(HARD_IDS)).filter(
    lambda text: len(text.encode()) <= MAX_ID_BYTES
)


def folded(name: str) -> set[str]:
    """Return what disks that ignore case or normal form may take the name for."""
    forms = [unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    return {fold(form) for form in forms for fold in (str.casefold, str.lower, str.upper)}


@given(ids)
def test_a_name_is_valid_on_every_system(id: str) -> None:
    name = file_name(id)
    assert not re.search(r'[\\/:*?"<>|\x00-\x1f\x7f]', name)
    assert name == name.strip().strip(".")
    assert 0 < len(f".{name}.jsonl.torn-20260101T000000000000Z.tmp".encode()) <= 255
    for whole in (name, f"{name}.jsonl"):
        assert whole.partition(".")[0].rstrip(" ").upper() not in RESERVED


@given(ids, ids)
def test_two_ids_never_meet(one: str, other: str) -> None:
    if one != other:
        assert not folded(file_name(one)) & folded(file_name(other))


@given(ids)
def test_the_name_of_a_name_is_another(id: str) -> None:
    name = file_name(id)
    if name != id:
        assert file_name(name) != name


def test_ids_that_look_alike_have_names_that_do_not() -> None:
    for index, one in enumerate(HARD_IDS):
        for other in HARD_IDS[index + 1 :]:
            assert not folded(file_name(one)) & folded(file_name(other)), (one, other)


@pytest.mark.parametrize("id", ["demo", "thread-1", "order 17", "a_b", "a.b", "user@example.org"])
def test_an_ordinary_id_is_its_own_name(id: str) -> None:
    assert file_name(id) == id


@pytest.mark.parametrize(
    ("id", "start"),
    [
        ('a\\b/c:d*e?f"g<h>i|j', "a_b_c_d_e_f_g_h_i_j-"),
        (" .name. ", "name-"),
        ("...", "thread-"),
        ("\u2003", "thread-"),
        ("Demo", "Demo-"),
        ("caf\u00e9", "caf\u00e9-"),
        ("a\nb", "a_b-"),
        ("con", "_con-"),
        ("nul.txt", "_nul.txt-"),
        ("a~1", "a~1-"),
        ("x" * 400, "x" * 160 + "-"),
        ("\U0001f3f0" * 100, "\U0001f3f0" * 40 + "-"),
    ],
)
def test_a_changed_name_keeps_what_it_can_and_gets_a_hash(id: str, start: str) -> None:
    assert re.fullmatch(re.escape(start) + "[0-9a-f]{20}", file_name(id))


def test_a_name_never_changes() -> None:
    """Files are found by it."""
    assert file_name("A/b") == "A_b-5cff29e366c2584b5c22"
