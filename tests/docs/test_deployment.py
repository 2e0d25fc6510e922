"""The units, images and manifests of the pages: they parse, agree, and their commands exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from typing import Any

import click
import pytest
from psycopg import sql

from milecastle.cli.verbs.worker import command
from milecastle.stores.postgres import migrate
from milecastle.stores.postgres.address import parse
from tests.docs.pages import blocks, read
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster

PAGE = "docs/how-to/deploy-a-fleet.md"


def found(language: str) -> list[str]:
    return [block.text for block in blocks(read(PAGE)) if block.language == language]


def options(words: list[str]) -> dict[str, Any]:
    """What ``milecastle worker`` understands of a command; it must understand everything."""
    program, verb, *rest = words
    assert program.rpartition("/")[2] == "milecastle"
    assert verb == "worker"
    return command.make_context("worker", rest).params


def yaml(text: str) -> Any:
    """The part of YAML that the pages use: nested mappings and lists, and scalars as in JSON."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert not any("\t" in line or line != line.rstrip() for line in lines)
    tree, rest = _node(lines, 0)
    assert rest == [], rest[0]
    return tree


def _node(lines: list[str], depth: int) -> tuple[Any, list[str]]:
    if lines[0][depth:].startswith("- "):
        return _sequence(lines, depth)
    return _mapping(lines, depth)


def _sequence(lines: list[str], depth: int) -> tuple[list[Any], list[str]]:
    items: list[Any] = []
    while lines and lines[0].startswith(" " * depth + "- "):
        inner = [lines[0].replace("- ", "  ", 1), *lines[1:]]
        item, lines = _mapping(inner, depth + 2)
        items.append(item)
    return items, lines


def _mapping(lines: list[str], depth: int) -> tuple[dict[str, Any], list[str]]:
    known: dict[str, Any] = {}
    pattern = re.compile(rf" {{{depth}}}([\w./]+):(?: (\S.*))?")
    while lines and (match := pattern.fullmatch(lines[0])):
        name, value = match.groups()
        assert name not in known, name
        lines = lines[1:]
        if value is None:
            assert lines, name
            deeper = len(lines[0]) - len(lines[0].lstrip())
            assert deeper == depth + 2, lines[0]
            known[name], lines = _node(lines, deeper)
        else:
            known[name] = _scalar(value)
    assert known, lines[0]
    return known, lines


def _scalar(text: str) -> Any:
    if text[0] in '"[' or text.isdigit():
        return json.loads(text)
    assert re.fullmatch(r"[\w./:-]+", text), text
    return text


def test_the_unit_of_systemd_parses_and_leaves_time_to_drain() -> None:
    """Fails if an option of the worker is misspelt, or the grace period is too long."""
    (text,) = found("ini")
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(text)
    service = unit["Service"]
    given = options(shlex.split(service["ExecStart"]))
    assert (given["processes"], given["metrics"]) == (4, "9100")
    assert service.getint("TimeoutStopSec") > given["grace"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_image_starts_a_worker_without_a_shell() -> None:
    """Fails if the command is not a list: a shell would get the signals."""
    (text,) = found("dockerfile")
    steps = dict(line.split(" ", 1) for line in text.splitlines() if line)
    assert options(json.loads(steps["CMD"]))["metrics"] == "0.0.0.0:9100"
    assert steps["STOPSIGNAL"] == "SIGTERM"


def test_the_deployment_asks_the_port_that_the_worker_serves() -> None:
    """Fails if port or path of a probe is another than the worker's."""
    deployment, _ = map(yaml, found("yaml"))
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = options(container["args"])
    port = int(given["metrics"].rpartition(":")[2])
    assert container["ports"] == [{"containerPort": port}]
    probes = [container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    assert probes == [{"path": path, "port": port} for path in ("/healthz", "/readyz")]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    assert pod["spec"]["terminationGracePeriodSeconds"] > (given["grace"] or 30)
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]


@needs_postgres
def test_the_query_of_the_autoscaler_runs() -> None:
    """On the view of a store. Fails if the view, or a column, has another name."""
    deployment, scaled = map(yaml, found("yaml"))
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "postgresql"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert trigger["metadata"]["connectionFromEnv"] in [one["name"] for one in container["env"]]
    url = the_cluster().url_of(new_schema())
    migrate(url)
    query = trigger["metadata"]["query"].replace("milecastle.queue", f"{parse(url).schema}.queue")
    assert the_cluster().execute(query.encode()) == [(0,)]
    view = sql.Identifier(parse(url).schema, "queue")
    columns = sql.SQL("SELECT graph, tenant, due, running, oldest_seconds FROM {}")
    assert the_cluster().execute(columns.format(view)) == []


@pytest.mark.parametrize(
    "text",
    ["a: 1\n  b: 2", "a:\n b: 1", "a: 1\na: 2", "a: {b", "a:\tb", "a:\n  - b: 1\n   c: 2", "a"],
)
def test_what_is_not_yaml_is_refused(text: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        yaml(text)


def test_an_option_that_the_worker_has_not_is_refused() -> None:
    with pytest.raises(click.UsageError):
        options(["milecastle", "worker", "x:y", "--metric", "9100"])
