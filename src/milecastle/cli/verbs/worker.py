from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from milecastle.cli.printing import print_document, say
from milecastle.cli.session import Session
from milecastle.cli.verb import apps_argument, deliver_to_option, verb
from milecastle.views.documents import WorkerDocument

if TYPE_CHECKING:
    from milecastle.fleet.processes import Seat
    from milecastle.fleet.worker import Worker


def _names(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...]:
    names = [] if value is None else [name.strip() for name in value.split(",")]
    if not all(names):
        raise click.BadParameter("write names of databases: a,b")
    return tuple(dict.fromkeys(names))


@click.command("worker")
@apps_argument
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
    help="How many threads run at once; 100 if not set.",
)
@click.option(
    "--poll",
    type=float,
    metavar="SECONDS",
    help="How often to look for due threads; 1 on PostgreSQL, otherwise 0.2.",
)
@click.option(
    "--silent-after",
    type=float,
    metavar="SECONDS",
    help="Seconds without a heartbeat before other workers take over its threads; 15 if not set.",
)
@click.option(
    "--grace",
    type=float,
    metavar="SECONDS",
    help="How long running nodes may take after SIGTERM; 30 if not set.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Start N worker processes, and restart those that end; 1 if not set.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve /metrics, /healthz and /readyz; with --processes on ports PORT, PORT + 1, ...",
)
@click.option(
    "--stuck-after",
    type=float,
    metavar="SECONDS",
    help="Report runs that have not moved for so long; 600 if not set.",
)
@deliver_to_option
@click.option(
    "--databases",
    metavar="NAME,NAME",
    callback=_names,
    help="Serve the threads in these databases of the map; in all of them if not set.",
)
@click.option("--until-idle", is_flag=True, help="Run what is due, and end when nothing is.")
@verb
def command(
    session: Session,
    concurrency: int,
    poll: float | None,
    silent_after: float | None,
    grace: float | None,
    processes: int,
    metrics: str | None,
    stuck_after: float | None,
    deliver_to: tuple[str, ...],
    databases: tuple[str, ...],
    until_idle: bool,
) -> None:
    """Run submitted threads, many at once, until SIGTERM or Ctrl-C.

    Start as many as you like, on as many machines as you like, with the same store. On SIGTERM
    each run is released to other workers with its current step; a second signal ends it at once.
    """
    import asyncio
    import logging
    import sys

    from milecastle.fleet.probes import parse_address
    from milecastle.fleet.processes import Processes, take_seat
    from milecastle.fleet.worker import NO_WORKERS, Worker, WorkerOptions
    from milecastle.support.platforms import refuse_windows

    refuse_windows("milecastle worker is", NO_WORKERS)
    seat = take_seat()
    address = None if metrics is None else parse_address(metrics)
    shown = "%(asctime)s %(levelname)s %(message)s"
    shown = shown if processes == 1 else f"%(process)d {shown}"
    logging.basicConfig(level=logging.INFO, format=shown)
    if processes > 1 and seat is None:
        if until_idle or session.as_json:
            raise click.UsageError("--processes works with neither --until-idle nor --json")
        sys.exit(asyncio.run(Processes(processes).run()))
    given = {"poll": poll, "silent_after": silent_after, "grace": grace, "stuck_after": stuck_after}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if silent_after is not None:
        changed["heartbeat"] = silent_after / 3
    with session.user_code():
        changed |= {"deliver_to": deliver_to, "databases": databases}
        options = WorkerOptions(concurrency=concurrency, **changed)
        worker = Worker(session.apps(), options)
        _spare_the_collector()
        asyncio.run(_serve(worker, seat, address, until_idle))
    from milecastle.cli.session import end_abandoned

    say(f"worker {worker.id} stopped")
    if session.as_json:
        print_document(WorkerDocument(id=worker.id))
    if worker.has_abandoned:
        end_abandoned(session)


def _spare_the_collector() -> None:
    """Collect rarely: what is loaded stays for good, and runs leave nothing to collect.

    Otherwise it takes an eighth of a worker's processor time.
    """
    import gc

    gc.freeze()
    gc.set_threshold(10_000)


async def _serve(
    worker: Worker, seat: Seat | None, address: tuple[str, int] | None, until_idle: bool
) -> None:
    from contextlib import AbstractContextManager, nullcontext

    from milecastle.fleet.probes import Probes

    probes: AbstractContextManager[None] = nullcontext()
    if address is not None:
        host, port = address
        probes = Probes(worker, (host, port + seat.number if seat and port else port)).serving()
    with probes:
        if seat is not None:
            await seat.serve(worker)
        elif until_idle:
            await worker.run_until_idle()
        else:
            await worker.run_until_signalled()
