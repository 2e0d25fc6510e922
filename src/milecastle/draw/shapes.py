from __future__ import annotations

from typing import NamedTuple


class Tie(NamedTuple):
    """A link to lay out; a label of width 0 is not drawn.

    Strong links decide first which way is down.
    """

    source: int
    target: int
    label: int = 0
    strong: bool = True


class Box(NamedTuple):
    x: int
    y: int
    width: int
    height: int

    @property
    def middle(self) -> tuple[int, int]:
        return self.x + self.width // 2, self.y + self.height // 2


class Wire(NamedTuple):
    points: tuple[tuple[int, int], ...]
    label: Box | None


class Layout(NamedTuple):
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    width: int
    height: int
