"""The conversation: an agent's state, and the form in which providers accept it.

A message is a dict with ``role`` (``user``, ``assistant``, ``tool`` or ``system``), ``content`` and
``id``. An assistant's message may have ``tool_calls``, each with ``id``, ``name`` and ``args``; a
call's result has its ``tool_call_id``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict, cast

from milecastle import inbox, initial
from milecastle import messages as upserted

ChatMessage = dict[str, Any]


def queued(old: list[Any], update: Any) -> list[Any]:
    """Add a list's items at the end; a number removes that many items from the front."""
    return old[update:] if isinstance(update, int) else [*old, *update]


def summed(old: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    return {key: old.get(key, 0) + update.get(key, 0) for key in {**old, **update}}


def newest(old: Any, update: Any) -> Any:
    return update


class AgentState(TypedDict):
    """An agent's state.

    ``steering`` has messages to the topic ``user`` the model has not seen. ``used`` has
    tokens (``input``, ``output``, ``lost``, ...) and ``usd``. ``stopped`` is why the run ended
    without an answer: ``max_turns`` or ``budget``. ``output`` is the structured output.
    """

    messages: Annotated[list[ChatMessage], upserted]
    steering: NotRequired[Annotated[list[Any], queued, inbox("user"), initial(list)]]
    used: NotRequired[Annotated[dict[str, Any], summed, initial(dict)]]
    granted: NotRequired[Annotated[dict[str, Any], summed, initial(dict)]]
    share: NotRequired[dict[str, Any]]
    turns: NotRequired[int]
    active: NotRequired[Annotated[str, newest]]
    waiting: NotRequired[dict[str, Any] | None]
    output: NotRequired[Annotated[Any, newest]]
    stopped: NotRequired[Annotated[str, newest]]
    call: NotRequired[dict[str, Any]]


def calls_of(message: Mapping[str, Any]) -> Sequence[ChatMessage]:
    if message["role"] != "assistant":
        return ()
    return cast("Sequence[ChatMessage]", message.get("tool_calls") or ())


def closed(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages with every call's result right behind it.

    Providers refuse a call without a result, a result without a call, and anything between the two.
    A run cancelled or forked, or a message that comes in between, leaves such histories. A
    call without a result gets one that says so; nothing is stored.
    """
    results: dict[Any, list[ChatMessage]] = {}
    for message in messages:
        if message["role"] == "tool":
            results.setdefault(message.get("tool_call_id"), []).append(message)
    made: list[ChatMessage] = []
    for message in messages:
        role = message["role"]
        if role == "tool":
            continue
        made.append(message)
        for call in calls_of(message) if role == "assistant" else ():
            found = results.get(call["id"])
            made.append(found.pop(0) if found else result(call, _NO_RESULT, is_error=True))
    return made


_NO_RESULT = "no result: the turn was stopped before this call ended"


def result(call: Mapping[str, Any], content: str, *, is_error: bool = False) -> ChatMessage:
    made = {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": content}
    return {**made, "id": f"r{call['id']}", **({"is_error": True} if is_error else {})}


def from_person(said: Any, id: str) -> ChatMessage:
    if not isinstance(said, Mapping):
        return {"role": "user", "content": said, "id": id}
    given = cast("Mapping[str, Any]", said)
    return {"role": "user", "content": given.get("content", ""), "id": given.get("id") or id}
