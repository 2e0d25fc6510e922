"""The same, on Milecastle: no server, only a store. The services are unchanged.

python temporal_after.py worker      # as many as you like; start another if one dies
python temporal_after.py start
python temporal_after.py approve     # and wait for the result
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import (
    END,
    START,
    Context,
    Retry,
    StateGraph,
    Worker,
    WorkerOptions,
    append,
    interrupt,
)

TEXT, LANGUAGES = "walls", ["de", "fr", "it"]
REQUESTS = Path("requests.jsonl")  # what the services received


# -- the services --------------------------------------------------------------------------


def request(key: str, kind: str, **details: Any) -> str:
    """Send a request to a service. A service ignores a second request with the same key."""
    disturb(kind)
    with REQUESTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "kind": kind, **details}) + "\n")
    return f"{kind} {key}"


def effects() -> list[dict[str, Any]]:
    """What the services did: one entry for each key, ordered by it."""
    lines = REQUESTS.read_text("utf-8").splitlines() if REQUESTS.exists() else []
    found = {entry["key"]: entry for entry in map(json.loads, lines)}
    return [found[key] for key in sorted(found)]


def disturb(kind: str) -> None:
    """For the test: kill this process once, and let a service be down once."""
    for wish, happens in (("KILL_AT", kill), ("DOWN_AT", be_down)):
        if os.environ.get(wish) == kind and not Path(wish).exists():
            Path(wish).touch()
            happens()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_down() -> None:
    raise ConnectionError("the service is down")


# -- the graph -----------------------------------------------------------------------------

RETRY = Retry(attempts=1000, delay=0.1)


class Text(TypedDict):
    text: str
    languages: list[str]
    translations: Annotated[list[str], append]
    approved: NotRequired[bool]
    url: NotRequired[str | None]


class OneLanguage(TypedDict):
    text: str
    language: str


graph = StateGraph(Text, name="texts")


@graph.node(retry=RETRY, timeout=5)
def translate(state: OneLanguage) -> dict[str, Any]:
    text, language = state["text"], state["language"]
    return {"translations": [request(f"{text}-{language}", "translate", language=language)]}


@graph.node
def approve(state: Text) -> dict[str, Any]:
    return {"approved": interrupt("Publish?", show=state["translations"], answer=bool)}


@graph.node(retry=RETRY, timeout=5)
def publish(state: Text, ctx: Context) -> dict[str, Any]:
    if not state.get("approved"):
        return {"url": None}
    ctx.sleep(1)  # a durable timer
    translations = state["translations"]
    return {"url": request(f"{state['text']}-publish", "publish", translations=translations)}


graph.map(START, "translate", over="languages", item="language")
graph.add_edges("translate", "approve", "publish", END)
app = graph.compile(store="sqlite:///texts.db")


# -- the program ---------------------------------------------------------------------------


def report(state: Text) -> None:
    result = {key: state.get(key) for key in ("translations", "approved", "url")}
    print(json.dumps({**result, "effects": effects()}))


def main(verb: str) -> None:
    if verb == "worker":
        options = WorkerOptions(heartbeat=1.5, silent_after=5)
        asyncio.run(Worker([app], options).run_until_signalled())
    elif verb == "start":
        app.submit({"text": TEXT, "languages": LANGUAGES, "translations": []}, thread=TEXT)
    else:
        app.wait(TEXT)  # until it asks
        app.answer(TEXT, True)
        report(app.wait(TEXT).state)


if __name__ == "__main__":
    main(sys.argv[1])
