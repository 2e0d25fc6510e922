"""Ending a process in which a sync node still runs."""

from __future__ import annotations

import logging
import os
import sys

from milecastle.cli.session import Session

__all__ = ["end_abandoned"]


def end_abandoned(session: Session) -> None:
    """End the process at once: a sync node cannot be stopped, and Python would wait for its end."""
    session.close()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
