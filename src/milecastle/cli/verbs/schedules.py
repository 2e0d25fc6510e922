"""``milecastle schedules``: what the schedules of a graph are doing; backfill, pause, resume."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from milecastle.cli.printing import print_document, print_lines, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, stored_app, verb
from milecastle.views.documents import BackfillLine, SchedulesDocument
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
    metavar="[list|backfill|pause|resume]",
    type=click.Choice(["list", "backfill", "pause", "resume"]),
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
    """List the schedules of a graph; backfill, pause or resume one.

    backfill submits a run for every tick of a time in the past whose thread does not exist; it can
    be repeated. A paused schedule misses its ticks until it is resumed.
    """
    from milecastle.fleet.schedules import Schedules

    app, _ = stored_app(session)
    schedules, done = Schedules(app), list[BackfillLine]()
    if action != "list" and name is None:
        raise click.UsageError(f"which schedule? Write: milecastle schedules {action} NAME")
    if action == "backfill":
        if start is None or end is None:
            raise click.UsageError("backfill needs --from and --to")
        with session.user_code():
            handles = schedules.backfill(name or "", start, end)
        done = [BackfillLine(thread=each.thread.thread, reused=each.reused) for each in handles]
    elif action == "pause":
        schedules.pause(name or "")
    elif action == "resume":
        schedules.resume(name or "")
    lines = tuple(schedule_line(info) for info in schedules.all())
    if session.as_json:
        print_document(SchedulesDocument(schedules=lines, backfilled=tuple(done)))
    elif action == "backfill":
        print_lines(f"{each.thread}{' (exists)' if each.reused else ''}" for each in done)
        say(f"{sum(not each.reused for each in done)} of {len(done)} ticks were submitted")
    elif not lines:
        say("the graph has no schedules: declare one with graph.schedule(...)")
    else:
        head = ["NAME", "WHEN", "STATUS", "NEXT", "LAST", "FIRED", "SKIPPED", "MISSED"]
        print_table(head, [schedule_row(line) for line in lines])
