"""The outcome of a task as it is kept until its step is committed: an update, and what else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from milecastle.engine.applying import Outcome
from milecastle.graph.sending import Send

__all__ = ["pack", "pack_goto", "unpack", "unpack_goto"]

_GOTO: Final = "__goto__"
_FAILURE: Final = "__failure__"

Target = str | Send | None


def pack(outcome: Outcome) -> Mapping[str, Any]:
    """As one update; what is not part of it stands under names that a state cannot have."""
    if outcome.goto is None:
        return outcome.update
    packed: dict[str, Any] = {**outcome.update, _GOTO: pack_goto(outcome.goto)}
    if outcome.failure is not None:
        packed[_FAILURE] = list(outcome.failure)
    return packed


def unpack(kept: Mapping[str, Any]) -> Outcome:
    """What ``pack`` made it of."""
    if _GOTO not in kept:
        return Outcome(kept)
    update = {name: value for name, value in kept.items() if name not in (_GOTO, _FAILURE)}
    failure = kept.get(_FAILURE)
    goto = cast("list[str | Send]", unpack_goto(kept[_GOTO]))
    return Outcome(update, tuple(goto), None if failure is None else tuple(failure))


def pack_goto(targets: Sequence[Target]) -> list[Any]:
    """Targets as plain data; ``None`` stands for the node's edges."""
    return [
        [target.node, dict(target.update)] if isinstance(target, Send) else target
        for target in targets
    ]


def unpack_goto(kept: Sequence[Any]) -> list[Target]:
    """What ``pack_goto`` made it of."""
    return [
        target if target is None or isinstance(target, str) else Send(*target) for target in kept
    ]
