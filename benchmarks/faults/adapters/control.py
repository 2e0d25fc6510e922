"""Not a runtime: controls that the oracle must catch.

It runs an order from its beginning whenever it is started, because it records nothing. With
``FAULTS_CHEAT=skip`` it records that it is done, and never ships; with ``answer`` it makes the
approval up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.faults.outside import ITEMS, call, final_state

CHEAT = os.environ.get("FAULTS_CHEAT", "forget")
FOLDER = Path(os.environ["FAULTS_EFFECTS"]).parent


def drive(order: str) -> None:
    call(order, "reserve")
    call(order, "charge")
    for item in ITEMS:
        call(order, "pack", item)
    while not (answer := FOLDER / f"{order}.approval").exists():
        (FOLDER / f"{order}.waiting").touch()
        time.sleep(0.05)
    approved = "eve" if CHEAT == "answer" else answer.read_text("utf-8")
    if CHEAT != "skip":
        call(order, "ship")
    call(order, "notify")
    end = FOLDER / f"{order}.done"
    end.write_text(json.dumps(final_state(order, approved)), "utf-8")


def work() -> None:
    taken = set[str]()
    with ThreadPoolExecutor(8) as threads:
        while True:
            for file in FOLDER.glob("*.order"):
                if file.stem not in taken and not (FOLDER / f"{file.stem}.done").exists():
                    taken.add(file.stem)
                    threads.submit(drive, file.stem)
            time.sleep(0.05)


def status(order: str) -> dict[str, object]:
    for word in ("done", "waiting", "order"):
        if (file := FOLDER / f"{order}.{word}").exists():
            return {"status": word, "state": json.loads(file.read_text("utf-8") or "null")}
    return {"status": "none", "state": None}


def main(verb: str, *given: str) -> None:
    """Do one verb of the fault harness."""
    if verb == "work":
        work()
    elif verb == "start":
        for order in given:
            (FOLDER / f"{order}.order").touch()
    elif verb == "approve":
        (FOLDER / f"{given[0]}.new").write_text(given[1], "utf-8")
        (FOLDER / f"{given[0]}.new").rename(FOLDER / f"{given[0]}.approval")
    elif verb == "status":
        print(json.dumps({order: status(order) for order in given}))


if __name__ == "__main__":
    main(*sys.argv[1:])
