"""Health, readiness and metrics.

``/healthz``: this process answers. ``/readyz``: the store and the queue answer too. Neither reports
anything about threads, so neither needs a token. ``/metrics`` has the queue of the caller's tenant.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from milecastle.errors import StoreError
from milecastle.fleet.prometheus import (
    CONTENT_TYPE,
    Family,
    Labels,
    Metric,
    bucket_families,
    queue_families,
    render,
)
from milecastle.ports.buckets import bucket_levels
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Store
from milecastle.server.documents import StartDocument, StartQuery
from milecastle.server.mounting import mount_point
from milecastle.server.problems import UNAUTHORIZED, Refused
from milecastle.server.request import ApiRequest, Endpoint, Reply
from milecastle.server.service import Service
from milecastle.server.sessions import set_session
from milecastle.version import __version__

OPENAPI: Final = "/v1/openapi.json"
OVERVIEW: Final = "/overview"
"""The page with which the web view begins."""

_PATIENCE: Final = 5.0
"""For how many seconds the store may take to answer."""


@Endpoint("GET", "/healthz", None, answers={200: "text/plain"}, stores=False)
async def health(request: ApiRequest) -> Response:
    """Liveness: this process answers."""
    return PlainTextResponse("ok\n")


@Endpoint("GET", "/readyz", None, answers={200: "text/plain", 503: "text/plain"}, stores=False)
async def readiness(request: ApiRequest) -> Response:
    """Readiness: the store and the queue answer."""
    service = request.service
    try:
        async with asyncio.timeout(_PATIENCE):
            await service.ready(_ask, service)
    except (StoreError, TimeoutError):
        return PlainTextResponse("the store does not answer\n", 503)
    worker = service.worker
    if service.closing.is_set():
        return PlainTextResponse("it is stopping\n", 503)
    if worker is not None and not worker.is_ready:
        return PlainTextResponse("its worker has ended, or does not answer\n", 503)
    return PlainTextResponse("ok\n")


def _ask(service: Service) -> None:
    service.store.threads(service.tenant, limit=1)
    if isinstance(service.store, ClaimStore):
        service.store.now()


def _queue(store: Store, tenant: str) -> list[Family]:
    if not isinstance(store, ClaimStore):
        return queue_families(())
    own = [one for one in store.depths() if one.tenant == tenant]
    levels = [one for one in bucket_levels(store) if one.bucket.tenant in ("", tenant)]
    return [*queue_families(own), *bucket_families(levels, store.now())]


@Endpoint("GET", "/metrics", "read", answers={200: CONTENT_TYPE})
async def metrics(request: ApiRequest) -> Response:
    """The queue of the caller's tenant, in the Prometheus text format.

    Durations cover all callers, so only the apps' tenant gets them.
    """
    store, worker = request.service.store, request.service.worker
    families: list[Metric] = [*await request.off_loop(partial(_queue, store, request.tenant))]
    if worker is not None:
        running: dict[Labels, float] = {(): float(worker.running)}
        families.append(Family("running", "gauge", "Threads that this server runs.", running))
    if request.tenant == request.service.tenant:
        families += [request.service.requests, *([] if worker is None else worker.durations)]
    return Response(render(families), media_type=CONTENT_TYPE)


@Endpoint(
    "GET",
    "/",
    None,
    query=StartQuery,
    answers={200: StartDocument, 303: ""},
    problems=(401, 503),
    stores=False,
)
async def start(request: ApiRequest) -> Reply | Response:
    """Exchange the start URL's token for a cookie.

    A client that does not ask for HTML gets a list of addresses.
    """
    access, headers = request.access, request.http.headers
    token: str | None = request.query.token
    if token is None:
        await access.get_ready(headers)
        access.identify(headers)
        if "text/html" in headers.get("accept", ""):
            return RedirectResponse(OVERVIEW, 303)
        place = mount_point(request.http.scope) + OPENAPI
        return Reply(StartDocument(milecastle=__version__, openapi=place))
    if not access.may_start(token):
        raise Refused(UNAUTHORIZED, 401, "this is not the start URL of this server")
    session = access.open_session(token)
    return set_session(RedirectResponse(OVERVIEW, 303), request.http, session)
