"""Depth and size are limited alike on both ways, and nothing crashes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from milecastle.codec import values
from milecastle.codec import values as writing
from milecastle.codec.bounds import MAX_DEPTH
from milecastle.codec.values import on_fresh_stack
from milecastle.errors import CodecError, UnserializableState
from tests.unit.codec.domain import Pair, Point, make_codec

CODEC = make_codec()
NESTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"a": inner},
    "tuple": lambda inner: (inner,),
    "frozenset": lambda inner: frozenset([inner]),
    "key": lambda inner: (inner, "x"),
    "dataclass": lambda inner: Point(1.0, inner),
    "struct": lambda inner: Pair(inner, 1),
    "many": lambda inner: [inner, *range(20)],
}
nest_of = pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS.keys())


def nested(nest: Callable[[Any], Any], levels: int, core: object = 1) -> Any:
    value = core
    for _ in range(levels):
        value = nest(value)
    return value


def deep_call(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else deep_call(frames - 1, call)


@nest_of
def test_the_last_level_is_stored_and_one_more_is_refused(nest: Callable[[Any], Any]) -> None:
    data = CODEC.encode(nested(nest, MAX_DEPTH))
    assert CODEC.encode(CODEC.decode(data)) == data
    with pytest.raises(UnserializableState, match="more than 200 levels") as caught:
        CODEC.encode(nested(nest, MAX_DEPTH + 1))
    assert len(caught.value.path) < 500


@nest_of
def test_bytes_that_are_too_deep_are_refused(
    nest: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(writing, "MAX_DEPTH", MAX_DEPTH + 1)
        data = CODEC._writer.write(nested(nest, MAX_DEPTH + 1))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(
        CodecError, match=r"at \$ cannot be read: it is nested more than 200 levels"
    ):
        CODEC.decode(data)


def test_the_rows_of_a_table_count_as_a_level() -> None:
    table = [[1]] * 20
    assert CODEC.encode(nested(NESTS["list"], MAX_DEPTH - 2, table))
    with pytest.raises(UnserializableState):
        CODEC.encode(nested(NESTS["list"], MAX_DEPTH - 1, table))


@pytest.mark.parametrize("nest", [NESTS["list"], NESTS["dict"], NESTS["tuple"]])
def test_twenty_thousand_levels_are_refused_without_a_crash(nest: Callable[[Any], Any]) -> None:
    value: Any = nested(nest, 20_000)
    with pytest.raises(UnserializableState, match="more than 200 levels"):
        CODEC.encode(value)
    while value != 1:  # Taken apart by hand: the interpreter itself frees it by nested calls.
        (value,) = getattr(value, "values", value.__iter__)()


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: list[Any] = [1, 2]
    ring.append({"again": (ring,)})
    with pytest.raises(UnserializableState, match="contains itself") as caught:
        CODEC.encode(ring)
    assert caught.value.path.startswith("$[2].again[0][2].again[0]")


def _extension(body: bytes) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(20, body))


def test_deep_bytes_are_refused_without_a_crash() -> None:
    for data in (b"\x91" * 100_000 + b"\x01", b"\x81\x01" * 50_000 + b"\x01"):
        with pytest.raises(CodecError):
            CODEC.decode(data)
    data = b"\x90"
    for _ in range(3_000):
        data = _extension(b"\x91" + data)
    with pytest.raises(CodecError):
        CODEC.decode(data)


@nest_of
def test_how_full_the_callers_stack_is_does_not_matter(nest: Callable[[Any], Any]) -> None:
    value = nested(nest, MAX_DEPTH)
    data = CODEC.encode(value)
    used = len(_frames())
    spare = sys.getrecursionlimit() - used - 60
    assert deep_call(spare, lambda: CODEC.encode(value)) == data
    assert CODEC.encode(deep_call(spare, lambda: CODEC.decode(data))) == data


def _frames() -> list[object]:
    frame: Any = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    frames: list[object] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def test_a_call_on_a_fresh_stack_returns_and_raises_as_usual() -> None:
    assert on_fresh_stack(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        on_fresh_stack(lambda: 1 // 0)


@pytest.mark.parametrize("value", [["x" * 60] * 20, [("x" * 60,)] * 20, ("x" * 1200,)])
def test_a_value_over_the_size_limit_is_refused(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CODEC.encode(value)
    monkeypatch.setattr(values, "MAX_BYTES", 1000)
    monkeypatch.setattr(writing, "MAX_BYTES", 1000)
    with pytest.raises(UnserializableState, match="the limit is 1000"):
        CODEC.encode({"k": value})
