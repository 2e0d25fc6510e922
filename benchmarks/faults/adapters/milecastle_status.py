"""The status of orders in Milecastle, for both of its adapters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults.outside import KEYS
from milecastle import App, ThreadNotFound
from milecastle.errors import ResumeRefused

LEASE = float(os.environ.get("FAULTS_LEASE", "2"))
WORDS = {"completed": "done", "interrupted": "waiting"}


def statuses(app: App[Any], orders: Sequence[str], channel: str = "") -> dict[str, Any]:
    """Status and state of each order; with ``channel``, the state is that channel's value."""
    return {order: _status(app, order, channel) for order in orders}


def _status(app: App[Any], order: str, channel: str) -> dict[str, Any]:
    try:
        found = app.state(order)
    except ThreadNotFound:
        return {"status": "none", "state": None}
    except ResumeRefused as refused:
        return {"status": "refused", "state": None, "why": str(refused)[:200]}
    values: Mapping[str, Any] = (found.state.get(channel) or {}) if channel else found.state
    state = {key: values.get(key) for key in KEYS}
    state["packed"] = sorted(state["packed"] or [])
    return {"status": WORDS.get(found.status, found.status), "state": state}


def say(document: Mapping[str, Any]) -> None:
    """Print it for the harness."""
    print(json.dumps(document), flush=True)
