"""Endpoints for chat front ends.

They are not in the OpenAPI document: others define them.
"""

from __future__ import annotations

from typing import Final

from milecastle.server.chat.agui.runs import AGUI
from milecastle.server.chat.langgraph.table import LANGGRAPH
from milecastle.server.request import Endpoint
from milecastle.support.prepared import prepared

CHAT: Final[tuple[Endpoint, ...]] = (*AGUI, *LANGGRAPH)

for _endpoint in CHAT:  # requests are read into these by any thread
    prepared(_endpoint.query)
    if _endpoint.body is not None:
        prepared(_endpoint.body)
