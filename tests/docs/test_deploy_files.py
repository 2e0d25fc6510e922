"""The files under deploy/: valid for Kubernetes, agreeing with each other, and with our metrics."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from milecastle import interrupt
from milecastle.cli.main import cli
from milecastle.fleet.probes import Probes
from milecastle.fleet.worker import Worker
from milecastle.server.tokens import read_tokens
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import QUICK, Trip, line, note, start
from tests.docs.pages import ROOT, blocks, read
from tests.unit.server.calling import Api

yaml: Any = pytest.importorskip("yaml")

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.32", "1.37")
"""Those of Kubernetes that the schemas are of: the oldest that we name, and the newest."""


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def everything() -> Iterator[dict[str, Any]]:
    for path in MANIFESTS:
        yield from documents(path)


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [one for one in everything() if one["kind"] in kinds]


def template(workload: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]
    return found


WORKLOADS = of_kind("Deployment", "Job")


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for workload in WORKLOADS:
        for container in template(workload)["spec"]["containers"]:
            yield template(workload)["spec"], container


# ---------------------------------------------------------------- the published schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_valid_for_kubernetes(path: Path, version: str) -> None:
    """By the published schemas, strictly: unknown fields are errors. See the control below."""
    schemas: Any = pytest.importorskip("kubernetes_validate")
    found = documents(path)
    assert found
    for document in found:
        assert schemas.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "livenesProbe"), {}),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "image"), 7),
        ("Deployment", ("spec", "replica"), 2),
        ("HorizontalPodAutoscaler", ("spec", "maxReplicas"), "many"),
        ("PodDisruptionBudget", ("spec", "minAvailabe"), 1),
        ("NetworkPolicy", ("spec", "ingress", 0, "ports", 0, "proto"), "TCP"),
    ],
)
def test_manifest_with_a_mistake_is_caught(kind: str, place: tuple[Any, ...], value: Any) -> None:
    """The control."""
    schemas: Any = pytest.importorskip("kubernetes_validate")
    broken = copy.deepcopy(of_kind(kind)[0])
    inner: Any = broken
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(schemas.ValidationError):
        schemas.validate(broken, VERSIONS[-1], strict=True)


# ---------------------------------------------------------------- among each other


def test_every_part_is_there() -> None:
    kinds = sorted((one["kind"], one["metadata"]["name"]) for one in everything())
    assert kinds == [
        ("Deployment", "milecastle-server"),
        ("Deployment", "milecastle-worker"),
        ("HorizontalPodAutoscaler", "milecastle-worker"),
        ("Job", "milecastle-migration"),
        ("NetworkPolicy", "milecastle-worker"),
        ("PodDisruptionBudget", "milecastle-server"),
        ("PodDisruptionBudget", "milecastle-worker"),
        ("Secret", "milecastle"),
        ("Service", "milecastle"),
    ]


def test_selectors_find_their_pods_and_no_others() -> None:
    """Fails if a label is changed in one place."""
    labels = [template(one)["metadata"]["labels"] for one in WORKLOADS]
    for one in of_kind("Deployment", "PodDisruptionBudget", "Service", "NetworkPolicy"):
        spec = one["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        wanted = selector.get("matchLabels", selector)
        fitting = [found for found in labels if wanted.items() <= found.items()]
        assert len(fitting) == 1, one["metadata"]["name"]
        assert fitting[0]["app.kubernetes.io/component"] in str(wanted)


def test_names_that_are_referred_to_exist() -> None:
    """Fails for a port, a secret, a key, a volume or a scaled deployment that is not there."""
    (secret,) = of_kind("Secret")
    for pod, container in containers():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for probe in ("livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports
        for variable in container["env"]:
            found = variable["valueFrom"]["secretKeyRef"]
            assert found["name"] == secret["metadata"]["name"]
            assert found["key"] in secret["stringData"]
        volumes = {one["name"] for one in pod.get("volumes", [])}
        assert {one["name"] for one in container.get("volumeMounts", [])} == volumes
        for volume in pod.get("volumes", []):
            for item in volume.get("secret", {}).get("items", []):
                assert item["key"] in secret["stringData"]
    (scaler,) = of_kind("HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] in [
        one["metadata"]["name"] for one in WORKLOADS
    ]
    metric = scaler["spec"]["metrics"][0]["external"]["metric"]["name"]
    (rule,) = documents(DEPLOY / "prometheus" / "adapter.yaml")[0]["rules"]["external"]
    assert rule["name"]["as"] == metric


def command_of(words: list[str]) -> dict[str, Any]:
    """What our command line understands of a command; it must understand everything."""
    program, verb, *rest = words
    assert program == "milecastle"
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    return found.make_context(verb, rest).params


def test_commands_are_ours_and_agree_with_the_probes() -> None:
    """Fails for an option that does not exist, and for a port or a path that is not served."""
    given = {words[1]: command_of(words) for words in (one["args"] for _, one in containers())}
    assert given.keys() == {"serve", "worker", "migrate"}
    for pod, container in containers():
        verb, options = container["args"][1], given[container["args"][1]]
        ports = [port["containerPort"] for port in container.get("ports", [])]
        if verb == "serve":
            assert ports == [options["port"]]
            assert options["tokens"].startswith(container["volumeMounts"][0]["mountPath"])
        if verb == "worker":
            assert options["metrics"] == f"0.0.0.0:{ports[0]}"
            assert pod["terminationGracePeriodSeconds"] > options["grace"] + 5
    (worker,) = (one for one in WORKLOADS if one["metadata"]["name"].endswith("worker"))
    annotations = template(worker)["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == "9100"


def test_pods_may_do_no_more_than_they_need() -> None:
    """Fails for a container that is root, may become it, or writes to its image."""
    for pod, container in containers():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


def test_example_secret_has_tokens_that_can_be_read(tmp_path: Path) -> None:
    """And none that could be used as it is."""
    (secret,) = of_kind("Secret")
    text = secret["stringData"]["tokens.toml"]
    path = tmp_path / "tokens.toml"
    path.write_text(text.replace("REPLACE", "x" * 32), encoding="utf-8")
    path.chmod(0o600)
    (token,) = read_tokens(path)
    assert token.identity.name == "shop"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Exception, match="shorter than 32"):
        read_tokens(path)


# ---------------------------------------------------------------- metrics


def fail(state: Trip) -> dict[str, Any]:
    raise RuntimeError("no ink")


def ask(state: Trip) -> dict[str, Any]:
    interrupt("sure?")
    return {}


async def of_a_worker() -> str:
    store = MemoryStore()
    apps = [
        line(store, ("a", note("a")), name="fine"),
        line(store, ("b", fail), name="bad"),
        line(store, ("c", ask), name="asks"),
    ]
    for app in apps:
        await app.asubmit(start(), f"of-{app.graph.name}")
    worker = Worker(apps, QUICK)
    await worker.run_until_idle()
    await apps[0].asubmit(start(), "waits")
    probes = Probes(worker, ("127.0.0.1", 0))
    with probes.serving():
        return probes.metrics()


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The names that workers and servers report, with their labels."""
    api = Api(tmp_path_factory.mktemp("server"))
    api.ask("GET", "/v1/threads")
    found: dict[str, set[str]] = {}
    for text in (asyncio.run(of_a_worker()), api.ask("GET", "/metrics").text):
        for name in re.findall(r"^# TYPE (\w+) (?:counter|gauge)$", text, re.MULTILINE):
            found.setdefault(name, set())
        for name, labels in re.findall(r"^(milecastle_\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    api.close()
    return found


SCRAPED = {"job", "instance", "namespace", "pod"}
"""Labels that Prometheus adds."""
_METRIC = re.compile(r"(milecastle_\w+)(?:\{([^}]*)\})?")
_GROUP = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def mistakes(expression: str, reported: Mapping[str, set[str]], legend: str = "") -> list[str]:
    """Names and labels in a query that nothing reports."""
    plain = re.sub(r"<<.*?>>", "", expression)
    named = _METRIC.findall(plain)
    known = set(SCRAPED)
    found: list[str] = [] if named else [f"no metric in {expression}"]
    for name, matchers in named:
        labels = reported.get(name)
        if labels is None:
            found.append(name)
            continue
        known |= labels
        used = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
        found += [f"{name}{{{label}}}" for label in used if label not in labels | SCRAPED]
    grouped = {label.strip() for group in _GROUP.findall(plain) for label in group.split(",")}
    grouped |= set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", legend))
    return [*found, *sorted(label for label in grouped - known if label)]


def test_alerts_name_what_is_reported(reported: Mapping[str, set[str]]) -> None:
    """See the control below."""
    (found,) = documents(DEPLOY / "prometheus" / "alerts.yaml")
    rules = [rule for group in found["groups"] for rule in group["rules"]]
    assert len(rules) >= 8
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names))
    for rule in rules:
        said = " ".join(rule["annotations"].values())
        assert mistakes(rule["expr"], reported, said) == []
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}


