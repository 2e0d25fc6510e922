"""Channels besides the state in a checkpoint: the next step's tasks and their waits.

These are separate channels in the log, under names a state cannot have. So they are
written when they change, forked with the state, and cut with it. A step ending clears them.
"""

from __future__ import annotations

from typing import Any, Final

from milecastle.model.hosting import HOSTED
from milecastle.model.reducers import SET

SENDS: Final = "__sends__"
"""``[node, update, ...]``: the tasks of the next step, if it is not each node once. ``None`` as
update means a node that receives the state as it is."""

ASKED: Final = "__asked__"
"""Questions: ``{label: [task, node, question, show, schema, whether it takes an answer]}``, and
why the last answer was refused, if it was."""

ANSWERS: Final = "__answers__"
"""Answers that the tasks of this step were given: ``{label: value}``."""

SLEEPS: Final = "__sleeps__"
"""Times that tasks of this step wait for: ``{label: [task, microseconds]}``. The label of a
subgraph ends with ``:``."""

FAILURE: Final = "__failure__"
"""Why nodes, or items of a fan-out, failed, for the node that runs ``on_error``:
``{node or task: [type, message]}``."""

GOTOS: Final = "__gotos__"
"""Where nodes lead by their own word, if the edges of another could not be evaluated:
``{node: [target, ...]}``, a target being a name or ``[node, update]``."""

BEGAN: Final = "__began__"
"""``[seq, id]``: the entry that began this step, if a later one began the chain anew."""

RESERVED: Final = (SENDS, ASKED, ANSWERS, SLEEPS, FAILURE, GOTOS, BEGAN, *HOSTED)

Reserved = dict[str, Any]


def split(values: dict[str, Any]) -> Reserved:
    found: Reserved = {}
    for name in RESERVED:
        value = values.pop(name, None)
        if value is not None:
            found[name] = value
    return found


def without_children(reserved: Reserved) -> list[Any]:
    kept = branched(reserved)
    changed = [name for name, value in reserved.items() if kept.get(name) != value]
    return [part for name in changed for part in (SET, name, kept.get(name))]


def branched(reserved: Reserved) -> Reserved:
    """Channels a branch keeps: not subgraphs' waits, which run again."""
    kept = {name: value for name, value in reserved.items() if name != BEGAN}
    for name in (ASKED, ANSWERS, SLEEPS):
        labels: dict[str, Any] = reserved.get(name, {})
        own = {
            label: value for label, value in labels.items() if ":" not in label.partition("/")[2]
        }
        if own:
            kept[name] = own
        else:
            kept.pop(name, None)
    return kept
