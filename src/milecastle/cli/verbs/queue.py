from __future__ import annotations

import click
import msgspec.structs

from milecastle.app.runs.submission import require_shared
from milecastle.cli.printing import print_document, print_table, say
from milecastle.cli.session import Session
from milecastle.cli.verb import app_option, verb
from milecastle.ports.buckets import Bucket, Buckets, require_buckets
from milecastle.ports.limits import Limit
from milecastle.views.fleet import queue_document
from milecastle.views.lines import bucket_row, lane_row, limit_row


@click.command("queue")
@click.argument(
    "action",
    metavar="[limit|pause|resume|bucket]",
    required=False,
    type=click.Choice(["limit", "pause", "resume", "bucket"]),
)
@click.argument("graph", metavar="[GRAPH|BUCKET]", required=False)
@click.option(
    "--key",
    metavar="NAME",
    help="With limit: for each value of this limit key, as given to submit(keys=).",
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=0),
    metavar="N",
    help="With limit: how many threads run at once, at most.",
)
@click.option(
    "--rate",
    metavar="N/SECONDS",
    help="With limit: how many threads start in a period, at most. With bucket: what comes back.",
)
@click.option(
    "--burst",
    type=click.IntRange(min=1),
    metavar="N",
    help="With bucket: how much may be taken at once; a tenth of the rate if not given.",
)
@click.option(
    "--clear", is_flag=True, help="With limit: remove concurrency and rate. With bucket: remove it."
)
@app_option
@verb
def command(
    session: Session,
    action: str | None,
    graph: str | None,
    key: str | None,
    concurrency: int | None,
    rate: str | None,
    burst: int | None,
    clear: bool,
) -> None:
    """List how many threads are due, wait for their time, and run: by graph and tenant.

    queue limit, pause and resume change what workers may start: of a graph or of every graph, of
    the tenant in --tenant or of every tenant together. Running workers apply it from their next
    claim on. What is paused stays due, and what runs is not stopped. With --key the limit holds for
    each value of the key by itself: --key customer --concurrency 1 runs one of each customer.

    queue bucket sets a bucket from which runs take requests or tokens (ctx.take): of the tenant in
    --tenant, or of all tenants together.
    """
    store = require_shared(session.store())
    if action is None and (concurrency is not None or rate is not None or clear):
        raise click.UsageError(
            "--concurrency, --rate and --clear belong to: milecastle queue limit"
        )
    if key is not None and action != "limit":
        raise click.UsageError("--key belongs to: milecastle queue limit")
    if burst is not None and action != "bucket":
        raise click.UsageError("--burst belongs to: milecastle queue bucket")
    if action == "bucket":
        if concurrency is not None:
            raise click.UsageError("queue bucket takes no --concurrency")
        buckets = require_buckets(store.buckets)
        _change_bucket(buckets, graph, session.typed_tenant or "", rate, burst, clear)
    elif action is not None:
        scope = graph or "", session.typed_tenant or "", key or ""
        known = {(limit.graph, limit.tenant, limit.key): limit for limit in store.limits()}
        limit = known.get(scope, Limit(graph=scope[0], tenant=scope[1], key=scope[2]))
        store.set_limit(_changed(limit, action, concurrency, rate, clear))
    document = queue_document(store)
    lanes, limits = document.lanes, document.limits
    if session.as_json:
        print_document(document)
        return
    if lanes:
        head = ["GRAPH", "FINGERPRINT", "TENANT", "DUE", "LATER", "RUNNING", "OLDEST", "WORKERS"]
        print_table(head, [lane_row(line) for line in lanes])
    else:
        say(f"nothing is queued in {session.describe_store()}")
    if limits:
        head = ["LIMITED GRAPH", "TENANT", "KEY", "CONCURRENCY", "RATE", "PAUSED"]
        print_table(head, [limit_row(line) for line in limits])
    if document.buckets:
        head = ["BUCKET", "TENANT", "RATE", "LEFT", "WAITING", "NEXT"]
        print_table(head, [bucket_row(line) for line in document.buckets])


def _change_bucket(
    buckets: Buckets,
    name: str | None,
    tenant: str,
    rate: str | None,
    burst: int | None,
    clear: bool,
) -> None:
    if not name:
        raise click.UsageError("queue bucket needs a name: queue bucket gpt --rate 100/60")
    if clear == (rate is not None or burst is not None):
        raise click.UsageError("queue bucket needs --rate, --burst or both; or --clear")
    if clear:
        buckets.drop(tenant, name)
        return
    levels = [level.bucket for level in buckets.levels()]
    known = next((one for one in levels if (one.name, one.tenant) == (name, tenant)), None)
    if rate is not None:
        count, period = _rate(rate)
    elif known is not None:
        count, period = known.rate, known.period
    else:
        raise click.UsageError(f"there is no bucket '{name}' yet: it needs --rate")
    size = burst or (known.burst if known else 0)
    buckets.put(Bucket(name=name, tenant=tenant, rate=count, period=period, burst=size))


def _changed(
    limit: Limit, action: str, concurrency: int | None, rate: str | None, clear: bool
) -> Limit:
    if action != "limit":
        if concurrency is not None or rate is not None or clear:
            raise click.UsageError(f"queue {action} takes no --concurrency, --rate or --clear")
        return msgspec.structs.replace(limit, paused=action == "pause")
    if clear == (concurrency is not None or rate is not None):
        raise click.UsageError("queue limit needs --concurrency, --rate or both; or --clear")
    if clear:
        return msgspec.structs.replace(limit, concurrency=None, rate=None, period=1.0)
    if concurrency is not None:
        limit = msgspec.structs.replace(limit, concurrency=concurrency)
    if rate is not None:
        count, period = _rate(rate)
        limit = msgspec.structs.replace(limit, rate=count, period=period)
    return limit


def _rate(text: str) -> tuple[int, float]:
    count, _, seconds = text.partition("/")
    try:
        return int(count), float(seconds or 1)
    except ValueError:
        raise click.UsageError(
            "--rate takes a number and seconds: 100/60 is 100 a minute"
        ) from None
