"""Bulk work: many runs retried or cancelled, or threads deleted, through the queue."""

from __future__ import annotations

import msgspec.structs

from milecastle.app.upkeep.changing import BulkAction
from milecastle.errors import InvalidRequest
from milecastle.fleet.bulk import Bulk, JobInfo, job_key
from milecastle.server.documents import BulkRequest, JobDocument
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest, Reply
from milecastle.server.service import Service

__all__ = ["cancel_runs", "delete_runs", "job_document", "retry_runs", "show_job", "submit_job"]


async def retry_runs(request: ApiRequest) -> Reply:
    """Hand many runs that failed or were cancelled over to the workers again."""
    return await _submitted(request, "retry")


async def cancel_runs(request: ApiRequest) -> Reply:
    """Close many runs that have not ended."""
    return await _submitted(request, "cancel")


async def delete_runs(request: ApiRequest) -> Reply:
    """Delete many threads with all their runs."""
    return await _submitted(request, "delete")


async def _submitted(request: ApiRequest, action: BulkAction) -> Reply:
    return Reply(await submit_job(request, action, request.body), 202)


async def submit_job(request: ApiRequest, action: BulkAction, asked: BulkRequest) -> JobDocument:
    """Hand a job over to the workers."""
    bulk = _bulk(request.service, asked.graph)

    def submit() -> JobInfo:
        return bulk.submit(action, request.tenant, asked.status, limit=asked.limit)

    return _document(await request.off_loop(submit))


def _bulk(service: Service, graph: str | None) -> Bulk:
    if graph is None and len(service.apps) > 1:
        raise InvalidRequest("this server has several graphs: say which one, as graph")
    return Bulk(service.named(graph or next(iter(service.apps))))


async def show_job(request: ApiRequest) -> Reply:
    """What has become of a job."""
    return Reply(await request.off_loop(job_document, request))


def job_document(request: ApiRequest) -> JobDocument:
    """What has become of the job that the path names."""
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
