"""The same as a flow: the function stays. The services are unchanged.

python temporal_flow.py worker      # as many as you like; start another if one dies
python temporal_flow.py start
python temporal_flow.py approve     # and wait for the result
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from milecastle import Retry, Worker, WorkerOptions, flow, gather, interrupt, sleep, step

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


# -- the flow ------------------------------------------------------------------------------

RETRY = Retry(attempts=1000, delay=0.1)


@step(retry=RETRY, timeout=5)
def translate(text: str, language: str) -> str:
    return request(f"{text}-{language}", "translate", language=language)


@step(retry=RETRY, timeout=5)
def publish(text: str, translations: list[str]) -> str:
    return request(f"{text}-publish", "publish", translations=translations)


@flow(name="texts")
def publishing(text: str) -> dict[str, Any]:
    translations = gather(*(partial(translate, text, language) for language in LANGUAGES))
    approved = interrupt("Publish?", show=translations, answer=bool)
    url = None
    if approved:
        sleep(1)  # a durable timer
        url = publish(text, translations)
    return {"translations": translations, "approved": approved, "url": url}


app = publishing.compile(store="sqlite:///texts.db")


# -- the program ---------------------------------------------------------------------------


def main(verb: str) -> None:
    if verb == "worker":
        options = WorkerOptions(heartbeat=1.5, silent_after=5)
        asyncio.run(Worker([app], options).run_until_signalled())
    elif verb == "start":
        app.submit(publishing.input(TEXT), thread=TEXT)
    else:
        app.wait(TEXT)  # until it asks
        app.answer(TEXT, True)
        print(json.dumps({**app.wait(TEXT).state["result"], "effects": effects()}))


if __name__ == "__main__":
    main(sys.argv[1])
