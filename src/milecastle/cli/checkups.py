"""What ``doctor`` looks at. Each check gives lines with a verdict and what to do.

Nothing is changed: a store that is not up to date is not opened, because opening would migrate it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from milecastle.app.settings import NAMES
from milecastle.cli.care_documents import DoctorCheck
from milecastle.cli.loading import LoadError
from milecastle.cli.places import masked, path_of
from milecastle.cli.printing import counted
from milecastle.cli.session import Session
from milecastle.errors import MilecastleError
from milecastle.version import __version__

__all__ = ["examine"]

Verdict = Literal["ok", "warning", "failed"]

_LITTLE_ROOM = 1 << 30
_NO_ROOM = 100 << 20
_SECONDS_APART = 5.0


def examine(session: Session) -> Iterator[DoctorCheck]:
    """Every check, in an order in which the first that failed is the one to mend."""
    yield _versions()
    yield _settings(session)
    found = session.url()
    if found is not None:
        yield from _store(session, found.value)
    elif session.app_reference is None:
        advice = "--store sqlite:///runs.db, MILECASTLE_STORE, or [tool.milecastle] store = ..."
        yield _line("store", "warning", "none is set", advice)
    if session.app_reference:
        yield _app(session, session.app_reference)


def _line(name: str, verdict: Verdict, found: str, advice: str = "") -> DoctorCheck:
    return DoctorCheck(name=name, verdict=verdict, found=found, advice=advice)


def _versions() -> DoctorCheck:
    import platform
    import sqlite3
    from importlib.metadata import PackageNotFoundError, version

    parts = [f"milecastle {__version__}", f"Python {platform.python_version()}"]
    parts.append(f"SQLite {sqlite3.sqlite_version}")
    for package in ("psycopg", "rich"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return _line("versions", "ok", ", ".join(parts))


def _settings(session: Session) -> DoctorCheck:
    found = {name: getattr(session.settings, name) for name in NAMES}
    parts = [
        f"{name} = {masked(setting.value)} ({setting.origin})"
        for name, setting in found.items()
        if setting is not None
    ]
    return _line("settings", "ok", ", ".join(parts) or "none: flags and defaults hold")


def _store(session: Session, url: str) -> Iterator[DoctorCheck]:
    """Migrations, permissions, disk, the store itself, the clock: the same for every store."""
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        yield from _postgres(session, url)
        return
    path = path_of(url)
    if path is None:
        yield _reached(session, url)
        return
    if not path.exists():
        advice = "the first run makes it" if path.parent.is_dir() else "make the folder first"
        verdict: Verdict = "warning" if path.parent.is_dir() else "failed"
        yield _line("store", verdict, f"there is nothing at {path} yet", advice)
        return
    pending = _format(path) if scheme == "sqlite" else _line("migrations", "ok", "files need none")
    yield pending
    yield _permissions(path)
    yield _room(path)
    if pending.verdict == "ok":
        yield _reached(session, url)
        yield _clock(session, url)


def _postgres(session: Session, url: str) -> Iterator[DoctorCheck]:
    from milecastle.cli.postgres_servers import look_at

    try:
        server = look_at(url)
    except MilecastleError as error:
        yield _line("store", "failed", error.message, "is the server up, and the URL right?")
        return
    yield _pending(server.version, server.latest)
    if server.closed_tables:
        advice = "GRANT SELECT, INSERT, UPDATE, DELETE on them, or open the store as their owner"
        found = f"{server.closed_tables} tables are closed to this role"
        yield _line("permissions", "failed", found, advice)
    else:
        yield _line("permissions", "ok", f"this role may use schema {server.schema}")
    yield _line("disk", "ok", "on the server: watch it there")
    if server.version == server.latest and not server.closed_tables:
        yield _reached(session, url, f" (PostgreSQL {server.release})")
    apart = abs(server.clock_ahead)
    yield _line(
        "clock",
        "ok" if apart < _SECONDS_APART else "warning",
        f"the server's clock and this one are {apart:.1f} s apart",
        "" if apart < _SECONDS_APART else "let both follow a time server: ages are told by it",
    )


def _pending(version: int, latest: int) -> DoctorCheck:
    if version == latest:
        return _line("migrations", "ok", f"the tables are up to date (version {version})")
    return _line(
        "migrations",
        "warning",
        f"the tables have version {version}, this library writes version {latest}",
        "`milecastle migrate --print` shows what is missing, `milecastle migrate` does it",
    )


def _format(path: Path) -> DoctorCheck:
    from milecastle.cli.sqlite_files import FORMAT_VERSION, version_of_file

    try:
        version = version_of_file(path)
    except MilecastleError as error:
        return _line("migrations", "failed", error.message, "is it the right file?")
    if version > FORMAT_VERSION:
        found = f"the file has version {version}, this library reads {FORMAT_VERSION}"
        return _line("migrations", "failed", found, "upgrade milecastle")
    return _pending(version, FORMAT_VERSION)


def _permissions(path: Path) -> DoctorCheck:
    folder = path if path.is_dir() else path.parent
    closed = [str(place) for place in (path, folder) if not os.access(place, os.R_OK | os.W_OK)]
    if closed:
        found = f"{' and '.join(dict.fromkeys(closed))} cannot be written"
        return _line("permissions", "failed", found, "give this user the right to write there")
    return _line("permissions", "ok", f"{path} can be read and written")


def _room(path: Path) -> DoctorCheck:
    free = shutil.disk_usage(path).free
    found = f"{free / (1 << 30):.1f} GiB are free"
    if free < _NO_ROOM:
        return _line("disk", "failed", found, "make room: a commit that finds none stops its run")
    if free < _LITTLE_ROOM:
        return _line("disk", "warning", found, "make room, or let go with `milecastle gc`")
    return _line("disk", "ok", found)


def _reached(session: Session, url: str, more: str = "") -> DoctorCheck:
    try:
        count = len(session.open(url).threads(session.tenant, limit=1000))
    except MilecastleError as error:
        return _line("store", "failed", error.message, "`milecastle verify` tells more")
    threads = "1000 threads or more" if count == 1000 else counted(count, "thread")
    return _line("store", "ok", f"{masked(url)} has {threads} of '{session.tenant}'{more}")


def _clock(session: Session, url: str) -> DoctorCheck:
    """Nothing that was recorded may lie in the future."""
    try:
        threads = session.open(url).threads(session.tenant, limit=1000)
    except MilecastleError:
        threads = ()
    newest = max((info.started_at for info in threads), default=0)
    ahead = newest / 1_000_000 - time.time()
    if ahead > _SECONDS_APART:
        found = f"a run began {ahead:.0f} s in the future"
        return _line("clock", "warning", found, "set the clock right: ages are told by it")
    return _line("clock", "ok", "no run began in the future")


def _app(session: Session, reference: str) -> DoctorCheck:
    try:
        app = session.app()
    except (MilecastleError, LoadError) as error:
        return _line("app", "failed", error.message, f"`milecastle check {reference}` tells more")
    kept = "" if app.store else ", and no store"
    return _line("app", "ok", f"{reference} has {counted(len(app.graph.nodes), 'node')}{kept}")
