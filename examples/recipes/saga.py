"""A saga: steps at services that cannot share a transaction, and their compensation.

Each step is recorded when it is done. If a later one fails for good, what was done is undone in
reverse order; a crash in the middle continues there, undoing included. Each call has a key that is
the same in every attempt, for the services.
"""

from __future__ import annotations

from milecastle import Retry, StepFailed, flow, step

CALLS: list[str] = []


def at_service(action: str, key: str) -> None:
    CALLS.append(f"{action} {key}")
    if action == "charge" and key.startswith("poor"):
        raise ValueError("the card was refused")


UNDO = {"book": "cancel booking of", "reserve": "release", "charge": "pay back"}


def do(action: str, trip: str) -> None:
    at_service(action, trip)


def undo(action: str, trip: str) -> None:
    at_service(UNDO[action], trip)


@flow
def travel(trip: str) -> str:
    done: list[str] = []
    try:
        for action in ("book", "reserve", "charge"):
            step(do, action, trip, retry=Retry(attempts=2, delay=0.01))
            done.append(action)
    except StepFailed as failed:
        for action in reversed(done):
            step(undo, action, trip, retry=Retry(attempts=10, delay=0.01))
        return f"undone, because {failed.reason}"
    return f"done: {', '.join(done)}"


app = travel.compile(store="memory://")


def main() -> None:
    for trip in ("rich", "poor"):
        print(app.invoke(travel.input(trip), thread=trip).state["result"])
    print(CALLS)


if __name__ == "__main__":
    main()
