"""``milecastle doctor``: check the setup and say what to do.

Nothing is changed: an outdated store is not opened, because opening would migrate it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import click

from milecastle.app.settings import NAMES
from milecastle.cli.addressing import command_text
from milecastle.cli.exits import FAILED, OK, UNREACHABLE
from milecastle.cli.loading import LoadError
from milecastle.cli.printing import counted, print_document, print_lines, print_table
from milecastle.cli.session import MISSING, Session, masked, path_of
from milecastle.cli.verb import app_argument, verb
from milecastle.errors import FormatTooNew, MilecastleError, Unavailable
from milecastle.ports.claims import ClaimStore
from milecastle.ports.maintenance import CheckVerdict, Pending
from milecastle.ports.store import offers
from milecastle.version import __version__
from milecastle.views.documents import DoctorCheck, DoctorDocument
from milecastle.views.reasons import fleet_troubles

_LITTLE_ROOM = 1 << 30
_NO_ROOM = 100 << 20
_SECONDS_APART = 5.0


def examine(session: Session) -> Iterator[DoctorCheck]:
    """Every check, in an order in which the first that failed is the one to fix."""
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


def _line(name: str, verdict: CheckVerdict, found: str, advice: str = "") -> DoctorCheck:
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
        f"{name} = {masked(setting.value) if name == 'store' else setting.value} ({setting.origin})"
        for name, setting in found.items()
        if setting is not None
    ]
    said = (", ".join(parts) or "none: flags and defaults apply") + session.refused_file
    return _line("settings", "warning" if session.refused_file else "ok", said)


def _store(session: Session, url: str) -> Iterator[DoctorCheck]:
    """Migrations, permissions, disk, the store itself, the clock: the same for every store."""
    path = path_of(url)
    if path is not None and not path.exists():
        advice = "the first run creates it" if path.parent.is_dir() else "create the folder first"
        verdict: CheckVerdict = "warning" if path.parent.is_dir() else "failed"
        yield _line("store", verdict, f"there is nothing at {path} yet", advice)
        return
    try:
        place = session.unopened(url)
        checks = place.examine() if place else ()
        pending = place.pending_migrations() if place else None
    except MilecastleError as error:
        yield _unusable(error, path)
        return
    if place is None:
        migrations = _line("migrations", "ok", f"nothing is known about them: {MISSING}")
    else:
        migrations = _pending(pending, path)
    yield migrations
    if path is not None:
        yield _permissions(path)
        yield _room(path)
    own = {check.name: check for check in checks}
    more, clock = own.pop("store", None), own.pop("clock", None)
    yield from (_line(one.name, one.verdict, one.found, one.advice) for one in own.values())
    if migrations.verdict == "ok" and not any(one.verdict == "failed" for one in own.values()):
        yield _reached(session, url, f" ({more.found})" if more else "")
        yield from _fleet(session, url)
        if clock is None:
            yield _clock(session, url)
    if clock is not None:
        yield _line(clock.name, clock.verdict, clock.found, clock.advice)


def _unusable(error: MilecastleError, path: Path | None) -> DoctorCheck:
    if isinstance(error, FormatTooNew):
        place = "the file has" if path else "the tables have"
        found = f"{place} version {error.found}, this library reads {error.supported}"
        return _line("migrations", "failed", found, "upgrade milecastle")
    if path is not None:
        return _line("migrations", "failed", error.message, "is it the right file?")
    is_away = isinstance(error, Unavailable)
    advice = "is the server running, and is the URL correct?" if is_away else ""
    return _line("store", "failed", error.message, advice)


def _pending(pending: Pending | None, path: Path | None) -> DoctorCheck:
    if pending is None:
        return _line("migrations", "ok", f"{'files need' if path else 'this store needs'} none")
    version, latest = pending.version, pending.latest
    if version == latest:
        return _line("migrations", "ok", f"the tables are up to date (version {version})")
    return _line(
        "migrations",
        "warning",
        f"the tables have version {version}, this library writes version {latest}",
        "`milecastle migrate --print` shows what is missing, `milecastle migrate` applies it",
    )


def _permissions(path: Path) -> DoctorCheck:
    folder = path if path.is_dir() else path.parent
    closed = [str(place) for place in (path, folder) if not os.access(place, os.R_OK | os.W_OK)]
    if closed:
        found = f"{' and '.join(dict.fromkeys(closed))} cannot be written"
        return _line("permissions", "failed", found, "give this user write permission there")
    return _line("permissions", "ok", f"{path} can be read and written")


def _room(path: Path) -> DoctorCheck:
    free = shutil.disk_usage(path).free
    found = f"{free / (1 << 30):.1f} GiB free"
    if free < _NO_ROOM:
        advice = "free some space: a commit that finds no space stops its run"
        return _line("disk", "failed", found, advice)
    if free < _LITTLE_ROOM:
        return _line("disk", "warning", found, "make room, or prune with `milecastle gc`")
    return _line("disk", "ok", found)


def _reached(session: Session, url: str, more: str = "") -> DoctorCheck:
    advice = "`milecastle verify` reports the details"
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            count = len(session.open(url).threads(session.tenant, limit=1000))
    except MilecastleError as error:
        return _line("store", "failed", error.message, advice)
    if told:
        return _line("store", "failed", str(told[0].message), advice)
    threads = "1000 threads or more" if count == 1000 else counted(count, "thread")
    return _line("store", "ok", f"{masked(url)} has {threads} of '{session.tenant}'{more}")


def _fleet(session: Session, url: str) -> Iterator[DoctorCheck]:
    try:
        store = session.open(url)
        troubles = fleet_troubles(store) if offers(store, ClaimStore) else None
    except MilecastleError:
        return  # the check of the store has reported it
    if troubles is None:
        return
    for one in troubles:
        name = "workers" if one.code == "silent" else "queue"
        yield _line(name, "warning", one.text, one.advice)
    if not troubles:
        yield _line("queue", "ok", "nothing waits for longer than it should")


def _clock(session: Session, url: str) -> DoctorCheck:
    try:
        with warnings.catch_warnings(action="ignore"):  # the check of the store reports it
            threads = session.open(url).threads(session.tenant, limit=1000)
    except MilecastleError:
        threads = ()
    newest = max((info.started_at for info in threads), default=0)
    ahead = newest / 1_000_000 - time.time()
    if ahead > _SECONDS_APART:
        found = f"a run started {ahead:.0f} s in the future"
        return _line("clock", "warning", found, "correct the clock: ages are computed from it")
    return _line("clock", "ok", "no run started in the future")


def _app(session: Session, reference: str) -> DoctorCheck:
    if session.named_app is None:
        found = f"{reference} is configured but was not imported"
        return _line("app", "ok", found, f"`{command_text('check', reference)}` imports it")
    try:
        app = session.app()
    except (MilecastleError, LoadError) as error:
        advice = f"`{command_text('check', reference)}` reports the details"
        return _line("app", "failed", error.message, advice)
    kept = "" if app.has_store else ", and no store"
    return _line("app", "ok", f"{reference} has {counted(len(app.graph.nodes), 'node')}{kept}")


@click.command("doctor")
@app_argument
@verb
def command(session: Session) -> None:
    """Check store, versions, permissions, clock, disk, queue and workers; suggest fixes.

    Nothing is changed. Exit code 4: the store cannot be reached. 1: something else failed.
    """
    checks = tuple(examine(session))
    failed = [check for check in checks if check.verdict == "failed"]
    if session.as_json:
        print_document(DoctorDocument(ok=not failed, checks=checks))
    else:
        rows = [[check.name, check.verdict, check.found] for check in checks]
        print_table(["CHECK", "VERDICT", "FOUND"], rows)
        print_lines(f"{check.name}: {check.advice}" for check in checks if check.advice)
    unreachable = any(check.name == "store" for check in failed)
    sys.exit(UNREACHABLE if unreachable else FAILED if failed else OK)
