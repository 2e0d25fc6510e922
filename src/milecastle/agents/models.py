"""Calling models: functions, sync or async, that take the messages.

A model is called with the messages, and with ``tools``, ``emit`` and ``output`` if it has these
parameters. It returns text, or a dict with ``content``, ``tool_calls`` (each with ``name``,
``args`` and perhaps ``id``), ``usage`` (``input`` and ``output`` tokens) and, for its own use in
the next call, ``provider``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from milecastle.agents.messages import ChatMessage

_OPTIONAL = ("tools", "emit", "output")


def is_async(function: Callable[..., Any]) -> bool:
    called: Any = type(function).__call__  # an object that is called has it
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def accepted(model: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(model).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset(_OPTIONAL)
    return frozenset(_OPTIONAL) & {parameter.name for parameter in parameters}


def read_calls(given: Sequence[Mapping[str, Any]], key: str) -> list[ChatMessage]:
    """A reply's calls, each with a unique id: models repeat ids, and omit them."""
    made: list[ChatMessage] = []
    for number, one in enumerate(given):
        call: ChatMessage = {"id": f"{key[:12]}-{number}", "name": str(one["name"])}
        args: Any = one.get("args") or {}
        if isinstance(args, str):
            try:
                args = msgspec.json.decode(args)
            except msgspec.DecodeError as error:
                args, call["unreadable"] = {}, str(error)
        if not isinstance(args, dict):
            args, call["unreadable"] = {}, "they are not an object"
        call["args"] = args
        if one.get("id"):
            call["given_id"] = one["id"]
        made.append(call)
    return made


def retry_after(error: Exception) -> float:
    """The seconds a provider asks to wait, in the error or its response; 0 if it does not."""
    found: Any = getattr(error, "retry_after", None)
    if found is None:
        headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
        found = headers.get("retry-after")
    try:
        return max(0.0, float(found))
    except (TypeError, ValueError):
        return 0.0


def is_refused(error: Exception) -> bool:
    """True if the provider answered with an error, so the call was not billed."""
    return isinstance(getattr(error, "status_code", None), int) or retry_after(error) > 0
