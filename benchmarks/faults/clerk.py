"""A client that lives long: one JSON line in (a verb and its arguments), one out.

    python -m benchmarks.faults.clerk ADAPTER

So asking for a status does not cost a start of Python and of a runtime's client.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import io
import json
import sys


def main(adapter: str) -> None:
    """Answer until standard input ends."""
    module = importlib.import_module(f"benchmarks.faults.adapters.{adapter}")
    for line in sys.stdin:
        printed = io.StringIO()
        answer: dict[str, object]
        try:
            with contextlib.redirect_stdout(printed):
                result = module.main(*json.loads(line))
                if inspect.iscoroutine(result):
                    asyncio.run(result)
            answer = {"is_done": True, "printed": printed.getvalue()}
        except BaseException as error:
            answer = {"is_done": False, "error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
