"""An approval in a chat tool: a hook posts the question, and another takes the click as its answer.

Both are signed. Needs `pip install 'milecastle[serve]' httpx`; the chat tool is in this program.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import threading
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, TypedDict

import httpx

from milecastle import END, START, StateGraph, Worker, WorkerOptions, interrupt
from milecastle.server import AnswerTo, asgi, hook, standard_webhooks

KEY, POSTED = os.urandom(32), list[dict[str, Any]]()
os.environ["CHAT_SECRET"] = b64encode(KEY).decode()


class Refund(TypedDict):
    amount: int
    paid: bool


def approve(state: Refund) -> dict[str, Any]:
    return {"paid": interrupt(f"Refund {state['amount']}?", answer=bool)}


graph = StateGraph(Refund, name="refunds").add_node("approve", approve)
graph.add_edges(START, "approve", END)
graph.on("question", url="env:CHAT_URL", secret="env:CHAT_SECRET", include="question")  # noqa: S106
app = graph.compile(store="memory://")


def signature(key: bytes, id: str, at: str, body: bytes) -> str:
    return "v1," + b64encode(hmac.digest(key, f"{id}.{at}.".encode() + body, "sha256")).decode()


class ChatTool(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        id, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        if hmac.compare_digest(signature(KEY, id, at, body), self.headers["webhook-signature"]):
            POSTED.append(json.loads(body)["data"])  # shown with two buttons
        self.send_response(204)
        self.end_headers()


async def main() -> None:
    tool = HTTPServer(("127.0.0.1", 0), ChatTool)
    threading.Thread(target=tool.handle_request).start()
    os.environ["CHAT_URL"] = f"http://127.0.0.1:{tool.server_port}/"
    clicks = hook("chat", verify=standard_webhooks("env:CHAT_SECRET"), to=lambda c: AnswerTo(**c))
    served: Any = asgi(app, token="t" * 32, worker=False, hooks=[clicks])
    options = WorkerOptions(deliver_to=("127.0.0.1",))
    await app.asubmit({"amount": 40, "paid": False}, thread="r-7")
    await Worker([app], options).run_until_idle()
    print(POSTED[0]["question"])
    click = {"thread": "r-7", "question": POSTED[0]["question_id"], "answer": True, "by": "ann"}
    now, body = str(int(time.time())), json.dumps(click).encode()
    headers = {"webhook-id": "c-1", "webhook-timestamp": now, "content-type": "application/json"}
    transport = httpx.ASGITransport(app=served)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for key in (b"forged", KEY, KEY):
            headers["webhook-signature"] = signature(key, "c-1", now, body)
            print((await client.post("/hooks/chat", content=body, headers=headers)).status_code)
    await Worker([app], options).run_until_idle()
    print(app.state("r-7").state["paid"], app.answers("r-7")[0].by)


if __name__ == "__main__":
    asyncio.run(main())
