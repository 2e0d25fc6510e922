"""Inbound hooks: events that other services POST become messages, runs and answers.

Rules:

- A body is verified as it was sent, before it is read: its signature, then its signing time. An
  unknown name and a wrong signature have the same answer.
- The sender's id for the event is the key for its effect: an event sent again does nothing, and has
  the same answer.
- The answer follows the commit. If anything fails before, the sender sends the event again.
- The tenant is the hook's, never one in the body.
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from time import time
from typing import Any, Final, cast

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.webhooks import is_signed, read_secrets

Verify = Callable[[Mapping[str, str], bytes], str | None]
"""The sender's id of an event, from the headers (names in lower case) and the body; ``None`` if it
is not genuine."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE: Final = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
_LONGEST_ID: Final = 256


class SendTo(msgspec.Struct, frozen=True):
    """Send a message to a thread; ``key`` is the sender's id unless given."""

    thread: str
    value: Any
    topic: str = ""
    graph: str | None = None
    key: str | None = None


class SubmitTo(msgspec.Struct, frozen=True):
    """Submit a run to a thread, behind those it has; ``key`` is the sender's id unless given."""

    thread: str
    input: Any
    graph: str | None = None
    key: str | None = None


class AnswerTo(msgspec.Struct, frozen=True):
    """Answer a thread's question; ``key`` is the sender's id unless given.

    ``by`` is who answers, as the sender says, whose signature vouches for it; else the hook.
    """

    thread: str
    question: str
    answer: Any
    by: str = ""
    graph: str | None = None
    key: str | None = None


class InboundHook(msgspec.Struct, frozen=True):
    """A hook under ``/hooks/NAME``. Made by ``hook``."""

    name: str
    verify: Verify
    to: Callable[[Any], SendTo | SubmitTo | AnswerTo | None]
    tenant: str | None = None


def hook(
    name: str,
    *,
    verify: Verify,
    to: Callable[[Any], SendTo | SubmitTo | AnswerTo | None],
    tenant: str | None = None,
) -> InboundHook:
    """A hook for ``asgi(hooks=[...])``: what comes to ``POST /hooks/NAME`` is verified and mapped.

    ``verify(headers, body)`` returns the sender's id of an event, or ``None``; it is
    ``standard_webhooks("env:NAME")`` or a function. ``to(event)`` gets the JSON and returns
    ``SendTo``, ``SubmitTo``, ``AnswerTo``, or ``None`` to do nothing. ``tenant`` is the server's
    unless given.
    """
    if not (isinstance(cast("object", name), str) and _NAME.fullmatch(name)):
        raise InvalidRequest("the name of a hook has 1 to 64 letters, digits, '_', '.' and '-'")
    if not all(map(callable, (verify, to))):
        raise InvalidRequest(f"verify= and to= of hook '{name}' are functions")
    return InboundHook(name, verify, to, tenant)


class StandardWebhooks:
    """Verifies events signed according to Standard Webhooks."""

    def __init__(self, secret: Callable[[], str], what: str) -> None:
        self._secret = secret
        self._what = what

    def __call__(self, headers: Mapping[str, str], body: bytes) -> str | None:
        """The event's ``webhook-id``, if it is genuine and was signed within five minutes."""
        id = headers.get("webhook-id", "")
        at, signatures = (headers.get(f"webhook-{one}", "") for one in ("timestamp", "signature"))
        is_genuine = is_signed(self.keys(), id, at, signatures, body, now=time())
        return id if is_genuine and len(id) <= _LONGEST_ID else None

    def keys(self) -> list[bytes]:
        return read_secrets(self._secret(), self._what)


def standard_webhooks(secret: str) -> Verify:
    """Verify according to Standard Webhooks, with the secret in ``"env:NAME"``.

    The variable has two secrets, separated by a space, while one replaces the other.
    """
    named = _VARIABLE.fullmatch(secret) if isinstance(cast("object", secret), str) else None
    if named is None:
        raise InvalidRequest(
            "the secret of a hook is the name of an environment variable, 'env:NAME', and never "
            "the secret itself"
        )
    return StandardWebhooks(lambda: os.environ.get(named[1], ""), f"hooks in {named[1]}")


def known_hooks(hooks: Any) -> dict[str, InboundHook]:
    """Hooks by name; those that cannot verify anything are refused when a server starts."""
    found: dict[str, InboundHook] = {}
    for one in hooks:
        if not isinstance(one, InboundHook):
            raise InvalidRequest(f"hooks= takes hook(...), not {type(one).__name__}")
        if one.name in found:
            raise InvalidRequest(f"two hooks are called '{one.name}'")
        if isinstance(one.verify, StandardWebhooks):
            one.verify.keys()
        found[one.name] = one
    return found


def unknown_hook() -> InboundHook:
    """A hook that accepts nothing, in place of those that do not exist."""
    secret = b64encode(secrets.token_bytes(32)).decode()
    return InboundHook("", StandardWebhooks(lambda: secret, "no hook"), lambda _: None)
