"""The user's part: nodes, edges and a state. Checked, then frozen, when compiled."""

from typing import TYPE_CHECKING

if not TYPE_CHECKING:

    def __getattr__(name):
        if name in ("StateGraph", "START", "END"):
            raise ImportError(f"write: from milecastle import {name}", name=name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
