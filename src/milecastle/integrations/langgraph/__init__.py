"""LangGraph: a checkpointer storing threads as logs, and a store. Extra ``langgraph``."""

from __future__ import annotations

from milecastle.integrations.langgraph.saver import MilecastleSaver
from milecastle.integrations.langgraph.store import MilecastleStore

__all__ = ["MilecastleSaver", "MilecastleStore"]
