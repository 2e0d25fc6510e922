"""A TCP proxy between processes and PostgreSQL, which loses answers and holds messages back.

Each connection is known by the ``application_name`` with which it was opened; its first letter says
what the process is. A fault waits until one of these sends a message of a kind, as its first words
say: so the rare ones, a commit say, are met as often as the heartbeats, and those that write more
often. Inside a transaction the message before it is part of its kind.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from random import Random
from threading import Lock, Thread
from time import monotonic

import msgspec

__all__ = ["Proxy"]

_PREPARED = re.compile(rb"_pg3_[0-9]+")
_WRITES = re.compile(rb"\b(INSERT INTO|UPDATE|DELETE FROM)\b")
_WORDS = re.compile(rb"[A-Za-z_][A-Za-z_0-9 ]{4,}")


class _Fault(msgspec.Struct):
    """What happens to the next message of a kind: it is held back, or its answer is lost."""

    kind: str
    act: Callable[[str], object]
    loses: bool


class _Link(msgspec.Struct):
    """A connection; ``prepared`` has the words of its prepared statements."""

    name: str
    within: str = ""
    has_written: bool = False
    prepared: dict[str, str] = {}
    loses: Callable[[str], object] | None = None


class Proxy:
    """Listens on a port of its own, in front of the server's."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._lock = Lock()
        self._armed: dict[str, _Fault] = {}
        self._refused: dict[str, float] = {}
        self._kinds: dict[str, dict[str, bool]] = {}
        Thread(target=self._accept, daemon=True).start()

    def hold(self, letter: str, random: Random, act: Callable[[str], object]) -> None:
        """Call ``act`` with its name when a process is about to send a message of some kind."""
        self._arm(letter, _Fault(self._kind(letter, random), act, False))

    def lose_answer(self, letter: str, random: Random, seconds: float) -> None:
        """Swallow the answer to a message of some kind, cut the connection, and refuse new ones.

        The server has done what it was asked to do.
        """

        def refuse(name: str) -> None:
            self._refused[name] = monotonic() + seconds

        self._arm(letter, _Fault(self._kind(letter, random), refuse, True))

    def disarm(self) -> None:
        """Nothing happens any more."""
        with self._lock:
            self._armed.clear()
            self._refused.clear()

    def close(self) -> None:
        self._listening.close()

    def _kind(self, letter: str, random: Random) -> str:
        """Any message, one of a kind, or most of the time one that writes, often a commit."""
        with self._lock:
            kinds = dict(self._kinds.get(letter, {}))
        writing = [kind for kind, writes in kinds.items() if writes]
        commits = [kind for kind in writing if kind.endswith("> COMMIT")]
        if commits and random.random() < 0.3:
            return random.choice(commits)
        return random.choice(writing if writing and random.random() < 0.75 else ["", *kinds])

    def _arm(self, letter: str, fault: _Fault) -> None:
        with self._lock:
            self._armed[letter] = fault

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):
            first = client.recv(65536)
            found = re.search(rb"application_name\0([^\0]*)\0", first)
            link = _Link(found.group(1).decode() if found else "")
            if self._refused.get(link.name, 0.0) <= monotonic():
                server = socket.create_connection(("127.0.0.1", self._server))
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.sendall(first)
                Thread(target=self._copy, args=(server, client, link, True), daemon=True).start()
                self._copy(client, server, link, False)
        client.close()

    def _copy(
        self, source: socket.socket, target: socket.socket, link: _Link, are_answers: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not are_answers:
                    self._asked(link, data)
                elif link.loses is not None:
                    link.loses(link.name)
                    break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _asked(self, link: _Link, data: bytes) -> None:
        """A process sends a message: let happen what waits for it."""
        kind, writes = _kind_of(data, link.prepared), bool(_WRITES.search(data))
        if link.within or kind == "BEGIN":
            ends = kind in ("COMMIT", "ROLLBACK")
            writes = link.has_written if ends else writes
            link.has_written = not ends and (writes or link.has_written)
            kind, link.within = f"{link.within} > {kind}", "" if ends else kind
        letter = link.name[:1]
        with self._lock:
            if kind:
                kinds = self._kinds.setdefault(letter, {})
                kinds[kind] = writes or kinds.get(kind, False)
            fault = self._armed.get(letter)
            if fault is None or fault.kind not in ("", kind):
                return
            del self._armed[letter]
        if fault.loses:
            link.loses = fault.act
        else:
            fault.act(link.name)


def _kind_of(data: bytes, prepared: dict[str, str]) -> str:
    """The first words of a message; of a prepared statement, those with which it was prepared."""
    found = [words.group()[:40].decode() for words in _WORDS.finditer(data[:400])]
    name = _PREPARED.search(data[:400])
    if name is None:
        return found[0] if found else ""
    key = name.group().decode()
    text = next((words for words in found if "_pg3_" not in words), "")
    return prepared.setdefault(key, text) if data[:1] == b"P" else prepared.get(key, "")
