"""Calling the command line in a process whose output is a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys


def run_at_a_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """What a terminal receives from a call of the command line."""
    import pty

    near, far = pty.openpty()
    command = [sys.executable, "-m", "milecastle", *arguments]
    with os.fdopen(near, "rb", buffering=0) as terminal:
        done = subprocess.Popen(
            command, stdout=far, stderr=far, env={**os.environ, "TERM": "xterm", **environment}
        )
        os.close(far)
        written = io.BytesIO()
        try:
            while part := terminal.read(65536):
                written.write(part)
        except OSError:  # the far side is closed
            pass
        done.wait(timeout=60)
    return written.getvalue().decode()
