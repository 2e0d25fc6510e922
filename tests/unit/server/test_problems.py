"""Errors as problem documents."""

from __future__ import annotations

import inspect
import json
import logging

import pytest

from milecastle import errors
from milecastle.errors import InvalidRequest, MilecastleError, ResumeRefused
from milecastle.server.problems import STATUSES, problem_response, status_of


def test_every_error_has_a_status_of_its_own() -> None:
    """Fails if a class of ``errors.py`` is not in the table: seen with ``KeyNotFound`` left out."""
    classes = [getattr(errors, name) for name in errors.__all__]
    known = [one for one in classes if inspect.isclass(one) and issubclass(one, MilecastleError)]
    assert len(known) > 25
    assert [one.__name__ for one in known if one not in STATUSES] == []
    assert {400, 404, 409, 422, 500, 503} == set(STATUSES.values())


def test_subclass_has_the_status_of_the_nearest_class() -> None:
    class Own(InvalidRequest):
        pass

    assert status_of(Own("it broke")) == 400


def test_problem_has_the_code_and_the_reasons() -> None:
    """Fails if ``reasons`` or ``code`` is left out."""
    response = problem_response(ResumeRefused("t", ["one", "two"]))
    assert response.media_type == "application/problem+json"
    found = json.loads(bytes(response.body))
    assert response.status_code == found["status"] == 409
    assert (found["code"], found["reasons"]) == ("MC301", ["one", "two"])
    assert found["type"] == "urn:milecastle:MC301"


def test_text_of_an_unexpected_error_is_neither_sent_nor_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fails if the message of the exception is the detail, or is logged: it may have values."""
    with caplog.at_level(logging.ERROR):
        try:
            raise KeyError("a secret of the state")
        except KeyError as error:
            response = problem_response(error)
    assert response.status_code == 500
    assert b"secret" not in response.body
    assert "secret" not in caplog.text
    assert "KeyError" in caplog.text
