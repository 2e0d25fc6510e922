"""A server on PostgreSQL, which submits to a worker in another process."""

from __future__ import annotations

from tests.acceptance.server.graphs import journey
from tests.acceptance.server.processes import (
    LIMIT,
    REFERENCE,
    Process,
    Server,
    read_stream,
    serving,
)
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster, wait_until

pytestmark = needs_postgres


def test_server_submits_and_a_worker_in_another_process_runs() -> None:
    """Fails if the server runs a worker, emitted values do not cross processes, or a job waits."""
    url = the_cluster().url_of(new_schema())
    with serving(url) as server:
        response = server.client.post("/v1/threads/waits/runs?wait=1", json=journey(1))
        assert (response.status_code, response.json()["status"]) == (202, "queued")
        assert " serves journey@" not in server.process.log
        server.client.post("/v1/threads/talks/runs", json=journey(5, pause=0.3))
        _with_worker(server, url)


def test_server_with_a_worker_runs_what_is_submitted() -> None:
    """Fails if ``--worker`` is not passed on."""
    with serving(the_cluster().url_of(new_schema()), "--worker") as server:
        done = server.client.post("/v1/threads/t/runs?wait=60", json=journey(1))
        assert (done.status_code, done.json()["status"]) == (200, "completed")


def _with_worker(server: Server, url: str) -> None:
    workers: list[Process] = []
    try:
        told: list[int] = []
        ids: list[int] = []
        place = "/v1/threads/talks/events"
        with server.client.stream("GET", place, timeout=LIMIT) as response:
            for event in read_stream(response):
                if event.name == "emit":
                    told.append(event.data["value"])
                elif event.id is not None:
                    ids.append(event.id)
                    if len(ids) == 1:  # from now on the server hears what is emitted
                        workers.append(Process("worker", REFERENCE, "--store", url))
                elif event.name == "stopped" and event.data["thread"]["status"] == "completed":
                    break
        assert told == [0, 1, 2, 3, 4]
        assert ids == list(range(1, len(ids) + 1))
        assert server.rests("waits")["state"]["done"] == 1
        server.client.post("/v1/threads/fails/runs?wait=60", json=journey(1, then="fail"))
        job = server.client.post("/v1/runs/retry", json={"status": "failed"}).json()

        def has_ended() -> bool:
            shown = server.client.get(f"/v1/jobs/{job['job']}").json()
            return bool(shown["status"] == "completed")

        wait_until(has_ended, LIMIT)
        assert server.client.get(f"/v1/jobs/{job['job']}").json()["changed"] == 1
        assert workers[0].stop() == 0
    finally:
        for worker in workers:
            worker.kill()
