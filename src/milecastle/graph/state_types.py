"""Reading a state's classes: fields, reducers, type names, the types inside.

A state is a TypedDict, a dataclass or a pydantic model. pydantic is never imported here: if the
state is one of its models, its author has done so. Type names are the same in every process.
An annotation is the user's code: one that cannot be resolved is left as it is written.

Reading a thread must not run code of the user's: a state is then put together field by field. A
node, or a run's caller, gets a constructed one.
"""

from __future__ import annotations

import operator
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, Flag
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import msgspec

from milecastle.graph.functions import is_async, name_of
from milecastle.graph.messages import Upsert
from milecastle.model.manifest import ChannelInfo, TypeInfo, TypeKind
from milecastle.model.reducers import (
    LAST,
    FormerNames,
    Inbox,
    Initial,
    Reducer,
    builtin_reducer,
    reducer_of,
)
from milecastle.support.annotations import classes_in, hints_of, own_annotations

_WIDENED: dict[type, tuple[type, ...]] = {float: (float, int), complex: (complex, float, int)}


def is_typed_dict(annotation: object) -> bool:
    return isinstance(annotation, type) and hasattr(annotation, "__required_keys__")


def is_union(origin: object) -> bool:
    return origin is Union or origin is types.UnionType


def unfolded(annotation: Any) -> Any:
    while type(annotation).__name__ == "TypeAliasType":
        annotation = annotation.__value__
    return annotation


def type_name(annotation: object) -> str:
    """A name equal in every process, on every Python version and in every spelling.

    Modules are left out: a script and the same file imported must agree.
    """
    return _name(annotation, ())


def _name(annotation: Any, aliases: tuple[object, ...]) -> str:
    if type(annotation).__name__ == "TypeAliasType" and annotation not in aliases:
        return _name(annotation.__value__, (*aliases, annotation))
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is ...:
        return "..."
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, list):
        return _listed(cast("list[object]", annotation), aliases)
    origin = get_origin(annotation)
    if origin is not None:
        return _generic_name(origin, annotation, aliases)
    name = getattr(annotation, "__qualname__", None) or getattr(annotation, "__name__", None)
    return str(name or getattr(annotation, "__forward_arg__", type(annotation).__qualname__))


def _generic_name(origin: object, annotation: object, aliases: tuple[object, ...]) -> str:
    arguments = get_args(annotation)
    if origin is typing.Annotated:
        return _name(arguments[0], aliases)
    if is_union(origin):
        members = {_name(member, aliases) for member in arguments}
        return " | ".join(sorted(members, key=lambda name: (name == "None", name)))
    if origin is Literal:
        return f"Literal[{', '.join(sorted({_literal_name(value) for value in arguments}))}]"
    name = _name(origin, aliases)
    return f"{name}{_listed(arguments, aliases)}" if arguments else name


def _listed(arguments: typing.Iterable[object], aliases: tuple[object, ...]) -> str:
    return f"[{', '.join(_name(argument, aliases) for argument in arguments)}]"


def _literal_name(value: object) -> str:
    # ascii: which characters repr escapes is not the same on every Python version.
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    return ascii(value)


def fitting_classes(annotation: Any) -> tuple[type, ...] | None:
    """The classes whose instances fit, looking no deeper than the outermost type.

    ``None`` means anything matches, or that it is unknown.
    """
    annotation = unfolded(annotation)
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return fitting_classes(get_args(annotation)[0])
    if is_union(origin):
        return _fitting_any(get_args(annotation))
    if origin is Literal:
        values: tuple[object, ...] = get_args(annotation)
        return tuple({type(value): None for value in values})
    if annotation is None:
        return (type(None),)
    supertype = getattr(annotation, "__supertype__", None)
    if supertype is not None:
        return fitting_classes(supertype)
    return _fitting_class(annotation if origin is None else origin)


def _fitting_any(members: tuple[object, ...]) -> tuple[type, ...] | None:
    found: dict[type, None] = {}
    for member in members:
        classes = fitting_classes(member)
        if classes is None:
            return None
        found.update(dict.fromkeys(classes))
    return tuple(found)


