from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from milecastle.app.runs.submission import Handle
from milecastle.cli.printing import print_document, print_lines, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_app, verb
from milecastle.views.documents import SchedulesDocument, TickLine
from milecastle.views.lines import schedule_line, schedule_row


def _moment(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> datetime | None:
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"'{value}' is not a time: write 2026-11-01 or 2026-11-01T03:00:00+01:00"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@click.command("schedules")
@click.argument(
    "action",
    metavar="[list|run|backfill|pause|resume]",
    type=click.Choice(["list", "run", "backfill", "pause", "resume"]),
    default="list",
)
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--from", "start", metavar="TIME", callback=_moment, help="Backfill ticks from this time on."
)
@click.option(
    "--to", "end", metavar="TIME", callback=_moment, help="Backfill ticks before this time."
)
@app_option
@verb
def command(
    session: Session, action: str, name: str | None, start: datetime | None, end: datetime | None
) -> None:
    """List the schedules of a graph; run, backfill, pause or resume one.

    run submits a run now, besides those of the ticks. backfill submits one for every tick of a
    time in the past whose thread does not exist; it can be repeated. A paused schedule misses its
    ticks until it is resumed.
    """
    from milecastle.fleet.schedules import Schedules

    app, _ = stored_app(session)
    schedules, handles = Schedules(app), list[Handle[Any]]()
    if action != "list" and name is None:
        raise click.UsageError(f"which schedule? Write: milecastle schedules {action} NAME")
    if action == "backfill":
        if start is None or end is None:
            raise click.UsageError("backfill needs --from and --to")
        with session.user_code():
            handles = schedules.backfill(name or "", start, end)
    elif action == "run":
        with session.user_code():
            handles = [schedules.run(name or "")]
    elif action == "pause":
        schedules.pause(name or "")
    elif action == "resume":
        schedules.resume(name or "")
    done = [TickLine(thread=each.thread.thread, reused=each.reused) for each in handles]
    lines = tuple(schedule_line(info) for info in schedules.all())
    if session.as_json:
        print_document(SchedulesDocument(schedules=lines, submitted=tuple(done)))
    elif action in ("run", "backfill"):
        print_lines(f"{each.thread}{' (exists)' if each.reused else ''}" for each in done)
        if action == "backfill":
            say(f"{sum(not each.reused for each in done)} of {len(done)} ticks were submitted")
    elif not lines:
        say("the graph has no schedules: declare one with graph.schedule(...)")
    else:
        head = ["NAME", "WHEN", "STATUS", "NEXT", "LAST", "FIRED", "SKIPPED", "MISSED"]
        print_table(head, [schedule_row(line) for line in lines])
