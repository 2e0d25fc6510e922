"""Hiding values before they leave the process.

Rules:

- Every document passes through here when it becomes an answer or an event, and so does every error
  whose message a page or an answer shows.
- A field with the declared type ``Any`` has a value: a state, a question, an emitted value, a
  difference's side. So a new one cannot be forgotten. ``_TEXTS`` are texts that may contain values.
- A document's values are JSON. The hook gets JSON and returns JSON, with the value's place:
  ``$.channel`` for a part of a state, a difference's path, which begins like that, or else the
  field's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec
import msgspec.structs

from milecastle.errors import InvalidAnswer, MilecastleError, RecoveryError, ResumeRefused, RunError
from milecastle.views.documents import (
    AnswerLine,
    ChangeLine,
    FailureLine,
    QuestionLine,
    TaskFailureLine,
)
from milecastle.views.values import anything, plain

Redact = Callable[[str, Any], Any]

D = TypeVar("D", bound=msgspec.Struct)

_TEXTS: Final[Mapping[type, tuple[str, ...]]] = {
    FailureLine: ("message", "causes"),
    TaskFailureLine: ("message",),
    QuestionLine: ("refused",),
    AnswerLine: ("reason",),
}
_CHANNEL: Final = re.compile(r"\$(?:\.[\w-]+|\[[^\]]*\]?)?")
"""The part of a path that names a channel; what follows may name keys of a value."""
_STATE: Final = "state"
_LITERAL: Final = "Literal["
_INVALID: Final = "it is not valid for its schema, which is hidden here"


def redacted(document: D, hook: Redact | None) -> D:
    if hook is None:
        return document
    changed: dict[str, Any] = {}
    values = values_of(type(document))
    for name in document.__struct_fields__:
        value: Any = getattr(document, name)
        if name in values:
            changed[name] = _value(document, name, value, hook)
        elif isinstance(value, msgspec.Struct):
            changed[name] = redacted(value, hook)
        elif isinstance(value, tuple):
            items: tuple[Any, ...] = anything(value)
            changed[name] = tuple(
                redacted(item, hook) if isinstance(item, msgspec.Struct) else item for item in items
            )
    if isinstance(document, ChangeLine) and not _is_shown(document, changed):
        changed["path"] = channel_of(document.path)
    if isinstance(document, QuestionLine) and any(
        changed[name] != getattr(document, name) for name in ("question", "show", "answer")
    ):
        changed["digest"] = None  # it would confirm a guess of what the hook hides
    if isinstance(document, AnswerLine):
        changed["digest"] = None  # of a question that the hook has not seen here
    return msgspec.structs.replace(document, **changed)


def channel_of(path: str) -> str:
    found = _CHANNEL.match(path)
    return found[0] if found else "$"


def _is_shown(line: ChangeLine, changed: Mapping[str, Any]) -> bool:
    return all(changed[name] == getattr(line, name) for name in ("old", "new"))


def without_values(error: Exception, hook: Redact | None) -> Exception:
    """An error whose texts have passed the hook, if they quote a node's exception, or types.

    An error about a type, such as an invalid answer's or input's, lists the choices: it is shown
    only if the hook shows their schema, too.
    """
    if hook is None or not isinstance(error, MilecastleError):
        return error
    try:
        if isinstance(error, InvalidAnswer) or _LITERAL in error.message:
            places = ("message", "answer", "input")
            is_shown = all(hook(place, error.message) == error.message for place in places)
            error.message = error.message if is_shown else _INVALID
        elif isinstance(error, RunError | RecoveryError):
            error.message = str(hook("message", error.message))
        if isinstance(error, ResumeRefused):
            error.reasons = tuple(str(hook("message", reason)) for reason in error.reasons)
    except Exception as raised:  # it is answered without details
        return raised
    return error


def after_hook(place: str, value: Any, hook: Redact | None) -> Any:
    return value if hook is None or value is None else hook(place, plain(value))


def texts_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return _TEXTS.get(kind, ())


@cache
def values_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    free = {field.name for field in msgspec.structs.fields(kind) if field.type is Any}
    return frozenset(free.union(texts_of(kind)))


def _value(document: msgspec.Struct, name: str, value: Any, hook: Redact) -> Any:
    if isinstance(document, ChangeLine):
        is_absent = (document.kind, name) in (("added", "old"), ("removed", "new"))
        return None if is_absent else plain(hook(document.path, plain(value)))
    if name == _STATE and isinstance(value, dict):
        state = cast("dict[str, Any]", value)
        return {channel: plain(hook(f"$.{channel}", part)) for channel, part in state.items()}
    if isinstance(value, tuple):
        return tuple(plain(hook(name, item)) for item in anything(value))
    return None if value is None else plain(hook(name, value))
