"""Hooks: URLs notified when a graph's runs complete, fail or ask.

Rules:

- A secret is named and never given: ``"env:NAME"`` is read from the environment when a delivery is
  signed. So it is in no store, no log and no error. A URL may be named as well: chat tools' are
  secrets.
- A hook is not in the fingerprint: changing it makes no thread unfit.
"""

from __future__ import annotations

import os
import re
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import SplitResult, urlsplit

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.notices import HookEvent

HookValue = Literal["error", "question", "state"]
"""Values that a body contains only if the hook includes them."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")


class Webhook(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    graph: str
    name: str
    events: tuple[HookEvent, ...]
    url: str
    secret: str
    include: tuple[HookValue, ...] = ()

    def __post_init__(self) -> None:
        if not (type(self.name) is str and _NAME.fullmatch(self.name)):
            raise InvalidRequest(
                "the name of a hook has 1 to 64 letters, digits, '_', '.' and '-': give it a name="
            )
        for word, given, known in (
            ("on()", self.events, get_args(HookEvent)),
            ("include=", self.include, get_args(HookValue)),
        ):
            if not set(given) <= set(known):
                raise InvalidRequest(f"hook '{self.name}': {word} takes {', '.join(known)}")
        if not self.events:
            raise InvalidRequest(f"hook '{self.name}' has no event: on('failed', url=...)")
        if not _is_variable(self.secret):
            raise InvalidRequest(
                f"the secret of hook '{self.name}' is the name of an environment variable, "
                "'env:NAME', and never the secret itself"
            )
        if not _is_variable(self.url):
            self._split(self.url)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name), ("events", self.events), ("include", self.include)]

    def __repr__(self) -> str:
        """The hook without its URL, which may be a secret."""
        return f"Webhook({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @property
    def id(self) -> str:
        """Its name in a store, which has other graphs' hooks too."""
        return self.name if self.name == self.graph else f"{self.graph}@{self.name}"

    @property
    def target(self) -> SplitResult:
        """The URL's parts.

        Raises:
            InvalidRequest: no environment variable has it, or it is not a URL to POST to.
        """
        return self._split(self._read(self.url) if _is_variable(self.url) else self.url)

    @property
    def secrets(self) -> str:
        return self._read(self.secret)

    def _read(self, named: str) -> str:
        variable = named.removeprefix("env:")
        found = os.environ.get(variable, "").strip()
        if not found:
            raise InvalidRequest(
                f"hook '{self.name}' needs the environment variable {variable}, which is not set: "
                "set it for every worker that serves its graph"
            )
        return found

    def _split(self, url: str) -> SplitResult:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("https", "http") and parts.hostname and parts.port != 0
        except (ValueError, AttributeError):
            fits, parts = None, SplitResult("", "", "", "", "")
        is_printable = isinstance(cast("object", url), str) and url.isascii() and url.isprintable()
        if not fits or not is_printable or " " in url or "@" in parts.netloc or parts.fragment:
            raise InvalidRequest(
                f"the URL of hook '{self.name}' is to be https://HOST/PATH, in ASCII, without a "
                "user and a fragment, or 'env:NAME'"
            )
        return parts


def _is_variable(given: object) -> bool:
    return isinstance(given, str) and _VARIABLE.fullmatch(given) is not None
