"""Steps of DBOS: prints the seconds of one workflow, and of many at once.

python -m benchmarks.dbos_flows URL WORKFLOWS STEPS

A first workflow is not in the figures.
"""

from __future__ import annotations

import sys
from importlib import import_module
from time import perf_counter


def main(url: str, workflows: int, steps: int) -> None:
    """Run workflows of as many steps, one and then many beside each other."""
    dbos = import_module("dbos")
    DBOS = dbos.DBOS  # noqa: N806 - a class

    def add(number: int) -> int:
        return number + 1

    add_one = DBOS.step(name="add")(add)

    def count(most: int) -> int:
        found = 0
        while found < most:
            found = add_one(found)
        return found

    workflow = DBOS.workflow(name="count")(count)
    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False})
    DBOS.launch()
    workflow(10)
    began = perf_counter()
    workflow(steps)
    between = perf_counter()
    handles = [DBOS.start_workflow(workflow, steps) for _ in range(workflows)]
    if {handle.get_result() for handle in handles} != {steps}:
        raise AssertionError("steps were lost")
    print(between - began, perf_counter() - between)
    DBOS.destroy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
