"""The host of a run that leaves a portable file at each interrupt.

What the engine tells is enough to know what a file must hold: which nodes run next, and what
the branches of the last step returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from milecastle.app.portable import PortableFiles
from milecastle.drivers.host import Host
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey

__all__ = ["SavingHost"]


class SavingHost(Host):
    """Saves a file before anybody is told of an interrupt. If that fails, the call fails."""

    def __init__(
        self,
        files: PortableFiles,
        config: Any,
        **surroundings: Any,
    ) -> None:
        super().__init__(**surroundings)
        self._files = files
        self._graph = files.graph
        self._config = config
        self._step = _Step()

    def tell(self, event: Event) -> Event | None:
        """Save a file if this is an interrupt, then tell."""
        if self._step.is_own(event):
            self._step.follow(event)
        if event.type == "interrupt":
            self._save(event)
        return super().tell(event)

    def _save(self, event: Event) -> None:
        step = self._step
        own = step.is_own(event) and event.node in self._graph.nodes
        state = event.state if own else step.state
        next = tuple(name for name in step.next if name in self._graph.nodes)
        if not next and own:
            next = (cast("str", event.node),)
        if not next or state is None:
            return  # nothing was committed yet that a file could hold
        node = event.node if event.node is not None and event.node in next else next[0]
        results = {} if step.is_open else self._updates(step.updates)
        name = event.node or node
        path = self._files.add(name, state, next, node, self._config, step.number, results)
        if path is not None and len(next) > 1:
            _warn_of_branches(path, next, step.number)

    def _updates(self, updates: Mapping[str, Any]) -> dict[str, Any]:
        """What the branches of a step returned, as far as it has the form of an update."""
        if len(updates) < 2:
            return {}
        found: dict[str, Any] = {}
        for name, update in updates.items():
            if isinstance(update, Mapping):
                found[name] = dict(cast("Mapping[str, Any]", update))
        return found


class _Step:
    """The step of a run that is under way, or that was the last."""

    def __init__(self) -> None:
        self._key: ThreadKey | None = None
        self._run_id = ""
        self._moved = False
        self.number = 0
        self.is_open = False
        self.state: Any = None
        self.next: list[str] = []
        self.updates: dict[str, Any] = {}

    def is_own(self, event: Event) -> bool:
        """Whether the event is of the run itself and not of one inside it."""
        if not self._run_id:
            self._key, self._run_id = event.key, event.run_id
        return (event.key, event.run_id) == (self._key, self._run_id)

    def follow(self, event: Event) -> None:
        """Take note of what happened."""
        match event.type:
            case "node_start":
                if not self.is_open:
                    self.is_open, self._moved, self.updates = True, False, {}
            case "node_complete":
                self.updates[event.node or ""] = event.update
            case "edge_transition":
                if not self._moved:
                    self._moved, self.next = True, []
                if event.data["target"] not in self.next:
                    self.next.append(event.data["target"])
            case "checkpoint_resume":
                self.number, self.next = event.step, list(event.data["next"])
            case "state":
                self.number, self.state, self.is_open = event.step, event.state, False
            case _:
                pass


def _warn_of_branches(path: Path, next: tuple[str, ...], step: int) -> None:
    import logging

    logging.getLogger("milecastle").warning(
        "%s was saved while parallel branches are under way: it holds the last committed step "
        "(%d), and resuming from it runs %s",
        path.name,
        step,
        ", ".join(next),
    )
