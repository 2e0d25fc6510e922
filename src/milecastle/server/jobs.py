"""Bulk work: many runs retried or cancelled, or threads deleted, through the queue."""

from __future__ import annotations

import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.fleet.bulk import Bulk, BulkAction, JobInfo, job_key
from milecastle.server.documents import BulkRequest, JobDocument
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest, Endpoint, Reply


@Endpoint("POST", "/v1/runs/retry", "run", body=BulkRequest, answers={202: JobDocument})
async def retry_runs(request: ApiRequest) -> Reply:
    """Retry many runs that failed or were cancelled, by a job."""
    return await _submitted(request, "retry")


@Endpoint("POST", "/v1/runs/cancel", "run", body=BulkRequest, answers={202: JobDocument})
async def cancel_runs(request: ApiRequest) -> Reply:
    """Cancel many runs that have not ended, by a job."""
    return await _submitted(request, "cancel")


@Endpoint("POST", "/v1/runs/delete", "admin", body=BulkRequest, answers={202: JobDocument})
async def delete_runs(request: ApiRequest) -> Reply:
    """Delete many threads, by the status of their current runs, by a job."""
    return await _submitted(request, "delete")


async def _submitted(request: ApiRequest, action: BulkAction) -> Reply:
    return Reply(await submit_job(request, action, request.body), 202)


async def submit_job(request: ApiRequest, action: BulkAction, asked: BulkRequest) -> JobDocument:
    service = request.service
    if asked.graph is None and len(service.apps) > 1:
        raise InvalidRequest("this server has several graphs: say which one, as graph")
    bulk = Bulk(service.named(asked.graph or next(iter(service.apps))))

    def submit() -> JobInfo:
        return bulk.submit(action, request.tenant, asked.status, limit=asked.limit)

    return _document(await request.off_loop(submit))


@Endpoint("GET", "/v1/jobs/{job}", "read", answers={200: JobDocument}, problems=(404, 409, 500))
def show_job(request: ApiRequest) -> JobDocument:
    """Show how far a job is."""
    return job_document(request)


def job_document(request: ApiRequest) -> JobDocument:
    return _document(_job(request))


def _job(request: ApiRequest) -> JobInfo:
    service, id = request.service, request.path["job"]
    info = service.store.thread(job_key(request.tenant, id))
    for bulk in map(Bulk, service.apps.values()):
        if info is not None and info.graph == bulk.runner.graph.name:
            return bulk.info(request.tenant, id)
    raise Refused(NOT_FOUND, 404, "there is no such job")


def _document(info: JobInfo) -> JobDocument:
    facts = msgspec.structs.asdict(info)
    return JobDocument(job=facts.pop("id"), **facts)
