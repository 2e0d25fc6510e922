"""Tools: typed functions a model may call. Arguments are validated before each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import msgspec

from milecastle import Retry, Timeout
from milecastle.support.prepared import prepared

RUN_TOOL = "run_tool"
"""The node of tools without a policy."""

GIVEN = ("ctx", "call")
"""Parameters that the agent fills in: the model does not see them."""


@prepared
class ToolDecision(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The answer to an approval: call the tool, perhaps with other arguments, or refuse."""

    approve: bool
    args: dict[str, Any] | None = None
    reason: str = ""


class Handoff(msgspec.Struct, frozen=True):
    """A tool's result that lets another role continue the conversation."""

    to: str
    note: str = ""


class Tool(msgspec.Struct, frozen=True):
    """A function with its arguments' schema.

    ``read`` validates arguments, or raises ``ValueError``. ``approve`` is ``True``, or a function
    of the arguments: the call then waits for a person's ``ToolDecision``. ``retry`` and ``timeout``
    are its calls' policy.
    """

    name: str
    function: Callable[..., Any]
    description: str
    schema: dict[str, Any]
    read: Callable[[Any], Mapping[str, Any]]
    approve: bool | Callable[[dict[str, Any]], object] = False
    given: tuple[str, ...] = ()
    retry: Retry | int | None = None
    timeout: Timeout | float | None = None

    @property
    def node(self) -> str:
        """The node that runs its calls."""
        return RUN_TOOL if self.retry is None and self.timeout is None else f"tool_{self.name}"

    @property
    def spec(self) -> dict[str, Any]:
        """The tool as a model sees it."""
        return {"name": self.name, "description": self.description, "schema": self.schema}


def tool(
    function: Callable[..., Any],
    *,
    name: str = "",
    approve: bool | Callable[[dict[str, Any]], object] = False,
    retry: Retry | int | None = None,
    timeout: Timeout | float | None = None,
) -> Tool:
    """Make a tool from a typed function, sync or async; its docstring describes it to the model.

    A parameter ``ctx`` gets the node's context. A parameter ``call`` gets the call: its ``key`` is
    the same in every attempt, so pass it to services that support idempotency keys. ``retry`` and
    ``timeout`` are as for a node; the model is told if a call failed in its last attempt.
    """
    called = name or function.__name__
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, tuple[Any, Any]] = {}
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.name in GIVEN:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"tool '{called}' takes *{parameter.name}: name its parameters")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"tool '{called}': parameter '{parameter.name}' is positional only")
        if parameter.name not in hints:
            raise TypeError(f"tool '{called}': parameter '{parameter.name}' has no type")
        fields[parameter.name] = (hints[parameter.name], parameter.default)
    is_pydantic = any(hasattr(kind, "model_validate") for kind, _ in fields.values())
    schema, read = (_by_pydantic if is_pydantic else _by_msgspec)(f"{called}_arguments", fields)
    described = inspect.getdoc(function) or ""
    given = tuple(each for each in GIVEN if each in parameters)
    return Tool(called, function, described, schema, read, approve, given, retry, timeout)


Fields = Mapping[str, tuple[Any, Any]]
ReadArguments = tuple[dict[str, Any], Callable[[Any], Mapping[str, Any]]]


def _by_msgspec(name: str, fields: Fields) -> ReadArguments:
    made = prepared(
        msgspec.defstruct(
            name,
            [
                (field, kind) if default is inspect.Parameter.empty else (field, kind, default)
                for field, (kind, default) in fields.items()
            ],
            kw_only=True,
            forbid_unknown_fields=True,
        )
    )
    (_,), parts = msgspec.json.schema_components([made], ref_template="#/$defs/{name}")
    schema = parts.pop(name)
    schema.pop("title")
    schema |= {"$defs": parts} if parts else {}

    def read(args: Any) -> Mapping[str, Any]:
        found = msgspec.convert(args, made)
        return {field: getattr(found, field) for field in fields}

    return schema, read


def _by_pydantic(name: str, fields: Fields) -> ReadArguments:
    from pydantic import ConfigDict, create_model

    missing = inspect.Parameter.empty
    told: Any = {key: (kind, ... if no is missing else no) for key, (kind, no) in fields.items()}
    made: Any = create_model(name, __config__=ConfigDict(extra="forbid"), **told)

    def read(args: Any) -> Mapping[str, Any]:
        found = made.model_validate(args)
        return {field: getattr(found, field) for field in fields}

    return made.model_json_schema(), read


class Approval:
    """The type of an approval's answer: a ``ToolDecision`` whose arguments the tool accepts.

    An answer is checked against its schema before it is stored, and again by ``model_validate``
    when it is delivered: if that fails, the question is open again.
    """

    __name__ = "ToolDecision"

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def model_json_schema(self) -> dict[str, Any]:
        args = dict(self._tool.schema)
        parts = args.pop("$defs", {})
        members = {
            "approve": {"type": "boolean"},
            "args": args,
            "reason": {"type": "string", "default": ""},
        }
        form: dict[str, Any] = {"title": "ToolDecision", "type": "object", "properties": members}
        form |= {"required": ["approve"], "additionalProperties": False}
        return {**form, "$defs": parts} if parts else form

    def model_validate(self, given: Any) -> ToolDecision:
        found = msgspec.convert(given, ToolDecision)
        if found.approve and found.args is not None:
            self._tool.read(found.args)
        return found


def as_plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_plain)


def as_text(value: Any) -> str:
    """A tool's result for the model: text as it is, other values as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(as_plain(value)).decode()


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a tool returned {type(value).__name__}, which is not plain data")
