"""LangGraph: a checkpointer for its graphs storing threads as logs. Extra ``langgraph``."""

from __future__ import annotations

from milecastle.integrations.langgraph.saver import MilecastleSaver

__all__ = ["MilecastleSaver"]
