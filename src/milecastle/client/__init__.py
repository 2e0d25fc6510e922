"""A client of a Milecastle server: the verbs of ``App``, over HTTP. Needs the extra ``client``.

Every call may be repeated after a lost response, and is, until the server has answered.
"""

from milecastle.client.asynchronous import AsyncClient
from milecastle.client.blocking import Client
from milecastle.client.documents import (
    AskedQuestion,
    CheckpointInfo,
    ClientEvent,
    RunResult,
    SentMessage,
    SubmittedRun,
    ThreadSnapshot,
    ThreadSummary,
    WaitingThread,
)

__all__ = [
    "AskedQuestion",
    "AsyncClient",
    "CheckpointInfo",
    "Client",
    "ClientEvent",
    "RunResult",
    "SentMessage",
    "SubmittedRun",
    "ThreadSnapshot",
    "ThreadSummary",
    "WaitingThread",
]
