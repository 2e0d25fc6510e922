"""Values as pickles: anybody can load them, and nothing that is read can run."""

from __future__ import annotations

import pickle
import pickletools
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milecastle import register_type
from milecastle.codec import pickles
from milecastle.codec.bounds import MAX_DEPTH
from milecastle.codec.pickles import PickleCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.signing import close_file, open_file
from milecastle.errors import (
    CodecError,
    Corrupted,
    FormatTooNew,
    MilecastleError,
    UnserializableState,
    UntrustedFile,
)
from tests.unit.codec import domain, gadgets
from tests.unit.codec.sameness import same, same_array, same_fields

ROOT = Path(__file__).resolve().parents[3]
TYPES: list[Any] = [*domain.TYPES, gadgets.Trap]
KEY = b"a secret"
GADGETS = sorted(gadgets.all_gadgets("x"))


def make_codec(*types: Any) -> PickleCodec:
    return PickleCodec(TypeRegistry.for_annotations(types or TYPES))


CODEC = make_codec()


@given(domain.values)
@settings(max_examples=100, deadline=None)
def test_a_value_comes_back_the_same_from_either_reader(value: object) -> None:
    data = CODEC.dumps(value)
    assert same(CODEC.loads(data), value)
    assert same(pickle.loads(data), value)


def test_a_large_dict_with_any_keys_comes_back_from_either_reader() -> None:
    """Fails if its keys are written as those of a map, which a reader refuses."""
    value = {(number,): number for number in range(5_000)}
    data = CODEC.dumps(value)
    assert CODEC.loads(data) == pickle.loads(data) == value


@pytest.mark.parametrize("bits", [7, 8, 15, 16, 2_031, 2_032, 2_039, 2_040, 3_000])
def test_an_int_of_any_size_comes_back_from_either_reader(bits: int) -> None:
    """Fails if an int whose size takes more than a byte is left out."""
    for value in (1 << bits, (1 << bits) - 1, -(1 << bits)):
        data = CODEC.dumps([value, "after"])
        assert CODEC.loads(data) == pickle.loads(data) == [value, "after"]


@pytest.mark.parametrize(
    "value",
    [
        domain.Doc("a", [domain.Doc("b")], ["t"]),
        domain.Point(1.5, domain.Colour.CRIMSON),
        domain.Counted("n"),
    ],
    ids=["plain", "frozen with slots", "with fields that are not arguments"],
)
def test_a_dataclass_comes_back_from_either_reader(value: object) -> None:
    data = CODEC.dumps(value)
    assert same_fields(CODEC.loads(data), value)
    assert same_fields(pickle.loads(data), value)


def test_a_pydantic_model_comes_back_from_either_reader() -> None:
    pytest.importorskip("pydantic")
    from tests.unit.codec.test_models import Message, Open

    codec = make_codec(Message, Open)
    for value in (Message(role="user", howMany=5), Open.model_validate({"x": 1, "more": [2]})):
        data = codec.dumps(value)
        assert codec.loads(data) == pickle.loads(data) == value


def test_an_array_comes_back_from_either_reader() -> None:
    numpy: Any = pytest.importorskip("numpy")
    value = numpy.arange(6, dtype=">f4").reshape(2, 3)
    data = CODEC.dumps(value)
    assert same_array(CODEC.loads(data), value)
    assert same_array(pickle.loads(data), value)


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def _cents(money: Money) -> int:
    return money.cents


def test_a_registered_type_comes_back_from_either_reader() -> None:
    register_type(Money, name="money", to_plain=_cents, from_plain=Money)
    codec = make_codec(int)
    data = codec.dumps([Money(5)])
    found: list[Any] = [codec.loads(data), pickle.loads(data)]
    assert [money.cents for (money,) in found] == [5, 5]


def test_reader_without_a_registered_type_gets_its_plain_form() -> None:
    assert pickles.rebuild(Money, "not registered", 5) == 5


def test_a_type_of_a_script_is_known_when_the_script_is_imported() -> None:
    class Doc(domain.Doc):
        pass

    Doc.__module__, Doc.__qualname__ = "__main__", "Doc"
    codec = PickleCodec(TypeRegistry([Doc]))
    data = codec.dumps(Doc("x"))
    found: Any = CODEC.loads(data)
    assert type(found) is domain.Doc
    Doc.__module__ = "somewhere.else"
    with pytest.raises(UntrustedFile, match=r"somewhere\.else\.Doc"):
        CODEC.loads(codec.dumps(Doc("x")))


