"""Workflows of one step in a queue of DBOS: prints the seconds from its launch to the last end.

python -m benchmarks.dbos_queue URL RUNS
"""

from __future__ import annotations

import sys
import time
from importlib import import_module


def main(url: str, runs: int) -> None:
    """Enqueue, then launch and wait."""
    dbos = import_module("dbos")
    DBOS = dbos.DBOS  # noqa: N806 - a class

    def add(number: int) -> int:
        return number + 1

    step = DBOS.step(name="add")(add)

    def one_step(number: int) -> int:
        return int(step(number))

    DBOS.workflow(name="one_step")(one_step)

    def launched() -> None:
        DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False})
        DBOS.launch()
        DBOS.register_queue("bench", worker_concurrency=100, polling_interval_sec=0.1)

    launched()  # makes its tables
    version = DBOS.application_version
    DBOS.destroy()
    client = dbos.DBOSClient(system_database_url=url)
    options = {"queue_name": "bench", "workflow_name": "one_step", "app_version": version}
    handles = [client.enqueue(options, number) for number in range(runs)]
    began = time.perf_counter()
    launched()
    for handle in handles:
        handle.get_result()
    print(time.perf_counter() - began)
    client.destroy()
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
