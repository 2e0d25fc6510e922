"""Channels besides the state in a checkpoint: the next step's tasks and their waits.

These are separate channels in the log, under names a state cannot have. So they are
written when they change, forked with the state, and cut with it. A step ending clears them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from milecastle.model.hosting import HOSTED
from milecastle.model.reducers import SET

SENDS: Final = "__sends__"
"""``[node, update, ...]``: the tasks of the next step, if it is not each node once. ``None`` as
update means a node that receives the state as it is."""

WAITS: Final = "__waits__"
"""The waits of this step's tasks: ``{label: [task, question, until, topics]}``, as in ``Wait``.

A task's questions have the labels ``task/0``, ``task/1``, and its sleeps ``task/~0``, ``task/~1``.
Those of a subgraph have its ids, ``task/3.1:node/0``; ``task/:`` is when it resumes."""

ANSWERS: Final = "__answers__"
"""Answers that the tasks of this step were given: ``{label: value}``."""

TIMED_OUT: Final = "__timed_out__"
"""Waits of this step that ended at their deadlines, in microseconds: ``{label: time}``."""

ANSWERED_BY: Final = "__answered__"
"""Who gave the answers of this entry: ``{label: [id, how, reason, digest of the question]}``, the
id ``None`` if the caller did not say it."""

FAILURE: Final = "__failure__"
"""Why nodes, or items of a fan-out, failed, for the node that runs ``on_error``:
``{node or task: [type, message]}``."""

GOTOS: Final = "__gotos__"
"""Where nodes lead by their own word, if the edges of another could not be evaluated:
``{node: [target, ...]}``, a target being a name or ``[node, update]``."""

BEGAN: Final = "__began__"
"""``[seq, id]``: the entry that began this step, if a later one began the chain anew."""

CALLS: Final = "__calls__"
"""The recorded calls of a flow, oldest first: see ``engine/calls.py``."""

CONFIG: Final = "__config__"
"""The run's config. It is not one of ``RESERVED``, which a step looks at and clears: ``Position``
and ``Journal`` hold it by itself."""

TIMES: Final = "__times__"
"""When the step's tasks ran (``model/step_times.py``), encoded. Nothing but views reads it, so it
is in no position: forks, pruning and portable files drop it."""

RESERVED: Final = (
    SENDS,
    WAITS,
    ANSWERS,
    TIMED_OUT,
    ANSWERED_BY,
    FAILURE,
    GOTOS,
    BEGAN,
    CALLS,
    *HOSTED,
)

NAMES: Final = frozenset({*RESERVED, CONFIG, TIMES})
"""Every name that a state cannot have."""

Reserved = dict[str, Any]


class Wait(NamedTuple):
    """A task's wait: for an answer, a time, messages, or whichever comes first.

    ``question`` is ``[node, question, show, schema, whether it takes an answer]``, and why the last
    answer was refused, if it was. ``until`` is in microseconds since 1970. ``topics`` are pairs:
    a topic, and the number of its last message the task has seen. ``received`` are the numbers of
    messages the task received before, if other tasks run beside it.
    """

    task: str
    question: list[Any] | None
    until: int | None
    topics: list[list[Any]]
    received: list[int] = []  # noqa: RUF012 - never changed

    @property
    def is_sleep(self) -> bool:
        return self.question is None and not self.topics


def split(values: dict[str, Any]) -> Reserved:
    values.pop(TIMES, None)
    found = {name: values.pop(name, None) for name in RESERVED}
    return {name: value for name, value in found.items() if value is not None}


def without_children(reserved: Reserved) -> list[Any]:
    kept = branched(reserved)
    changed = [name for name, value in reserved.items() if kept.get(name) != value]
    return [part for name in changed for part in (SET, name, kept.get(name))]


def with_no_messages(reserved: Reserved) -> Reserved:
    """Channels for another thread: its mailbox is empty, and has its own numbers."""
    if WAITS not in reserved:
        return reserved
    waits = {
        label: [*wait[:3], [[topic, 0] for topic, _ in wait[3]]]
        for label, wait in reserved[WAITS].items()
    }
    return {**reserved, WAITS: waits}


def branched(reserved: Reserved) -> Reserved:
    """Channels a branch keeps: not subgraphs' waits, which run again."""
    kept = {name: value for name, value in reserved.items() if name != BEGAN}
    for name in (WAITS, ANSWERS, TIMED_OUT, ANSWERED_BY):
        labels: dict[str, Any] = reserved.get(name, {})
        own = {
            label: value for label, value in labels.items() if ":" not in label.partition("/")[2]
        }
        if own:
            kept[name] = own
        else:
            kept.pop(name, None)
    return kept
