"""A chat with streaming behind FastAPI: text as it comes, and each reply committed.

`POST /chats/NAME` streams the text of the reply; if the connection is lost, the reply is not: the
worker finishes it, and `GET /chats/NAME` has it. The model is scripted. httpx is only for `main`,
which calls the service in this process. Needs `pip install 'milecastle[serve]' fastapi httpx`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from milecastle.agents import agent
from milecastle.server import asgi

Message = dict[str, Any]


def scripted(messages: list[Message], tools: list[Message], emit: Callable[[str], None]) -> Message:
    words = ["You ", "said: ", messages[-1]["content"]]
    for word in words:
        emit(word)
    return {"content": "".join(words)}


app = agent(scripted, [], name="chat").compile(store="memory://")
operations = asgi(app, token=secrets.token_urlsafe(32), worker=True)
service = FastAPI(lifespan=operations.lifespan)
service.mount("/operations", operations)


@service.post("/chats/{name}")
async def say(name: str, text: str, id: str) -> StreamingResponse:
    """``id`` is the message's: a browser that sends it again starts nothing."""
    said = {"role": "user", "content": text}
    handle = await app.asubmit({"messages": [said]}, name, key=id)

    async def pieces() -> AsyncIterator[str]:
        async for event in app.afollow(name, after=handle.seq or 0, emitted=True):
            if event.type == "emit":
                yield event.update["delta"]

    return StreamingResponse(pieces(), media_type="text/plain")


@service.get("/chats/{name}")
async def show(name: str) -> list[str]:
    return [message["content"] for message in (await app.astate(name))["messages"]]


async def call() -> None:
    transport = httpx.ASGITransport(app=service)
    async with (
        operations.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        for id, text in (("m1", "hello"), ("m2", "are you there?"), ("m2", "are you there?")):
            said = await client.post("/chats/ann", params={"text": text, "id": id})
            print(f"streamed: {said.text}")
        print((await client.get("/chats/ann")).json())


def main() -> None:
    asyncio.run(call())


if __name__ == "__main__":
    main()
