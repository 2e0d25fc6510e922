"""LangChain's ``create_agent`` with LangGraph's SQLite saver, as its documentation says."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from benchmarks.langgraph_stores import sqlite_saver

# By name, so that the type checks pass alike with and without the peer.
agents = import_module("langchain.agents")


class Scripted(BaseChatModel):
    """Asks for one call in each turn, and is done after so many."""

    turns: int

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **given: Any) -> Any:
        """Return the model: its script needs no tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *given: Any, **named: Any) -> ChatResult:
        made = sum(isinstance(message, AIMessage) for message in messages)
        call: Any = {"id": f"c{made}", "name": "weather", "args": {"place": "Hexham"}}
        done = made == self.turns
        message = AIMessage(content="done" if done else "", tool_calls=[] if done else [call])
        return ChatResult(generations=[ChatGeneration(message=message)])


def run(turns: int, path: Path, asked: str, tool: Callable[..., str]) -> tuple[float, int]:
    """Run the agent; return the seconds that the run took, and the number of messages."""
    with sqlite_saver(path) as saver:
        made = agents.create_agent(Scripted(turns=turns), [tool], checkpointer=saver)
        config = {"configurable": {"thread_id": "agent"}, "recursion_limit": 10 * turns}
        given = {"messages": [{"role": "user", "content": asked}]}
        begun = perf_counter()
        result = made.invoke(given, config)
        return perf_counter() - begun, len(result["messages"])