def _fitting_class(cls: Any) -> tuple[type, ...] | None:
    if not isinstance(cls, type) or cls is object:
        return None
    if is_typed_dict(cls):
        return (dict, Mapping)
    if getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False):
        return None
    if cls.__module__ == "typing":
        return None  # Any, IO and their like: real values are not instances of them
    return _WIDENED.get(cls, (cls,))


Form = Literal["typed-dict", "dataclass", "pydantic"]

_QUALIFIERS = {"Required", "NotRequired", "ReadOnly", "Final"}


class UnreadableState(Exception):
    """This class cannot be a state; the message explains why. Never leaves ``compile()``."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A declared field, its annotation without reducer and qualifiers."""

    name: str
    annotation: Any
    reducer: Reducer = LAST
    required: bool = True
    default: Callable[[], Any] | None = None
    former: tuple[str, ...] = ()
    inbox: str | None = None


def read_fields(state_type: Any, local_names: Mapping[str, Any]) -> tuple[Form, list[Field]]:
    """A state class's form and fields; ``UnreadableState`` explains a refusal."""
    form = _form_of(state_type)
    readers = {"typed-dict": _typed_dict, "dataclass": _dataclass, "pydantic": _pydantic}
    try:
        fields = list(readers[form](state_type, local_names))
    except UnreadableState:
        raise
    except NameError as error:
        raise UnreadableState(
            f"an annotation of {state_type.__name__} names '{error.name}', which is not defined "
            "where the state class is"
        ) from None
    except Exception as error:  # annotations are code, and may raise anything
        raise UnreadableState(
            f"the annotations of {state_type.__name__} cannot be read: {error}"
        ) from None
    if not fields:
        raise UnreadableState(f"{state_type.__name__} declares no fields")
    return form, fields


def _form_of(state_type: Any) -> Form:
    if is_typed_dict(state_type):
        return "typed-dict"
    if isinstance(state_type, type):
        if hasattr(state_type, "__dataclass_fields__"):
            return "dataclass"
        if hasattr(state_type, "model_construct") and hasattr(state_type, "model_fields"):
            return "pydantic"
    name = getattr(state_type, "__name__", type(state_type).__name__)
    raise UnreadableState(f"{name} is not a TypedDict, a dataclass or a pydantic model")


def _typed_dict(state_type: Any, local_names: Mapping[str, Any]) -> Iterator[Field]:
    for name, hint in _hints(state_type, local_names).items():
        annotation, reducer, marked = _unwrap(name, hint)
        starts = [extra.factory for extra in peeled(hint)[1] if isinstance(extra, Initial)]
        yield Field(
            name=name,
            annotation=annotation,
            reducer=reducer,
            required=name in state_type.__required_keys__ if marked is None else marked,
            default=starts[0] if starts else None,
            former=_former(hint),
            inbox=_inbox(hint),
        )


def _dataclass(state_type: Any, local_names: Mapping[str, Any]) -> Iterator[Field]:
    import dataclasses

    hints = _hints(state_type, local_names)
    fields = dataclasses.fields(state_type)
    _check_constructor(state_type, [field.name for field in fields])
    for field in fields:
        annotation, reducer, _ = _unwrap(field.name, hints[field.name], has_defaults=True)
        default: Callable[[], Any] | None = None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        elif field.default is not dataclasses.MISSING:
            default = _always(field.default)
        former = _former(hints[field.name])
        yield Field(
            name=field.name, annotation=annotation, reducer=reducer, default=default, former=former
        )


def _check_constructor(state_type: Any, names: list[str]) -> None:
    import inspect

    try:
        inspect.signature(state_type).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise UnreadableState(
            f"{state_type.__name__} cannot be constructed from its fields alone: {error}"
        ) from None


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


def _pydantic(state_type: Any, local_names: Mapping[str, Any]) -> Iterator[Field]:
    if not state_type.__pydantic_complete__:
        state_type.model_rebuild(_types_namespace=dict(local_names))
    annotated: Any = Annotated
    for name, field in state_type.model_fields.items():
        hint = field.annotation
        if field.metadata:
            hint = operator.getitem(annotated, (hint, *field.metadata))
        annotation, reducer, _ = _unwrap(name, hint, has_defaults=True)
        default = None if field.is_required() else _pydantic_default(name, field)
        yield Field(
            name=name,
            annotation=annotation,
            reducer=reducer,
            default=default,
            former=_former(hint),
            inbox=_inbox(hint),
        )


