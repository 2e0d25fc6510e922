"""The same agent with LangChain's ``create_agent`` and LangGraph's checkpointer on SQLite.

python langgraph_desk.py             # start, or continue after a crash
python langgraph_desk.py approve     # answer its questions
"""

from __future__ import annotations

import sys
from typing import Any

from bank import calls_of_turn, pay
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command


class Scripted(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **given: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *given: Any, **named: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        calls, text = calls_of_turn(turn)
        message = AIMessage(content=text, tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def find_order(order: str) -> dict[str, Any]:
    """Look up an order."""
    print(f"looking up {order}")
    return {"order": order, "price": 40}


def refund(order: str, amount: int, runtime: ToolRuntime) -> str:
    """Pay money back."""
    return pay(order, amount, key=str(runtime.tool_call_id))


def main() -> None:
    approval: Any = {
        "allowed_decisions": ["approve", "edit", "reject"],
        "when": lambda request: request.tool_call["args"]["amount"] > 20,
    }
    asks = HumanInTheLoopMiddleware(interrupt_on={"refund": approval})
    with SqliteSaver.from_conn_string("desk.db") as saver:
        desk = create_agent(Scripted(), [find_order, refund], middleware=[asks], checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t-17"}}
        asked = {"role": "user", "content": "My lamp and my chair arrived broken."}
        state = desk.get_state(config)
        given: Any = None if state.values else {"messages": [asked]}
        if state.interrupts:
            if "approve" not in sys.argv:
                print("interrupted")
                return
            (found,) = state.interrupts
            decisions = [{"type": "approve"} for _ in found.value["action_requests"]]
            given = Command(resume={"decisions": decisions})
        result = desk.invoke(given, config, durability="sync")
        status = "interrupted" if desk.get_state(config).interrupts else "completed"
        print(status, result["messages"][-1].content)


if __name__ == "__main__":
    main()
