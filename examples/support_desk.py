"""An agent with `milecastle.agents`: an approval that changes the amount, days later.

The model is scripted, so that this runs anywhere; `milecastle.agents.openai.chat("gpt-5")` makes a
real one. The bank gets the same key in every attempt of a call.
"""

from __future__ import annotations

from typing import Any

from milecastle.agents import Budget, ToolDecision, agent, tool

Message = dict[str, Any]
BANK: dict[str, int] = {}


def find_order(order: str) -> dict[str, Any]:
    """Look up an order."""
    return {"order": order, "price": 40}


def refund(order: str, amount: int, *, call: Message) -> str:
    """Pay money back."""
    BANK[call["key"]] = amount
    return f"paid {amount} for order {order}"


def scripted(messages: list[Message], tools: list[Message]) -> Message:
    results = [message["content"] for message in messages if message["role"] == "tool"]
    used = {"input": 100 + 20 * len(messages), "output": 15}
    if not results:
        return {"tool_calls": [{"name": "find_order", "args": {"order": "1041"}}], "usage": used}
    if len(results) == 1:
        args = {"order": "1041", "amount": 40}
        return {"tool_calls": [{"name": "refund", "args": args}], "usage": used}
    return {"content": f"Done: {results[1]}", "usage": used}


desk = agent(
    scripted,
    [find_order, tool(refund, approve=lambda args: args["amount"] > 20)],
    system="You are a support agent.",
    budget=Budget(tokens=50_000),
)
app = desk.compile(store="memory://")


def main() -> None:
    said = {"role": "user", "content": "My lamp arrived broken."}
    result = app.invoke({"messages": [said]}, thread="t-17")
    for asked in result.interrupts:  # in real life days later, in another process
        print(asked.question, asked.show["args"])
        edited = ToolDecision(approve=True, args={"order": "1041", "amount": 30})
        result = app.resume("t-17", edited)
    print(result["messages"][-1]["content"])
    print(f"used {result['used']['input']} tokens; paid {[*BANK.values()]}")


if __name__ == "__main__":
    main()