def _former(hint: Any) -> tuple[str, ...]:
    extras = peeled(hint)[1]
    return tuple(name for one in extras if isinstance(one, FormerNames) for name in one.names)


def _inbox(hint: Any) -> str | None:
    return next((one.topic for one in peeled(hint)[1] if isinstance(one, Inbox)), None)


def _pydantic_default(name: str, field: Any) -> Callable[[], Any]:
    if getattr(field, "default_factory_takes_validated_data", False):
        raise UnreadableState(f"the default of '{name}' depends on other fields")
    return lambda: field.get_default(call_default_factory=True)


def _hints(state_type: Any, local_names: Mapping[str, Any]) -> dict[str, Any]:
    # Without names of our own, typing looks where Python itself would.
    return typing.get_type_hints(state_type, localns=dict(local_names) or None, include_extras=True)


def peeled(hint: Any) -> tuple[Any, list[Any], bool | None]:
    """The bare annotation, its extras, and True if marked required (``None``: unmarked)."""
    extras: list[Any] = []
    required: bool | None = None
    hint = unfolded(hint)
    while (origin := get_origin(hint)) is Annotated or _qualifier(origin):
        if origin is Annotated:
            extras += hint.__metadata__
        elif _qualifier(origin) in ("Required", "NotRequired"):
            required = _qualifier(origin) == "Required"
        hint = unfolded(get_args(hint)[0])
    return hint, extras, required


def _unwrap(
    name: str, hint: Any, *, has_defaults: bool = False
) -> tuple[Any, Reducer, bool | None]:
    hint, extras, required = peeled(hint)
    if has_defaults and any(isinstance(extra, Initial) for extra in extras):
        raise UnreadableState(f"'{name}' has initial(...), which is for TypedDicts: use a default")
    reducers = list(_reducers_in(name, extras))
    if len(reducers) > 1:
        raise UnreadableState(f"'{name}' is annotated with more than one reducer")
    _refuse_inner_reducers(name, hint)
    return hint, reducers[0] if reducers else LAST, required


def _qualifier(origin: Any) -> str | None:
    name = getattr(origin, "__name__", None) or getattr(origin, "_name", None)
    return name if name in _QUALIFIERS and not isinstance(origin, type) else None


def _reducers_in(name: str, extras: Iterable[Any]) -> Iterator[Reducer]:
    import inspect

    for extra in extras:
        if not callable(extra) or isinstance(extra, type):
            continue
        if not _takes_two(extra):
            if not inspect.isroutine(extra):
                continue  # a validator, a constraint or other words for somebody else
            raise UnreadableState(
                f"the reducer '{name_of(extra)}' of '{name}' must take two values: "
                "the old one and the update"
            )
        if is_async(extra):
            raise UnreadableState(f"the reducer '{name_of(extra)}' of '{name}' must not be async")
        yield extra.reducer if isinstance(extra, Upsert) else reducer_of(extra)


def _takes_two(function: Callable[..., Any]) -> bool:
    import inspect

    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        return True  # a builtin such as max does not tell
    return True


def _refuse_inner_reducers(name: str, hint: Any) -> None:
    for part in get_args(hint):
        if get_origin(part) is Annotated and any(map(_is_builtin, part.__metadata__)):
            raise UnreadableState(
                f"the reducer of '{name}' must be outermost: Annotated[..., reducer]"
            )
        _refuse_inner_reducers(name, part)


def _is_builtin(extra: object) -> bool:
    return isinstance(extra, Upsert) or builtin_reducer(extra) is not None


def construct(state_type: Any, form: Form, values: Mapping[str, Any]) -> Any:
    """Construct the state; its constructor may raise anything."""
    if form == "pydantic":
        return state_type.model_construct(**values)
    return state_type(**values)


