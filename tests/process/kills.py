"""Kills writers of one store at random moments, and says what became of what they wrote.

Run as ``python -m tests.process.kills URL KILLS SEED [cheat]``; prints JSON. Writers are forked,
so that thousands of kills take minutes; one in ten is killed before it is sure to have opened the
store. ``cheat`` makes them acknowledge before they write: the
control.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import closing
from functools import partial

from milecastle.model.keys import ThreadKey
from milecastle.stores.opening import find_store
from tests.process.acknowledging import Ledger, Verdict, end_writer, fork_writer, interruptible

THREADS = 3
PER_LEDGER = 20


def main(url: str, kills: int, seed: int, cheat: bool) -> dict[str, int]:
    """Kill ``kills`` writers and count what is lost, invented or wrong."""
    chance, verdict = random.Random(seed), Verdict()
    find_store(url).close()
    ledger: Ledger | None = None
    for number in interruptible(kills):
        if ledger is None or number % PER_LEDGER == 0:
            names = [f"thread {each} of {number}" for each in range(THREADS)]
            ledger = Ledger([ThreadKey("tenant", name) for name in names])
        kill_once(url, ledger, verdict, chance, cheat)
    return vars(verdict)


def kill_once(
    url: str, ledger: Ledger, verdict: Verdict, chance: random.Random, cheat: bool
) -> None:
    """Let a writer write for a moment, kill it, and look at what is left."""
    writer = fork_writer(partial(begin, url, ledger, cheat))
    if chance.random() < 0.9:
        ledger.wait(chance)
    verdict.wrong += not end_writer(writer)
    with closing(find_store(url)) as store:
        ledger.judge(store, verdict)


def begin(url: str, ledger: Ledger, early: bool) -> None:
    """Write until killed."""
    ledger.write(find_store(url), early=early)


if __name__ == "__main__":
    url, count, seed = sys.argv[1:4]
    print(json.dumps(main(url, int(count), int(seed), "cheat" in sys.argv)))
