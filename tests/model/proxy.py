"""A TCP proxy between processes and PostgreSQL, which loses answers and holds messages.

Each connection is known by the ``application_name`` with which it was opened. A fault is armed for
a name and a number of messages: it happens at that message, whatever it is.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic

__all__ = ["Proxy"]


class Proxy:
    """Listens on a port of its own. ``on_message`` faults are called with the message held back."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._lock = Lock()
        self._armed: dict[str, tuple[int, Callable[[], object], bool]] = {}
        self._refused: dict[str, float] = {}
        Thread(target=self._accept, daemon=True).start()

    def at_message(self, name: str, count: int, act: Callable[[], object]) -> None:
        """When a process sends its n-th message from now on, call ``act`` before it is passed on."""
        with self._lock:
            self._armed[name] = (count, act, False)

    def lose_answer(self, name: str, count: int, seconds: float) -> None:
        """Swallow the n-th answer from now on, cut the connection, and refuse new ones for a time.

        The server has done what it was asked to do.
        """

        def refuse() -> None:
            self._refused[name] = monotonic() + seconds

        with self._lock:
            self._armed[name] = (count, refuse, True)

    def disarm(self) -> None:
        """Nothing happens any more."""
        with self._lock:
            self._armed.clear()
            self._refused.clear()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):
            first = client.recv(65536)
            found = re.search(rb"application_name\0([^\0]*)\0", first)
            name = found.group(1).decode() if found else ""
            if self._refused.get(name, 0.0) > monotonic():
                client.close()
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.sendall(first)
            Thread(target=self._copy, args=(server, client, name, True), daemon=True).start()
            self._copy(client, server, name, False)
            return
        client.close()

    def _copy(
        self, source: socket.socket, target: socket.socket, name: str, are_answers: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                act = self._due(name, are_answers)
                if act is not None:
                    act()
                    if are_answers:
                        break
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _due(self, name: str, are_answers: bool) -> Callable[[], object] | None:
        with self._lock:
            armed = self._armed.get(name)
            if armed is None or armed[2] is not are_answers:
                return None
            count, act, _ = armed
            if count > 0:
                self._armed[name] = (count - 1, act, are_answers)
                return None
            del self._armed[name]
            return act
