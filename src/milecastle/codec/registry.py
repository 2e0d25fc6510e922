"""The closed set of types a state may hold besides plain data.

A type is identified in stored bytes by its qualified name, without its module, so a script and
the same file imported agree; ``register_type(..., name=...)`` sets a different one. A lookup
searches the registered types, then their imported subclasses, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from enum import Enum
from typing import Any, Final, cast, is_typeddict

from milecastle.codec.files import FILE_TYPE, parts_of_file
from milecastle.codec.langchain import message_named, message_shape
from milecastle.codec.objects import AdaptedShape, RecordShape, Shape, is_storable, shape_for
from milecastle.codec.refusal import type_name
from milecastle.codec.scalars import WRITERS
from milecastle.errors import InvalidRequest
from milecastle.model.file import File
from milecastle.model.removal import Remove
from milecastle.support.annotations import classes_in, hints_of


def storable_types(annotations: Iterable[object]) -> list[type]:
    """Dataclasses, pydantic models, structs and enums in ``annotations``, in order of finding.

    Forward references that cannot be resolved are skipped: a value of such a type is refused
    when it is written, with a hint to register it.
    """
    return [cls for cls in classes_in(annotations, _hints_inside) if is_storable(cls)]


def _hints_inside(cls: Any) -> list[object]:
    if issubclass(cls, Enum) or not (is_storable(cls) or is_typeddict(cls)):
        return []
    hints: list[object] = []
    fields = getattr(cls, "model_fields", None)
    if isinstance(fields, dict):
        hints += [field.annotation for field in cast("dict[str, Any]", fields).values()]
    return [*hints, *hints_of(cls).values()]


_NATIVE: Final = frozenset({*WRITERS, list, dict, tuple, set, frozenset})
_registered: Final[dict[str, Shape]] = {
    "milecastle.Remove": shape_for(Remove, "milecastle.Remove"),
    FILE_TYPE: AdaptedShape(File, FILE_TYPE, parts_of_file, lambda parts: File(*parts)),
}


def register_type(
    cls: type,
    *,
    name: str | None = None,
    to_plain: Callable[[Any], object] | None = None,
    from_plain: Callable[[Any], Any] | None = None,
) -> None:
    """Allow values of ``cls`` in every state, for codecs created from now on.

    Dataclasses, pydantic models, msgspec structs and enums need no functions. For any other
    type ``to_plain`` returns something that can be stored and ``from_plain`` restores the value.
    ``name`` identifies the type in stored bytes; by default it is the qualified name.

    Raises:
        TypeError: functions are missing, or ``cls`` is plain data already.
        InvalidRequest: another type has that name.
    """
    name = name or cls.__qualname__
    if cls in _NATIVE:
        raise TypeError(f"{cls.__qualname__} can be stored without being registered")
    if to_plain is not None and from_plain is not None:
        shape: Shape = AdaptedShape(cls, name, to_plain, from_plain)
    elif to_plain is None and from_plain is None and is_storable(cls):
        shape = shape_for(cls, name)
    else:
        raise TypeError(
            f"{cls.__qualname__} needs both to_plain and from_plain: only dataclasses, pydantic "
            "models, msgspec structs and enums can be stored without them"
        )
    known = _registered.get(name)
    if known is not None and not _same_definition(known.cls, cls):
        raise _taken(name, known.cls, cls)
    for other in [key for key, value in _registered.items() if value.cls is cls]:
        del _registered[other]
    _registered[name] = shape


class TypeRegistry:
    """A closed set of types, fixed on creation. Without ``files`` a ``File`` is only read.

    ``former`` are older definitions, for reading: each replaces the type of the same name.
    ``drops`` reads objects without the fields their classes no longer have.
    """

    def __init__(
        self,
        types: Iterable[type] = (),
        *,
        files: bool = False,
        former: Iterable[type] = (),
        drops: bool = False,
    ) -> None:
        self._drops = drops
        self.has_files = files
        self._by_name: dict[str, Shape] = dict(_registered)
        self._by_type: dict[type, Shape] = {s.cls: s for s in self._by_name.values()}
        self._subclasses: dict[str, Shape] = {}
        replaced: set[str] = set()
        for cls in former:
            if cls not in self._by_type:
                replaced.add(cls.__qualname__)
                self._by_name.pop(cls.__qualname__, None)
                self._add(shape_for(cls, cls.__qualname__))
        for cls in types:
            if cls not in self._by_type and cls.__qualname__ not in replaced:
                self._add(shape_for(cls, cls.__qualname__))
                self._by_type[cls] = message_shape(cls) or self._by_type[cls]

    @classmethod
    def for_annotations(
        cls,
        annotations: Iterable[object],
        *,
        files: bool = False,
        former: Iterable[type] = (),
        drops: bool = False,
    ) -> TypeRegistry:
        """The types these type hints mention, and those users registered.

        Raises:
            InvalidRequest: two types have one name.
        """
        types = storable_types(annotations)
        return cls(types, files=files, former=storable_types(former), drops=drops)

    def _add(self, shape: Shape) -> None:
        known = self._by_name.get(shape.name)
        if known is not None:
            raise _taken(shape.name, known.cls, shape.cls)
        self._by_name[shape.name] = shape
        self._by_type[shape.cls] = shape

    def shape_of(self, cls: type) -> Shape | None:
        """The shape for a registered type or its storable subclass, else None.

        Raises:
            LookupError: the name of the subclass would not identify it.
        """
        shape = self._by_type.get(cls) or message_shape(cls)
        if shape is not None or not self._is_below(cls):
            return shape
        name = cls.__qualname__
        found = self._by_name.get(name) or self._search(name)
        if found is None or not _same_definition(found.cls, cls):
            raise LookupError(
                f"another type is already named '{name}': give this one a different name with "
                f"milecastle.register_type({cls.__name__}, name=...)"
            )
        self._subclasses[name] = found
        return found

    def find(self, name: str) -> Shape | None:
        found = self._by_name.get(name) or self._subclasses.get(name)
        if found is None:
            found = message_named(name) or self._search(name)
            if found is not None:
                self._subclasses[name] = found
        if self._drops and isinstance(found, RecordShape):
            found = copy(found)
            found.drops = True
        return found

    def _is_below(self, cls: type) -> bool:
        if not is_storable(cls):
            return False
        above = (self._by_type.get(base) for base in cls.__mro__[1:])
        return any(shape is not None and _passes_on(shape) for shape in above)

    def _search(self, name: str) -> Shape | None:
        roots = [shape.cls for shape in self._by_type.values() if _passes_on(shape)]
        named = [cls for cls in _below(roots) if cls.__qualname__ == name and is_storable(cls)]
        if not named:
            return None
        # A class that was defined again (a notebook cell run twice) replaces its older definition.
        newest = named[-1]
        if not all(_same_definition(cls, newest) for cls in named):
            raise LookupError(f"several imported types are named '{name}'")
        return shape_for(newest, name)


def _passes_on(shape: Shape) -> bool:
    return not isinstance(shape, AdaptedShape)


def _below(roots: Iterable[type]) -> Iterator[type]:
    seen: set[type] = set()
    waiting = list(roots)
    while waiting:
        children: list[type] = type.__subclasses__(waiting.pop())
        for cls in children:
            if cls not in seen:
                seen.add(cls)
                waiting.append(cls)
                yield cls


def _same_definition(one: type, other: type) -> bool:
    return one is other or (
        one.__module__ == other.__module__ and one.__qualname__ == other.__qualname__
    )


def _taken(name: str, one: type, other: type) -> InvalidRequest:
    return InvalidRequest(
        f"two types are named '{name}': {type_name(one)} and {type_name(other)}; give one of them "
        f"a different name with milecastle.register_type({other.__name__}, name=...)"
    )
