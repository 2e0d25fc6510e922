"""Drawings of a graph, made from its manifest and notes on its nodes: Mermaid, SVG and text.

Rules:

- Offline and with the standard library only.
- The same manifest gives the same bytes on every Python version: whole numbers for coordinates, and
  none of the interpreter's Unicode tables.
- Names are data, never markup.
"""

from __future__ import annotations

from milecastle.draw.mermaid import draw_mermaid
from milecastle.draw.sketch import notes_of
from milecastle.draw.svg import draw_svg
from milecastle.draw.text import draw_text

__all__ = ["draw_mermaid", "draw_svg", "draw_text", "notes_of"]
