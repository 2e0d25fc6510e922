"""Pydantic models: fields, extra fields, private attributes, and no validator runs."""

from __future__ import annotations

import subprocess
import sys
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
import pytest

pytest.importorskip("pydantic")

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from milecastle.codec import codes
from milecastle.errors import CodecError, UnserializableState
from tests.unit.codec.domain import make_codec

T = TypeVar("T")


class Message(BaseModel):
    role: str
    content: object = None
    count: int = Field(default=3, alias="howMany")


class Reply(Message):
    score: float = 0.0


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Secretive(BaseModel):
    x: int
    _seen: list[int] = PrivateAttr(default_factory=list[int])
    _later: int = PrivateAttr()

    @cached_property
    def double(self) -> int:
        return self.x * 2


class Loud(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: int

    @field_validator("x")
    @classmethod
    def even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value

    def model_post_init(self, context: Any) -> None:
        if self.x == 13:
            raise AssertionError("decoding must not come here")


class Tags(RootModel[list[str]]): ...


class Holder(BaseModel, Generic[T]):
    content: T
    tags: Tags


@pydantic_dataclass
class Checked:
    x: int


CODEC = make_codec(Message, Open, Secretive, Loud, Holder[Message], Checked)


def there_and_back(value: Any) -> Any:
    return CODEC.decode(CODEC.encode(value))


@pytest.mark.parametrize(
    "value",
    [
        Message(role="user"),
        Message(role="user", content=(1, {2})),
        Message.model_validate({"role": "user", "howMany": 9}),
        Reply(role="ai", score=0.5),
        Open.model_validate({"x": 1, "y": (2,), "z": None}),
        Open(x=1),
        Tags(["a"]),
        Holder[Message](content=Message(role="a"), tags=Tags(["x"])),
        Checked(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_comes_back_the_same(value: Any) -> None:
    back = there_and_back({"m": [value]})["m"][0]
    assert type(back) is type(value)
    assert back == value
    if isinstance(value, BaseModel):
        assert back.model_fields_set == value.model_fields_set
        assert back.model_extra == value.model_extra
        assert back.model_dump() == value.model_dump()


def test_many_models_come_back_the_same() -> None:
    value = [Open.model_validate({"x": number, "y": [number]}) for number in range(50)]
    assert there_and_back(value) == value


@pytest.mark.parametrize(
    "sections", [[{"x": 1}, None, None, None], [{"x": 1}, {1: 2}, None, {"x": None}]]
)
def test_a_model_that_no_writer_wrote_is_refused(sections: list[Any]) -> None:
    """Fails if a model has no set of fields, or an extra field whose name is a number."""
    body = msgspec.msgpack.encode(["Open", *sections])
    with pytest.raises(CodecError):
        CODEC.decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(codes.MODEL, body)))


def test_private_attributes_are_kept_and_unset_ones_stay_unset() -> None:
    value: Any = Secretive(x=1)
    value._seen.append(4)
    assert value.double == 2
    back = there_and_back(value)
    assert back._seen == [4]
    assert "double" not in vars(back)
    with pytest.raises(AttributeError):
        _ = back._later
    value._later = 5
    assert there_and_back(value)._later == 5


def test_no_validator_runs() -> None:
    """Seen to fail below pydantic 2.13: a model made without validation has no private part."""
    value = Loud.model_construct(x=2)
    object.__getattribute__(value, "__dict__")["x"] = 13
    assert there_and_back(value).x == 13


def test_a_required_field_that_was_never_set_is_refused() -> None:
    with pytest.raises(UnserializableState, match="never set"):
        CODEC.encode(Open.model_construct())


def test_the_path_leads_into_models() -> None:
    value = Open.model_validate({"x": 1, "lock": [object()]})
    with pytest.raises(UnserializableState) as caught:
        CODEC.encode({"m": value})
    assert caught.value.path == "$.m.lock[0]"
    secret: Any = Secretive(x=1)
    secret._later = object()
    with pytest.raises(UnserializableState) as caught:
        CODEC.encode(secret)
    assert caught.value.path == "$._later"


def test_a_model_that_is_not_declared_is_refused() -> None:
    with pytest.raises(UnserializableState, match=r"register_type\(Message\)"):
        make_codec(int).encode(Message(role="x"))


def _variant(**space: Any) -> Any:
    return type("Open", (BaseModel,), {"__module__": __name__, **space})


def test_a_model_that_changed_is_an_error() -> None:
    data = CODEC.encode([Open.model_validate({"x": 1, "y": 2})])
    closed = _variant(__annotations__={"x": int})
    with pytest.raises(CodecError, match=r"\$\[0\] .*the class has no field 'y'"):
        make_codec(closed).decode(data)
    other = _variant(__annotations__={"z": int}, model_config=ConfigDict(extra="allow"))
    with pytest.raises(CodecError, match="the stored value has no field 'z'"):
        make_codec(other).decode(data)


def test_a_private_attribute_that_is_gone_is_an_error() -> None:
    then = _variant(__annotations__={"x": int, "_p": int}, _p=PrivateAttr(default=1))
    data = make_codec(then).encode(then(x=1))
    with pytest.raises(CodecError, match="no field '_p'"):
        make_codec(_variant(__annotations__={"x": int})).decode(data)


def test_models_of_a_closed_class_read_by_an_open_one_have_no_extra_fields() -> None:
    closed = _variant(__annotations__={"x": int})
    data = make_codec(closed).encode(closed(x=1))
    back: Any = make_codec(Open).decode(data)
    assert back.model_extra == {}


def test_the_codec_does_not_import_pydantic_or_numpy() -> None:
    script = (
        "import sys; from milecastle.codec.values import ValueCodec\n"
        "from milecastle.codec.registry import TypeRegistry\n"
        "c = ValueCodec(TypeRegistry.for_annotations([list[int]]))\n"
        "c.decode(c.encode({'a': (1, {2})}))\n"
        "try: c.encode(object())\n"
        "except Exception: pass\n"
        "assert not {'pydantic', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
