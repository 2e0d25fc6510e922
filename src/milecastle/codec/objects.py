"""Objects of declared types: how each kind is converted to parts and back.

A shape belongs to one class. Conversion refuses whatever would be lost; reconstruction runs neither
``__init__`` nor validators nor ``__post_init__`` (except for msgspec structs, which cannot avoid
it). A field the class has now and the stored value has not gets its default, which may call a
default factory; without a default, and for a field the class no longer has, it is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from functools import partial
from types import MemberDescriptorType
from typing import Any, Final, TypeAlias

from msgspec import NODEFAULT, Struct

from milecastle.codec import codes
from milecastle.codec.plain import kind_of
from milecastle.codec.refusal import Refusal
from milecastle.errors import CodecError

Section: TypeAlias = "dict[str, Any] | None"

_IGNORED: Final = frozenset({"__orig_class__"})
_HEAP_TYPE: Final = 1 << 9


class RecordShape:
    code = codes.RECORD
    width = 1

    def __init__(self, cls: type, name: str) -> None:
        self.cls = cls
        self.name = name
        self.drops = False
        self._fields = self._field_names()
        self._expected = frozenset(self._fields)
        self._slots = _other_slots(cls, self._expected)
        self._computed = next((name for name in self._fields if _is_computed(cls, name)), None)

    def _field_names(self) -> tuple[str, ...]:
        from dataclasses import fields

        return tuple(field.name for field in fields(self.cls))

    def sections(self, value: Any) -> list[Section]:
        if self._computed is not None:
            raise Refusal(f"its field '{self._computed}' is a descriptor", self.cls)
        self._refuse_extras(value)
        return [self._values(value)]

    def build(self, sections: list[Section]) -> object:
        (values,) = sections
        values = self._completed(values)
        if self._computed is not None:
            raise CodecError(f"the field '{self._computed}' of {self.name} is a descriptor")
        cls: Any = self.cls
        made: Any = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(made, name, value)
        return made

    def _completed(self, values: Section) -> dict[str, Any]:
        if values is None:
            raise ValueError("no fields")
        if values.keys() == self._expected:
            return values
        gone = [] if self.drops else sorted(values.keys() - self._expected)
        defaults = self._defaults(values)
        new = sorted(self._expected - values.keys() - defaults.keys())
        if gone or new:
            parts = [f"the class has no field '{field}'" for field in gone]
            parts += [f"the stored value has no field '{field}'" for field in new]
            raise CodecError(f"the fields of {self.name} changed: {'; '.join(parts)}")
        kept = {name: value for name, value in values.items() if name in self._expected}
        made = {name: make() for name, make in defaults.items() if name not in kept}
        return {name: kept[name] if name in kept else made[name] for name in self._fields}

    def _defaults(self, values: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
        from dataclasses import MISSING, fields

        found: dict[str, Callable[[], Any]] = {}
        for field in fields(self.cls):
            if field.default_factory is not MISSING:
                found[field.name] = field.default_factory
            elif field.default is not MISSING:
                found[field.name] = partial(_same, field.default)
        return found

    def parts(self, value: Any) -> list[object]:
        return [getattr(value, name) for name in self._fields]

    def _values(self, value: Any) -> dict[str, Any]:
        try:
            return {name: getattr(value, name) for name in self._fields}
        except AttributeError:
            raise Refusal("one of its fields was never set", self.cls) from None

    def _refuse_extras(self, value: Any) -> None:
        attributes: dict[str, object] = getattr(value, "__dict__", {})
        if attributes.keys() <= self._expected and not self._slots:
            return
        slots = [name for name in self._slots if hasattr(value, name)]
        for name in [*attributes, *slots]:
            if name not in self._expected and not _is_derived(self.cls, name):
                raise Refusal(f"its attribute '{name}' is not a field and would be lost", self.cls)


class StructShape(RecordShape):
    def _field_names(self) -> tuple[str, ...]:
        cls: Any = self.cls
        return tuple[str, ...](cls.__struct_fields__)

    def build(self, sections: list[Section]) -> object:
        (values,) = sections
        given = self._completed(values)
        return self.cls(**{name: value for name, value in given.items() if value is not NODEFAULT})

    def _defaults(self, values: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
        cls: Any = self.cls
        defaults: tuple[Any, ...] = cls.__struct_defaults__
        having = zip(self._fields[len(self._fields) - len(defaults) :], defaults, strict=True)
        return {
            name: partial(_same, NODEFAULT) for name, default in having if default is not NODEFAULT
        }


class ModelShape(RecordShape):
    code = codes.MODEL
    width = 4

    def _field_names(self) -> tuple[str, ...]:
        cls: Any = self.cls
        self._is_root: bool = cls.__pydantic_root_model__
        self._has_extra: bool = cls.model_config.get("extra") == "allow"
        self._private = frozenset[str](cls.__private_attributes__)
        return tuple(cls.model_fields)

    def sections(self, value: Any) -> list[Section]:
        self._refuse_extras(value)
        private: Section = None if self._is_root else getattr(value, "__pydantic_private__", None)
        if private:
            undefined = sys.modules["pydantic_core"].PydanticUndefined
            private = {name: part for name, part in private.items() if part is not undefined}
        extra: Section = None if self._is_root else value.__pydantic_extra__
        was_set = dict.fromkeys(sorted(value.__pydantic_fields_set__))
        return [self._values(value), extra, private, was_set]

    def parts(self, value: Any) -> list[object]:
        return [part for section in self.sections(value) for part in (section or {}).values()]

    def _values(self, value: Any) -> dict[str, Any]:
        attributes = value.__dict__
        try:
            return {name: attributes[name] for name in self._fields}
        except KeyError:
            raise Refusal("one of its fields was never set", self.cls) from None

    def build(self, sections: list[Section]) -> object:
        values, extra, private, was_set = sections
        values = self._completed(values)
        extra = self._known(extra, None if self._has_extra else frozenset[str]())
        private = self._known(private, self._private)
        if was_set is None:
            raise ValueError("no fields set")
        was_set = {name: None for name in was_set if name in values or name in (extra or ())}
        cls: Any = self.cls
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", values)
        object.__setattr__(made, "__pydantic_fields_set__", set(was_set))
        if not self._is_root:
            object.__setattr__(
                made, "__pydantic_extra__", extra or ({} if self._has_extra else None)
            )
            object.__setattr__(made, "__pydantic_private__", private)
        return made

    def _known(self, values: Section, allowed: frozenset[str] | None) -> Section:
        others = sorted(values.keys() - allowed) if values and allowed is not None else ()
        if not values or not others:
            return values
        if not self.drops:
            raise CodecError(
                f"the fields of {self.name} changed: the class has no field '{', '.join(others)}'"
            )
        return {name: value for name, value in values.items() if name not in others}

    def _defaults(self, values: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
        cls: Any = self.cls
        found: dict[str, Callable[[], Any]] = {}
        for name, field in cls.model_fields.items():
            if not field.is_required():
                takes = getattr(field, "default_factory_takes_validated_data", False)
                given = {"validated_data": dict(values)} if takes else {}
                found[name] = partial(field.get_default, call_default_factory=True, **given)
        return found


class MemberShape:
    code = codes.MEMBER

    def __init__(self, cls: type[Enum], name: str) -> None:
        self.cls = cls
        self.name = name

    def take(self, value: Any) -> object:
        return value._value_ if isinstance(value, Flag) else value._name_

    def build(self, part: Any) -> object:
        try:
            is_flag = issubclass(self.cls, Flag)
            member = self._combination(part) if is_flag else self.cls._member_map_[part]
        except (KeyError, ValueError, TypeError):
            member = None
        if type(member) is not self.cls:
            raise CodecError(f"{self.name} has no such member now")
        return member

    def _combination(self, part: Any) -> object:
        known = self.cls._value2member_map_.get(part)
        if known is not None:
            return known
        # Straight to the library's own method: a user's _missing_ must not run while decoding.
        missing: Any = Flag.__dict__["_missing_"].__func__
        found = missing(self.cls, part)
        # Python 3.11.2 leaves out flags that it does not know.
        return found if getattr(found, "_value_", part) == part else None


class AdaptedShape:
    code = codes.ADAPTED

    def __init__(
        self,
        cls: type,
        name: str,
        to_plain: Callable[[Any], object],
        from_plain: Callable[[Any], Any],
    ) -> None:
        self.cls = cls
        self.name = name
        self._to_plain = to_plain
        self._from_plain = from_plain

    def take(self, value: Any) -> object:
        try:
            return self._to_plain(value)
        except Exception as error:
            reason = f"to_plain of {self.name} raised {type(error).__name__}"
            raise Refusal(reason, self.cls) from error

    def build(self, part: object) -> object:
        try:
            return self._from_plain(part)
        except Exception as error:
            reason = f"from_plain of {self.name} raised {type(error).__name__}"
            raise CodecError(reason) from error


Shape: TypeAlias = RecordShape | MemberShape | AdaptedShape


def is_storable(cls: type) -> bool:
    return _kind_of(cls) is not None


def shape_for(cls: type, name: str) -> Shape:
    kind = _kind_of(cls)
    if kind is None:
        raise TypeError(f"{cls.__qualname__} is not a dataclass, model, struct or enum")
    return kind(cls, name)


def _kind_of(cls: Any) -> Callable[[Any, str], Shape] | None:
    if issubclass(cls, Enum):
        return MemberShape
    if issubclass(cls, Struct):
        return StructShape
    if not all(base is object or base.__flags__ & _HEAP_TYPE for base in cls.__mro__):
        return None  # a built-in base (list, Exception, ...) has content besides the fields
    models: Any = sys.modules.get("pydantic.main")
    if models is not None and issubclass(cls, models.BaseModel):
        return ModelShape
    return RecordShape if hasattr(cls, "__dataclass_fields__") else None


def _other_slots(cls: Any, fields: frozenset[str]) -> tuple[str, ...]:
    names: list[str] = []
    for base in cls.__mro__:
        slots: str | Iterable[str] = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in names if name not in fields and not name.startswith("__"))


def _is_computed(cls: type, name: str) -> bool:
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    kind = kind_of(found)
    return hasattr(kind, "__set__") and kind is not MemberDescriptorType


def _is_derived(cls: type, name: str) -> bool:
    from functools import cached_property

    return name in _IGNORED or isinstance(getattr(cls, name, None), cached_property)


def _same(value: Any) -> Any:
    return value