def test_what_cannot_be_saved_is_refused_with_its_path() -> None:
    with pytest.raises(UnserializableState) as caught:
        CODEC.dumps({"docs": [1, {"lock": threading.Lock()}]})
    assert caught.value.path == "$.docs[1].lock"
    with pytest.raises(UnserializableState, match="annotate"):
        make_codec(int).dumps([domain.Doc("x")])


def test_a_value_as_deep_as_a_store_takes_is_saved_from_a_full_stack() -> None:
    value: Any = "bottom"
    for _ in range(MAX_DEPTH // 2):
        value = [domain.Pair(value)]
    data = CODEC.dumps(value)

    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
            return
        assert CODEC.dumps(value) == data
        assert CODEC.dumps(CODEC.loads(data)) == data

    deep(600)


def test_too_many_containers_are_refused_by_writer_and_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value: list[list[int]] = [[] for _ in range(20)]
    data = CODEC.dumps(value)
    monkeypatch.setattr(pickles, "_MAX_CONTAINERS", 20)
    with pytest.raises(UnserializableState, match="containers"):
        CODEC.dumps(value)
    with pytest.raises(UntrustedFile, match="too many parts"):
        CODEC.loads(data)


def test_too_large_a_pickle_is_refused_by_writer_and_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = CODEC.dumps("x" * 100)
    monkeypatch.setattr(pickles, "MAX_PICKLE", 100)
    with pytest.raises(UnserializableState, match="limit"):
        CODEC.dumps("x" * 100)
    with pytest.raises(UntrustedFile, match="larger"):
        CODEC.loads(data)


def test_only_a_handful_of_opcodes_is_written() -> None:
    value = {"a": [1, 300, 2**80, -1, 2**4000, 1.5, None, True, False, b"x", domain.MOMENT]}
    data = CODEC.dumps([value, (1,), {1}, frozenset({2}), domain.Doc("x"), {(1, 2): 3}])
    used = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert used <= {
        *("PROTO", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT1", "LONG1", "LONG4"),
        *("BINFLOAT", "BINUNICODE", "BINBYTES", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"),
        *("MARK", "APPENDS", "SETITEMS", "ADDITEMS", "FROZENSET", "TUPLE"),
        *("STACK_GLOBAL", "REDUCE"),
    }


def test_an_outline_needs_no_declared_types() -> None:
    data = CODEC.dumps({"name": "g", "doc": domain.Doc("x", domain.MOMENT)})
    assert make_codec(int).outline(data) == {"name": "g", "doc": None}


def refused(data: bytes) -> UntrustedFile:
    """Why a pickle is refused, having seen that nothing was imported for it."""
    modules = set(sys.modules)
    with pytest.raises(CodecError) as caught:
        CODEC.loads(data)
    assert set(sys.modules) == modules
    assert isinstance(caught.value, UntrustedFile)
    return caught.value


@pytest.mark.parametrize("name", GADGETS)
def test_a_hostile_pickle_is_refused_and_leaves_no_trace(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    body = gadgets.all_gadgets(str(mark))[name]
    for data in (gadgets.alone(body), gadgets.inside(body)):
        error = refused(data)
        assert str(mark) not in str(error)
    assert not mark.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of POSIX")
def test_the_hostile_pickles_would_do_harm_elsewhere(tmp_path: Path) -> None:
    """The control: the standard library's own reader is caught by what the test looks at."""
    count = 0
    for index, name in enumerate(GADGETS):
        mark = tmp_path / f"{index}.mark"
        body = gadgets.all_gadgets(str(mark))[name]
        if name not in gadgets.abusing(""):
            count += 1
            tmp_path.joinpath(f"{index}.pkl").write_bytes(gadgets.alone(body))
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.codec.gadgets", str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.mark"))) < 45 and time.monotonic() < deadline:
        time.sleep(0.05)
    live = {int(path.stem) for path in tmp_path.glob("*.mark")}
    dead = [name for index, name in enumerate(GADGETS) if index not in live]
    harmless = {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "SETITEM on something else"}
    assert set(dead) - set(gadgets.abusing("")) <= harmless, done.stderr
    assert len(live) >= 45


@pytest.mark.parametrize("body", [b"X\xff\xff\xff\x7fa", b"B\x05\x00\x00\x00a", b"G123", b"K"])
def test_what_is_cut_short_is_not_made_up(body: bytes) -> None:
    assert "exceeds its actual length" in str(refused(gadgets.PROTO + body))


def test_a_pickle_of_another_protocol_is_refused() -> None:
    """Fails if the two bytes in front are not looked at."""
    assert "expected header" in str(refused(b"\x80\x05" + CODEC.dumps([1])[2:]))


def test_an_object_needs_the_name_of_its_type() -> None:
    """Fails if a text may be in the place of a type."""
    rebuild = gadgets.named("milecastle.codec.pickles", "rebuild")
    called = gadgets.call(rebuild, gadgets.text("Doc"), gadgets.text("Doc"))
    assert "an object has no type" in str(refused(gadgets.alone(called)))


def test_nothing_may_follow_the_end() -> None:
    data = CODEC.dumps([1])
    for more in (b"x", b".", data):
        assert "end" in str(refused(data + more))


def test_a_bomb_costs_no_memory() -> None:
    for body in (b"](" * 200_000, b"]" * 200_000, b"X\xff\xff\xff\x7f", b"(" * 200_000):
        data = gadgets.alone(body)
        tracemalloc.start()
        refused(data)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 6_000_000


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    for data in (noise, gadgets.PROTO + noise, gadgets.inside(noise)):
        try:
            CODEC.loads(data)
        except CodecError:
            continue


GOOD = {
    "version": "1.0",
    "state": {"docs": [domain.Doc("x", domain.MOMENT)], "n": [1, 2**70, -3.5], "t": (1, {2})},
    "trap": object.__new__(gadgets.Trap),
}
object.__setattr__(GOOD["trap"], "text", "")


def test_a_changed_byte_never_runs_anything(tmp_path: Path) -> None:
    """Without the checksum: what the reader alone makes of every single changed byte."""
    trap = object.__new__(gadgets.Trap)
    object.__setattr__(trap, "text", str(tmp_path / "mark"))
    data = CODEC.dumps({**GOOD, "trap": trap})
    choice = random.Random(5)
    modules = set(sys.modules)
    for at in range(len(data)):
        for value in {*choice.sample(range(256), 3), data[at] ^ 1, *b"cioRb\x81\x92\x93"}:
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                CODEC.loads(changed)
            except CodecError:
                continue
    assert set(sys.modules) == modules
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_changed_byte_of_a_file_is_noticed(key: bytes | None) -> None:
    data = close_file(CODEC.dumps(GOOD), key)
    assert open_file(data, key, "here") == CODEC.dumps(GOOD)
    for at in range(len(data)):
        for bit in (1, 0x80):
            changed = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            with pytest.raises(MilecastleError):
                open_file(changed, key, "here")


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_file_that_was_cut_short_is_noticed(key: bytes | None) -> None:
    data = close_file(CODEC.dumps(GOOD), key)
    for size in range(len(data)):
        with pytest.raises(Corrupted if key is None else MilecastleError) as caught:
            open_file(data[:size], key, "here")
        assert "here" in str(caught.value)


def test_a_signed_file_is_a_pickle_and_opens_without_the_key() -> None:
    data = close_file(CODEC.dumps({"version": "1.0"}), KEY)
    assert pickle.loads(data) == {"version": "1.0"}
    assert CODEC.loads(open_file(data, None, "here")) == {"version": "1.0"}


def test_a_file_is_only_opened_with_the_key_that_signed_it() -> None:
    content = CODEC.dumps(GOOD)
    with pytest.raises(UntrustedFile, match="not signed"):
        open_file(close_file(content, None), KEY, "here")
    with pytest.raises(UntrustedFile, match="does not match"):
        open_file(close_file(content, b"another"), KEY, "here")
    swapped = CODEC.dumps({**GOOD, "state": {}}) + close_file(content, KEY)[len(content) :]
    with pytest.raises(UntrustedFile, match="does not match"):
        open_file(swapped, KEY, "here")


def test_file_of_a_newer_version_is_reported_before_anything_is_read() -> None:
    data = close_file(CODEC.dumps({"version": "2.1"}), None)
    for seen in (data, data[:-40], data + b"more"):
        with pytest.raises(FormatTooNew) as caught:
            open_file(seen, KEY, "here")
        assert (caught.value.found, caught.value.supported) == (2, 1)


def test_short_file_of_something_else_is_not_called_cut_short() -> None:
    """Fails if a few bytes of another file are reported as damage of one of ours."""
    with pytest.raises(UntrustedFile, match="not a portable file"):
        open_file(b"hello", None, "file")
    with pytest.raises(Corrupted, match="cut short"):
        open_file(b"\x80\x04}(X", None, "file")


def test_a_file_must_begin_with_its_version() -> None:
    with pytest.raises(ValueError, match="begins"):
        close_file(CODEC.dumps({"state": 1}), None)
    with pytest.raises(UntrustedFile, match="not a portable file"):
        open_file(pickle.dumps({"version": "1.0"}), None, "here")
