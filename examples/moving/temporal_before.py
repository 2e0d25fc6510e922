"""Publishing a text, on Temporal: translate it in parallel, ask an editor, wait, publish.

temporal server start-dev
python temporal_before.py worker     # as many as you like; start another if one dies
python temporal_before.py start
python temporal_before.py approve    # and wait for the result
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

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


# -- the workflow --------------------------------------------------------------------------

LIMITS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=5),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=0.1)),
}


@activity.defn
def translate(text: str, language: str) -> str:
    return request(f"{text}-{language}", "translate", language=language)


@activity.defn
def publish(text: str, translations: list[str]) -> str:
    return request(f"{text}-publish", "publish", translations=translations)


@workflow.defn
class Publishing:
    def __init__(self) -> None:
        self.approved: bool | None = None

    @workflow.signal
    def approve(self, approved: bool) -> None:
        self.approved = approved

    @workflow.run
    async def run(self, text: str) -> dict[str, Any]:
        translations = await asyncio.gather(
            *(
                workflow.execute_activity(translate, args=[text, language], **LIMITS)
                for language in LANGUAGES
            )
        )
        await workflow.wait_condition(lambda: self.approved is not None)
        url = None
        if self.approved:
            await asyncio.sleep(1)  # a durable timer
            url = await workflow.execute_activity(publish, args=[text, translations], **LIMITS)
        return {"translations": translations, "approved": self.approved, "url": url}


# -- the program ---------------------------------------------------------------------------


async def main(verb: str) -> None:
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "localhost:7233"))
    if verb == "worker":
        with ThreadPoolExecutor(8) as threads:
            activities = [translate, publish]
            await Worker(
                client,
                task_queue="texts",
                workflows=[Publishing],
                activities=activities,
                activity_executor=threads,
            ).run()
    elif verb == "start":
        await client.start_workflow(Publishing.run, TEXT, id=TEXT, task_queue="texts")
    else:
        handle = client.get_workflow_handle_for(Publishing.run, TEXT)
        await handle.signal(Publishing.approve, True)
        print(json.dumps({**await handle.result(), "effects": effects()}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
