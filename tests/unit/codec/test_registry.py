"""Which types are known, by what name, and how names lead back to types."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    ForwardRef,
    Generic,
    Literal,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)

import msgspec
import pytest

from milecastle.codec import registry as registry_module
from milecastle.codec.registry import TypeRegistry, register_type
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError, InvalidRequest, UnserializableState


class Shade(enum.Enum):
    DARK = 1


class Tone(enum.Enum):
    LOUD = 1


@dataclass
class Leaf:
    x: int


@dataclass
class Tree:
    children: list[Tree]
    leaf: Leaf | None
    kind: ClassVar[Tone] = Tone.LOUD
    given: dataclasses.InitVar[int] = 0


class Inner(TypedDict):
    shade: NotRequired[Shade]


class Outer(TypedDict, total=False):
    inner: Inner
    tree: Annotated[list[Tree], "a reducer"]


class Node(msgspec.Struct):
    next: Node | None
    leaf: Leaf


T = TypeVar("T", bound=Leaf)
U = TypeVar("U", Shade, Tone)


@dataclass
class Crate(Generic[T]):
    content: T


@dataclass
class Broken:
    missing: Nowhere  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    leaf: Leaf


class Bare:
    """Not stored, so that its fields are not either."""

    leaf: Leaf


@dataclass
class Base:
    x: int


@dataclass
class Child(Base):
    y: int = 0


class Grandchild(Child): ...


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return type(other) is Money and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


class Coin(Money): ...


@dataclass
class Note(Money):
    cents: int


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_registered", {})


def known(*annotations: object) -> set[type]:
    registry = TypeRegistry.for_annotations(annotations)
    every = (Shade, Tone, Leaf, Tree, Node, Crate, Broken, Base)
    return {cls for cls in every if registry.find(cls.__name__) is not None}


Renamed = NewType("Renamed", Leaf)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, set[type]()),
        (None, set[type]()),
        ("Leaf", set[type]()),
        (ForwardRef("Leaf"), set[type]()),
        (Any, set[type]()),
        (Leaf, {Leaf}),
        (Optional[Leaf], {Leaf}),  # noqa: UP045
        (Union[Leaf, Shade], {Leaf, Shade}),  # noqa: UP007
        (Leaf | None, {Leaf}),
        (list[dict[Shade, tuple[Leaf, ...]]], {Leaf, Shade}),
        (set[frozenset[Shade]], {Shade}),
        (Literal[Shade.DARK, "x", 1], {Shade}),
        (Annotated[Leaf, Shade.DARK], {Leaf}),
        (Renamed, {Leaf}),
        (Tree, {Tree, Leaf, Tone}),
        (Outer, {Tree, Leaf, Tone, Shade}),
        (Node, {Node, Leaf}),
        (T, {Leaf}),
        (U, {Shade, Tone}),
        (Crate[Leaf], {Crate, Leaf}),
        (Crate, {Crate, Leaf}),
        (Callable[[Leaf], Shade], {Leaf, Shade}),
        (Broken, {Broken, Leaf}),
        (dataclasses.InitVar[Leaf], {Leaf}),
        (Bare, set[type]()),
    ],
)
def test_a_hint_makes_known_what_it_mentions(annotation: object, expected: set[type]) -> None:
    assert known(annotation) == expected


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is new in 3.12")
def test_a_type_statement_is_looked_into() -> None:  # pragma: no cover
    space: dict[str, Any] = {"Leaf": Leaf}
    exec("type Alias = list[Leaf]", space)
    assert known(space["Alias"]) == {Leaf}


def test_annotations_that_cannot_be_read_at_all_are_skipped() -> None:
    class Meta(type):
        @property
        def __annotations__(cls) -> dict[str, Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
            raise NameError("Nowhere")

    class Odd(Broken, metaclass=Meta): ...

    assert TypeRegistry.for_annotations([Odd]).find(Odd.__qualname__) is not None


def test_a_registry_takes_only_storable_types() -> None:
    with pytest.raises(TypeError, match="not a dataclass, model, struct or enum"):
        TypeRegistry([Money])


def test_two_types_with_one_name_are_refused() -> None:
    twin: Any = dataclass(
        type("Leaf", (), {"__annotations__": {"y": int}, "__module__": "elsewhere"})
    )
    with pytest.raises(InvalidRequest, match=r"two types are named 'Leaf': .*register_type\(Leaf"):
        TypeRegistry.for_annotations([Leaf, twin])


def test_types_with_different_names_are_distinguished() -> None:
    twin: Any = dataclass(
        type("Leaf", (), {"__annotations__": {"y": int}, "__module__": "elsewhere"})
    )
    register_type(twin, name="OtherLeaf")
    codec = ValueCodec(TypeRegistry.for_annotations([Leaf, twin]))
    back = codec.decode(codec.encode([Leaf(1), twin(2)]))
    assert back == [Leaf(1), twin(2)]


def test_a_registered_name_is_taken() -> None:
    register_type(Leaf, name="L")
    register_type(Leaf, name="L")
    with pytest.raises(InvalidRequest, match="two types are named 'L'"):
        register_type(Base, name="L")
    register_type(Leaf, name="Second")
    assert TypeRegistry().find("L") is None
    assert TypeRegistry().find("Second") is not None


def test_a_class_that_was_defined_again_takes_the_place_of_its_older_self() -> None:
    def define() -> Any:
        @dataclass
        class Cell:
            x: int

        return Cell

    older, newer = define(), define()
    register_type(older)
    register_type(newer)
    codec = ValueCodec(TypeRegistry())
    assert type(codec.decode(codec.encode(newer(1)))) is newer


@pytest.mark.parametrize(
    "arguments",
    [{}, {"to_plain": vars}, {"from_plain": Money}],
    ids=["no functions", "one way", "other way"],
)
def test_another_type_needs_both_functions(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Money needs both to_plain and from_plain"):
        register_type(Money, **arguments)


@pytest.mark.parametrize("cls", [int, list, tuple, bytes, type(None)])
def test_plain_types_cannot_be_registered(cls: type) -> None:
    with pytest.raises(TypeError, match="stored without being registered"):
        register_type(cls, to_plain=str, from_plain=cls)


def test_a_type_with_functions_comes_back() -> None:
    register_type(Money, to_plain=lambda money: (money.cents,), from_plain=lambda p: Money(p[0]))
    codec = ValueCodec(TypeRegistry())
    value = {"price": Money(5), "more": [Money(2**80)]}
    assert codec.decode(codec.encode(value)) == value


def test_a_registry_is_closed_once_it_is_made() -> None:
    codec = ValueCodec(TypeRegistry())
    register_type(Leaf)
    with pytest.raises(UnserializableState):
        codec.encode(Leaf(1))


def test_a_subclass_of_a_type_with_functions_is_refused() -> None:
    register_type(Money, to_plain=lambda money: money.cents, from_plain=Money)
    for value in (Coin(1), Note(1)):
        with pytest.raises(UnserializableState, match=type(value).__name__):
            ValueCodec(TypeRegistry()).encode(value)


def test_an_error_in_to_plain_is_the_cause_of_the_refusal() -> None:
    register_type(Money, to_plain=lambda money: money.nothing, from_plain=Money)
    with pytest.raises(UnserializableState, match="to_plain of Money raised") as caught:
        ValueCodec(TypeRegistry()).encode({"m": [Money(1)]})
    assert isinstance(caught.value.__cause__, AttributeError)
    assert caught.value.path == "$.m[0].to_plain()"


def test_what_to_plain_returns_must_be_storable() -> None:
    register_type(Money, to_plain=lambda money: [money.cents, open], from_plain=Money)
    with pytest.raises(UnserializableState) as caught:
        ValueCodec(TypeRegistry()).encode([Money(1)])
    assert caught.value.path == "$[0].to_plain()[1]"


def test_a_type_that_becomes_itself_is_refused() -> None:
    register_type(Money, to_plain=lambda money: money, from_plain=Money)
    with pytest.raises(UnserializableState, match="contains itself"):
        ValueCodec(TypeRegistry()).encode(Money(1))


def test_an_error_in_from_plain_is_the_cause_of_a_codec_error() -> None:
    def refuse(_: object) -> Money:
        raise LookupError("gone")

    register_type(Money, to_plain=lambda money: money.cents, from_plain=refuse)
    codec = ValueCodec(TypeRegistry())
    data = codec.encode({"a": [1, Money(1)]})
    with pytest.raises(
        CodecError, match=r"\$\[key 0\]\[1\].*from_plain of Money raised LookupError"
    ) as e:
        codec.decode(data)
    assert isinstance(e.value.__cause__, LookupError)


def test_a_subclass_of_a_declared_type_counts() -> None:
    codec = ValueCodec(TypeRegistry.for_annotations([Base]))
    for value in (Child(1, 2), Grandchild(3, 4)):
        data = codec.encode([value])
        back: Any = ValueCodec(TypeRegistry.for_annotations([Base])).decode(data)
        assert type(back[0]) is type(value)
        assert back == [value]


def test_the_base_of_a_declared_type_does_not_count() -> None:
    codec = ValueCodec(TypeRegistry.for_annotations([Child]))
    with pytest.raises(UnserializableState, match="Base"):
        codec.encode(Base(1))


def test_a_type_that_is_not_declared_is_not_read() -> None:
    data = ValueCodec(TypeRegistry.for_annotations([Leaf])).encode({"a": (Leaf(1),)})
    with pytest.raises(
        CodecError, match=r"\$\[key 0\]\[0\].*'Leaf' is neither declared.*register_type"
    ):
        ValueCodec(TypeRegistry()).decode(data)


def _subclass(module: str, name: str = "Twin") -> Any:
    space = {"__annotations__": {"z": int}, "__module__": module, "__qualname__": name}
    return dataclass(type(name, (Base,), space))


def test_subclasses_of_one_name_from_two_modules_are_refused() -> None:
    codec = ValueCodec(TypeRegistry.for_annotations([Base]))
    one = _subclass("one")
    data = codec.encode(one(1, 2))
    other = _subclass("two")
    fresh = ValueCodec(TypeRegistry.for_annotations([Base]))
    with pytest.raises(CodecError, match="several imported types are named 'Twin'"):
        fresh.decode(data)
    with pytest.raises(UnserializableState, match="several imported types"):
        fresh.encode(other(1, 2))


def test_a_subclass_whose_name_belongs_to_a_declared_type_is_refused() -> None:
    space = {"__annotations__": {"z": int}, "__module__": "one", "__qualname__": "Leaf"}
    imposter: Any = dataclass(type("Leaf", (Base,), space))
    codec = ValueCodec(TypeRegistry.for_annotations([Base, Leaf]))
    with pytest.raises(UnserializableState, match="another type is already named 'Leaf'"):
        codec.encode(imposter(1, 2))


def test_a_subclass_defined_again_is_read_as_the_newer_one() -> None:
    older = _subclass("cells", "Again")
    newer = _subclass("cells", "Again")
    codec = ValueCodec(TypeRegistry.for_annotations([Base]))
    assert type(codec.decode(codec.encode(newer(1, 2)))) in (older, newer)


def test_module_is_not_part_of_a_name() -> None:
    data = ValueCodec(TypeRegistry.for_annotations([Leaf])).encode(Leaf(4))
    script: Any = dataclass(
        type("Leaf", (), {"__annotations__": {"x": int}, "__module__": "__main__"})
    )
    back: Any = ValueCodec(TypeRegistry.for_annotations([script])).decode(data)
    assert type(back) is script
    assert back.x == 4


def test_unknown_module_is_not_an_obstacle() -> None:
    odd: Any = dataclass(type("Odd", (), {"__annotations__": {"x": "Nope"}}))
    odd.__module__ = "not.there"
    assert TypeRegistry.for_annotations([odd]).find("Odd") is not None
