"""Programs of ``edited_code`` as workflows of DBOS.

``python -m benchmarks.dbos_edited_code URL KIND CASES before`` starts them, and ends when all wait;
with ``after`` it continues them with the new code and prints each outcome.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import Any, Literal, cast

from benchmarks.edited_code import STOP, Kind, cases, fails, same, topics, values

GOES_ON = ("ENQUEUED", "PENDING")
Form = Literal["before", "after"]
PATIENCE = 60.0
"""Whatever waits for as long is stuck: all messages have been sent."""


def main(url: str, kind: Kind, number: int, form: Form) -> None:
    """Start the workflows, or continue them with edited code."""
    dbos = import_module("dbos")
    DBOS = dbos.DBOS  # noqa: N806 - a class
    edited = cases(kind, number)
    waiting: list[int] = []

    def run(case: int) -> list[Any]:
        return [made(*call, case) for call in edited[case][form]]

    def made(called: str, name: str, case: int) -> Any:
        if called == "receive":
            if name == STOP:
                waiting.append(case)
            return DBOS.recv(name, timeout_seconds=3600)
        options = {"name": name if kind == "functions" else called}
        try:
            return DBOS.run_step(options, same if called == "step" else fails, name)
        except ValueError as error:
            return str(error)

    def send(case: int, names: list[str]) -> None:
        for topic in names:
            DBOS.send(str(case), topic, topic)

    workflow = DBOS.workflow(name="run")(run)
    config = {"name": "edited", "system_database_url": url, "run_admin_server": False}
    DBOS(config={**config, "application_version": "pinned", "log_level": "CRITICAL"})
    DBOS.launch()
    if form == "before":
        for case in range(number):
            with dbos.SetWorkflowID(str(case)):
                DBOS.start_workflow(workflow, case)
            send(case, topics(edited[case]["before"]))
        while len(waiting) < number:
            time.sleep(0.05)
        time.sleep(1)
        os._exit(0)
    for case in range(number):
        send(case, [*topics(edited[case]["after"]), STOP])
    until = time.monotonic() + PATIENCE
    for case in range(number):
        workflow_id = str(case)
        while (found := DBOS.get_workflow_status(workflow_id)).status in GOES_ON:
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        result, expected = found.output, values(edited[case]["after"])
        if found.status in GOES_ON:
            print("stuck")
        elif found.status == "SUCCESS":
            print("right" if result == expected else "wrong")
        else:
            print("refused")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    url, chosen, wanted, at = sys.argv[1:]
    main(url, cast("Kind", chosen), int(wanted), cast("Form", at))