def put_together(state_type: Any, form: Form, values: Mapping[str, Any]) -> Any:
    made: Any = object.__new__(state_type)
    if form == "pydantic":
        private = {
            name: attribute.default
            for name, attribute in state_type.__private_attributes__.items()
            if type(attribute.default).__name__ != "PydanticUndefinedType"
        }
        object.__setattr__(made, "__dict__", dict(values))
        object.__setattr__(made, "__pydantic_fields_set__", set(values))
        object.__setattr__(made, "__pydantic_extra__", None)
        object.__setattr__(made, "__pydantic_private__", private or None)
        return made
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def runs_code(state_type: Any, form: Form) -> bool:
    """True if constructing a state runs user code, which may refuse the values."""
    if form == "typed-dict":
        return False
    if form == "pydantic":
        return state_type.__pydantic_post_init__ is not None
    return hasattr(state_type, "__post_init__") or any(
        name in vars(base) and not _is_generated(base, name)
        for base in state_type.__mro__
        if base is not object
        for name in ("__init__", "__new__", "__setattr__")
    )


def _is_generated(base: type, name: str) -> bool:
    function: Any = vars(base)[name]
    code = getattr(function, "__code__", None)
    return "__dataclass_fields__" in vars(base) and getattr(code, "co_filename", "") == "<string>"


def describe_types(annotations: Iterable[object]) -> tuple[TypeInfo, ...]:
    fields: dict[type, list[_Field]] = {}

    def inside(cls: type) -> list[object]:
        fields[cls] = list(_fields_of(cls))
        return [annotation for _, annotation, _ in fields[cls]]

    named = {type_name(cls): cls for cls in classes_in(annotations, inside) if fields[cls]}
    return tuple(
        TypeInfo(name, tuple(_described(field) for field in fields[cls]), _kind_of(cls))
        for name, cls in sorted(named.items())
    )


def _kind_of(cls: Any) -> TypeKind:
    if is_typed_dict(cls):
        return "dict"
    if issubclass(cls, Enum):
        return "enum"
    is_model = not hasattr(cls, "__dataclass_fields__") and hasattr(cls, "model_fields")
    return "model" if is_model else "record"


_Field = tuple[str, Any, bool]
"""The name of a field, its annotation, and whether a value may lack it."""


def _described(field: _Field) -> ChannelInfo:
    name, annotation, optional = field
    return ChannelInfo(name, type_name(annotation), optional=optional)


def _fields_of(cls: Any) -> Iterator[_Field]:
    """A class's declared fields: TypedDict, dataclass, pydantic model or struct; else none.

    For an enum its members; not for one of Python's own, which has others in another version.
    """
    if is_typed_dict(cls):
        for name, hint in {**own_annotations(cls), **hints_of(cls)}.items():
            annotation, _, marked = peeled(hint)
            required = name in cls.__required_keys__ if marked is None else marked
            yield name, annotation, not required
    elif issubclass(cls, Enum):
        if cls.__module__.partition(".")[0] not in sys.stdlib_module_names:
            for name, member in cls.__members__.items():
                yield name, str(member.value) if isinstance(member, Flag) else "member", True
    elif hasattr(cls, "__dataclass_fields__"):
        yield from _dataclass_fields(cls)
    elif isinstance(getattr(cls, "model_fields", None), dict):
        for name, field in cls.model_fields.items():
            yield name, peeled(field.annotation)[0], not field.is_required()
    elif issubclass(cls, msgspec.Struct):
        hints = {**own_annotations(cls), **hints_of(cls)}
        names = cls.__struct_fields__
        without = (msgspec.NODEFAULT,) * (len(names) - len(cls.__struct_defaults__))
        for name, default in zip(names, (*without, *cls.__struct_defaults__), strict=True):
            yield name, peeled(hints.get(name, Any))[0], default is not msgspec.NODEFAULT


def _dataclass_fields(cls: Any) -> Iterator[_Field]:
    import dataclasses

    hints = hints_of(cls)
    for field in dataclasses.fields(cls):
        defaults = (field.default, field.default_factory)
        has_default = any(default is not dataclasses.MISSING for default in defaults)
        yield field.name, peeled(hints.get(field.name, field.type))[0], has_default
