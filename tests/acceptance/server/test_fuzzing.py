"""Requests made from the OpenAPI document, valid and not: no server error, nothing undocumented.

``MILECASTLE_FUZZ=1000`` is the long form: so many requests of each kind to each endpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec.structs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milecastle.server.request import Endpoint
from milecastle.server.routes import ENDPOINTS
from tests.unit.server.calling import ADDRESS, Api, token_of

schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")

EXAMPLES = int(os.environ.get("MILECASTLE_FUZZ", "8"))
FUZZED = [one for one in ENDPOINTS if one.path != "/readyz"]
"""All but the one that says that the server is stopping: then streams and waits end at once."""


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Any]]:
    api = Api(tmp_path_factory.mktemp("fuzzed"))
    for name, n in (("asks", 42), ("fails", 13), ("done", 1)):
        api.run(name, n)
    document = api.ask("GET", "/v1/openapi.json").json()
    api.application.service.closing.set()
    yield api, schemathesis.openapi.from_dict(document)
    api.close()


def takes_something(endpoint: Endpoint) -> bool:
    """Whether a request can be wrong at all."""
    query = msgspec.structs.fields(endpoint.query)
    return bool(query or endpoint.body or "{" in endpoint.path)


CASES = [
    (one, mode)
    for one in FUZZED
    for mode in ("POSITIVE", "NEGATIVE")
    if mode == "POSITIVE" or takes_something(one)
]


@pytest.mark.parametrize(
    ("endpoint", "mode"), CASES, ids=[f"{one.name} {mode}" for one, mode in CASES]
)
def test_every_answer_is_documented(fuzzed: tuple[Api, Any], endpoint: Endpoint, mode: str) -> None:
    """Failed when a handler raised, and when a status was removed from the table of routes."""
    api, schema = fuzzed
    operation = schema[endpoint.path][endpoint.method]
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    ]

    @settings(
        max_examples=EXAMPLES,
        derandomize=EXAMPLES < 100,
        deadline=None,
        database=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.filter_too_much,
            HealthCheck.data_too_large,
        ],
    )
    @given(
        case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]),
        known=st.sampled_from(["", "asks", "fails", "done"]),
    )
    def ask(case: Any, known: str) -> None:
        if known and "thread" in case.path_parameters:
            case.path_parameters["thread"] = known
        case.validate_response(sent(api, case), checks=checks)

    ask()


def sent(api: Api, case: Any) -> Any:
    """The answer to a case, which must have a status and a type of the table of routes."""
    prepared = requests.Request(**case.as_transport_kwargs(base_url=ADDRESS)).prepare()
    url: str = prepared.url
    path = url.removeprefix(ADDRESS)
    headers = {
        name: value
        for name, value in prepared.headers.items()
        if name.lower() not in ("content-length", "authorization", "transfer-encoding")
    }
    return api.ask(
        prepared.method,
        path,
        token=token_of("default"),
        headers=headers,
        content=prepared.body or b"",
    )