def test_scaling_names_what_is_reported(reported: Mapping[str, set[str]]) -> None:
    (rule,) = documents(DEPLOY / "prometheus" / "adapter.yaml")[0]["rules"]["external"]
    assert mistakes(rule["metricsQuery"], reported) == []
    assert rule["seriesQuery"] in reported


def test_dashboard_names_what_is_reported(reported: Mapping[str, set[str]]) -> None:
    text = (DEPLOY / "grafana" / "milecastle.json").read_text(encoding="utf-8")
    board = json.loads(text)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) >= 12
    for panel in board["panels"]:
        for target in panel["targets"]:
            wrong = mistakes(target["expr"], reported, target["legendFormat"])
            assert wrong == [], panel["title"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            assert mistakes(variable["query"], reported) == []


def test_page_about_operation_names_what_is_reported(reported: Mapping[str, set[str]]) -> None:
    """Its alerts, and every metric of the manifests' page."""
    texts = [one.text for one in blocks(read("docs/how-to/operate-a-fleet.md"))]
    (alerts,) = (text for text in texts if "milecastle_queue_oldest_seconds" in text)
    for line_ in alerts.strip().splitlines():
        assert mistakes(line_.partition("#")[0], reported) == []
    page = read("docs/how-to/deploy-on-kubernetes.md")
    made = {"milecastle_queue_work", "milecastle_app", "milecastle_owner"}
    for name in set(re.findall(r"milecastle_\w+", page)) - made:
        assert name in reported


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sum(milecastle_queue_du)", ["milecastle_queue_du"]),
        ('milecastle_queue_due{thread="t"}', ["milecastle_queue_due{thread}"]),
        ("sum by (thread) (milecastle_queue_due)", ["thread"]),
        ("rate(milecastle_run_seconds[5m])", ["milecastle_run_seconds"]),  # only its parts are
        ("up == 0", ["no metric in up == 0"]),
    ],
)
def test_name_that_does_not_exist_is_caught(
    reported: Mapping[str, set[str]], expression: str, expected: list[str]
) -> None:
    """The control."""
    found = mistakes(expression, reported)
    assert found == expected
