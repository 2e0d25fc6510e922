"""The endpoints of AG-UI."""

from __future__ import annotations

from typing import Final

from milecastle.server.chat.agui.documents import AgentInput
from milecastle.server.chat.agui.runs import run_agent
from milecastle.server.request import Endpoint

__all__ = ["AGUI"]

AGUI: Final = tuple(
    Endpoint(
        method="POST",
        path=path,
        handler=run_agent,
        summary="Run an agent and send its events.",
        scope="run",
        also=("read",),
        body=AgentInput,
        answers={200: "text/event-stream"},
        problems=(404, 409, 422, 500),
    )
    for path in ("/agui", "/agui/{graph}")
)
