"""The rules by which providers refuse a conversation, as their documentation states them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

Wire = dict[str, Any]


def openai_refuses(messages: Sequence[Wire]) -> Iterator[str]:
    """Every call is answered right behind it, and nothing else is a tool's message."""
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"{place}: a result without a call right before it"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"{place}: calls without a result"
        calls = message.get("tool_calls") or ()
        waiting = [call["id"] for call in calls]
        if len({*waiting}) < len(waiting):
            yield f"{place}: two calls with one id"
        for call in calls:
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                yield f"{place}: arguments that are not an object"
        if message["content"] is None and not calls:
            yield f"{place}: neither content nor calls"
    if waiting:
        yield "calls without a result at the end"


def anthropic_refuses(messages: Sequence[Wire]) -> Iterator[str]:
    """Roles alternate and begin with the user; a turn's results are the next message's first."""
    ids: list[str] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[place % 2]:
            yield f"{place}: the roles do not alternate"
        if not message["content"]:
            yield f"{place}: no content"
        found: list[str] = []
        for number, block in enumerate(message["content"]):
            if block["type"] == "tool_result":
                if number != len(found):
                    yield f"{place}: a result behind something else"
                found.append(block["tool_use_id"])
            elif block["type"] == "tool_use":
                ids.append(block["id"])
                if not isinstance(block["input"], dict):
                    yield f"{place}: input that is not an object"
            elif block["type"] == "text" and not block["text"].strip():
                yield f"{place}: an empty text"
        if sorted(found) != sorted(waiting):
            yield f"{place}: results {found} for calls {waiting}"
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    if waiting:
        yield "calls without a result at the end"
    if len({*ids}) < len(ids):
        yield "two calls with one id"
    if messages and messages[-1]["role"] != "user":
        yield "the last message is the assistant's"
