"""Agents: a model and tools as an ordinary graph, with approvals, budgets and subagents.

Imported only when used. A model is any function that takes the messages.
"""

from milecastle.agents.budget import Budget, Grant
from milecastle.agents.loop import Role, Subagent, agent
from milecastle.agents.messages import AgentState, closed
from milecastle.agents.tools import Handoff, Tool, ToolDecision, tool

__all__ = [
    "AgentState",
    "Budget",
    "Grant",
    "Handoff",
    "Role",
    "Subagent",
    "Tool",
    "ToolDecision",
    "agent",
    "closed",
    "tool",
]
