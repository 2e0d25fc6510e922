"""Messages of DBOS: prints the seconds of sending them, and of receiving them in workflows.

python -m benchmarks.dbos_messages URL WORKFLOWS MESSAGES

Each workflow receives as many messages, sent before; the first workflow is not in the figures.
"""

from __future__ import annotations

import sys
from importlib import import_module
from threading import Event
from time import perf_counter

TOPIC = "go"


def main(url: str, workflows: int, messages: int) -> None:
    """Send to each workflow, then let it receive."""
    dbos = import_module("dbos")
    DBOS = dbos.DBOS  # noqa: N806 - a class
    sent, took = Event(), [0.0, 0.0]

    def receive_all(count: int) -> int:
        sent.wait()
        began = perf_counter()
        total = sum(int(DBOS.recv(TOPIC)) for _ in range(count))
        took[1] += perf_counter() - began
        return total

    workflow = DBOS.workflow(name="receive_all")(receive_all)
    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False})
    DBOS.launch()
    for number in range(workflows + 1):
        if number == 1:
            took[:] = [0.0, 0.0]
        handle = DBOS.start_workflow(workflow, messages)
        began = perf_counter()
        for value in range(messages):
            DBOS.send(handle.get_workflow_id(), value, TOPIC)
        took[0] += perf_counter() - began
        sent.set()
        if handle.get_result() != sum(range(messages)):
            raise AssertionError("messages were lost")
        sent.clear()
    print(*took)
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
