"""Reading the fields of a state: of a TypedDict, a dataclass or a pydantic model.

pydantic is never imported here: if the state is a pydantic model, its author has done so.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from milecastle.graph.nodes import is_async, name_of
from milecastle.graph.reducers import LAST, Reducer, builtin_reducer, reducer_of
from milecastle.graph.types import is_typed_dict, unfolded

__all__ = ["Field", "Form", "UnreadableState", "read_fields"]

Form = Literal["typed-dict", "dataclass", "pydantic"]

_QUALIFIERS = {"Required", "NotRequired", "ReadOnly", "Final"}


class UnreadableState(Exception):
    """This class cannot serve as a state; the message says why. Never leaves ``compile()``."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field as its class declares it, its annotation bare of reducer and qualifiers."""

    name: str
    annotation: Any
    reducer: Reducer = LAST
    required: bool = True
    default: Callable[[], Any] | None = None


def read_fields(state_type: Any, local_names: Mapping[str, Any]) -> tuple[Form, list[Field]]:
    """The form of a state class and its fields; ``UnreadableState`` says why it has none."""
    form = _form_of(state_type)
    readers = {"typed-dict": _typed_dict, "dataclass": _dataclass, "pydantic": _pydantic}
    try:
        fields = list(readers[form](state_type, local_names))
    except UnreadableState:
        raise
    except NameError as error:
        raise UnreadableState(
            f"an annotation of {state_type.__name__} names '{error.name}', which is not defined "
            "where the state is written"
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
        required = name in state_type.__required_keys__ if marked is None else marked
        yield Field(name=name, annotation=annotation, reducer=reducer, required=required)


def _dataclass(state_type: Any, local_names: Mapping[str, Any]) -> Iterator[Field]:
    import dataclasses

    hints = _hints(state_type, local_names)
    fields = dataclasses.fields(state_type)
    _check_constructor(state_type, [field.name for field in fields])
    for field in fields:
        annotation, reducer, _ = _unwrap(field.name, hints[field.name])
        default: Callable[[], Any] | None = None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory
        elif field.default is not dataclasses.MISSING:
            default = _always(field.default)
        yield Field(name=field.name, annotation=annotation, reducer=reducer, default=default)


def _check_constructor(state_type: Any, names: list[str]) -> None:
    """A state is made from its channels, all of them and nothing else."""
    import inspect

    try:
        inspect.signature(state_type).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise UnreadableState(
            f"{state_type.__name__} cannot be made from its fields alone: {error}"
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
        annotation, reducer, _ = _unwrap(name, hint)
        default = None if field.is_required() else _pydantic_default(name, field)
        yield Field(name=name, annotation=annotation, reducer=reducer, default=default)


def _pydantic_default(name: str, field: Any) -> Callable[[], Any]:
    if getattr(field, "default_factory_takes_validated_data", False):
        raise UnreadableState(f"the default of '{name}' depends on other fields")
    return lambda: field.get_default(call_default_factory=True)


def _hints(state_type: Any, local_names: Mapping[str, Any]) -> dict[str, Any]:
    # Without names of our own, typing looks where Python itself would.
    return typing.get_type_hints(state_type, localns=dict(local_names) or None, include_extras=True)


def _unwrap(name: str, hint: Any) -> tuple[Any, Reducer, bool | None]:
    """The bare annotation, its reducer, and whether it was marked required (``None``: unmarked)."""
    reducers: list[Reducer] = []
    required: bool | None = None
    hint = unfolded(hint)
    while (origin := get_origin(hint)) is Annotated or _qualifier(origin):
        if origin is Annotated:
            reducers += _reducers_in(name, hint.__metadata__)
        elif _qualifier(origin) in ("Required", "NotRequired"):
            required = _qualifier(origin) == "Required"
        hint = unfolded(get_args(hint)[0])
    if len(reducers) > 1:
        raise UnreadableState(f"'{name}' is annotated with more than one reducer")
    _refuse_inner_reducers(name, hint)
    return hint, reducers[0] if reducers else LAST, required


def _qualifier(origin: Any) -> str | None:
    name = getattr(origin, "__name__", None) or getattr(origin, "_name", None)
    return name if name in _QUALIFIERS and not isinstance(origin, type) else None


def _reducers_in(name: str, extras: Iterable[Any]) -> Iterator[Reducer]:
    """The reducers among the extras of an annotation; most extras mean nothing to us."""
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
        yield reducer_of(extra)


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
    """A reducer further in, as in ``Annotated[list[str], append] | None``, would do nothing."""
    for part in get_args(hint):
        if get_origin(part) is Annotated and any(map(builtin_reducer, part.__metadata__)):
            raise UnreadableState(
                f"the reducer of '{name}' must stand outermost: Annotated[..., reducer]"
            )
        _refuse_inner_reducers(name, part)
