"""Image, cluster and orchestrator files: they parse, agree with each other and with the project."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML

from cse.training.workers import STORAGE_VARIABLE
from tests.deploy.servers import metric_names

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".yaml", ".json"))
# of the custom resources, ray.io/v1
JOB_FIELDS = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
JOBS = ("rayjob-train", "rayjob-index")
CLUSTER_FIELDS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}


def documents(path: Path) -> list:
    text = path.read_text(encoding="utf-8")
    return [json.loads(text)] if path.suffix == ".json" else list(YAML(typ="safe", pure=True).load_all(text))


def resource(name: str) -> dict:
    """The one resource of KubeRay in a file."""
    (found,) = (one for one in documents(DEPLOY / f"{name}.yaml") if one["apiVersion"] == "ray.io/v1")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_parse(path):
    assert {"server.yaml", "grafana.json", "ray-cluster.yaml"} <= {file.name for file in FILES}
    assert all(documents(path))


# ---- Kubernetes ---------------------------------------------------------------------------------------------------


def cluster(name: str) -> dict:
    return resource(name)["spec"]["rayClusterSpec"]


def groups(name: str) -> list[dict]:
    return [cluster(name)["headGroupSpec"], *cluster(name)["workerGroupSpecs"]]


jobs = pytest.mark.parametrize("name", JOBS)


@jobs
def test_the_resource_has_fields_that_it_knows_and_the_version_that_is_installed(name):
    assert set(resource(name)["spec"]) == JOB_FIELDS
    assert set(cluster(name)) <= CLUSTER_FIELDS
    for group in groups(name):
        assert set(group) <= GROUP_FIELDS
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert cluster(name)["rayVersion"] == pinned


@jobs
def test_the_dashboard_needs_a_token_and_no_port_is_for_everyone(name):
    assert cluster(name)["authOptions"] == {"mode": "token"}
    assert tuple(map(int, cluster(name)["rayVersion"].split("."))) >= (2, 52, 0), "the first with tokens"
    (policy,) = (one for one in documents(DEPLOY / f"{name}.yaml") if one["kind"] == "NetworkPolicy")
    rules = policy["spec"]["ingress"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert all("from" in rule for rule in rules)
    labels = policy["spec"]["podSelector"]["matchLabels"]
    submits = {"job-name": resource(name)["metadata"]["name"]}
    sources = [source["podSelector"]["matchLabels"] for rule in rules for source in rule["from"]]
    assert sources == [labels, submits, {"app.kubernetes.io/name": "kuberay-operator"}]
    assert all(group["template"]["metadata"]["labels"] == labels for group in groups(name)), "every pod is behind it"


@jobs
def test_pods_are_confined_probed_and_limited(name):
    claims = {one["metadata"]["name"] for one in documents(DEPLOY / f"{name}.yaml") if "Claim" in one["kind"]}
    users = {numbers[0] for word, numbers in instructions() if word == "USER"}
    for group in groups(name):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert users_of(pod) == users
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"livenessProbe", "readinessProbe"} <= set(container)
        assert {"requests", "limits"} == set(container["resources"])
        assert re.search(r":[\d.]+$", container["image"])
        mounts = [(one["name"], one["mountPath"], one.get("readOnly")) for one in container.get("volumeMounts", [])]
        expected = [("model", "/model", True)]
        if name == "rayjob-train":  # its workers share no disk
            expected = [] if "groupName" in group else [("work", "/work", None)]
        assert mounts == expected
        assert [volume["name"] for volume in pod.get("volumes", [])] == [mount for mount, *_ in expected]
        assert {volume["persistentVolumeClaim"]["claimName"] for volume in pod.get("volumes", [])} <= claims


@jobs
def test_a_job_asks_for_as_many_workers_as_there_are_pods(name):
    """And its command is one that there is: its words are read as the command line reads them."""
    from cse.cli.main import cli

    spec, (workers,) = resource(name)["spec"], cluster(name)["workerGroupSpecs"]
    last = spec["entrypoint"].rpartition("&& ")[2].rstrip('"').split()
    assert last[0] == "cse"
    command = cli.get_command(click.Context(cli), last[1])
    command.make_context(last[1], last[2:])
    (wanted,) = re.findall(r"workers[= ](\d+)", spec["entrypoint"])
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == int(wanted)
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == 1 and "cuda" in spec["entrypoint"], "a worker takes one"
    if name == "rayjob-train":
        group = cluster(name)["headGroupSpec"]
        head = group["template"]["spec"]["containers"][0]
        assert [one["name"] for one in head["env"]] == [STORAGE_VARIABLE]
        assert head["resources"]["limits"]["nvidia.com/gpu"] == 1, "a command with train.device cuda asks for one"
        assert group["rayStartParams"]["num-gpus"] == "0", "which no worker takes"


def test_the_server_on_kubernetes_is_that_of_the_image():
    """Probed, confined, asked by Prometheus itself; with arguments that `cse serve` has and time to end requests."""
    from deploy.server.command import serve

    deployment, service, claim = documents(KUBERNETES / "server.yaml")
    template, labels = deployment["spec"]["template"], deployment["spec"]["selector"]["matchLabels"]
    pod = template["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    assert labels == template["metadata"]["labels"] == service["spec"]["selector"]
    assert arguments_of("EXPOSE") == [str(port["containerPort"])]
    (target,) = service["spec"]["ports"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert {port["name"]} == {target["targetPort"], *(one["port"] for one in probes)}
    assert [one["path"] for one in probes] == ["/ready", "/ready", "/health"]
    scrape = {key.rpartition("/")[2]: value for key, value in template["metadata"]["annotations"].items()}
    assert scrape == {"scrape": "true", "port": str(port["containerPort"]), "path": "/metrics"}
    given = serve.make_context("serve", list(container["args"])).params
    assert (given["host"], given["port"]) == ("0.0.0.0", port["containerPort"])
    assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + given["drain"]
    assert str(given["threads"]) == container["resources"]["limits"]["cpu"]
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert mounts.keys() == {given["model"], str(given["api_keys"].parent)}
    assert all(one["readOnly"] for one in mounts.values())
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes.keys() == {one["name"] for one in mounts.values()}
    assert volumes["model"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert users_of(pod) == {words[0] for name, words in instructions() if name == "USER"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    (base,) = documents(KUBERNETES / "kustomization.yaml")
    assert [(image["name"], bool(re.fullmatch(r"[\d.]+", image["newTag"]))) for image in base["images"]] == [
        (container["image"], True)
    ]
    assert base["resources"] == ["server.yaml", "scaling.yaml"]


def test_what_scales_guards_and_watches_the_server_finds_its_pods():
    deployment, service, _ = documents(KUBERNETES / "server.yaml")
    scaler, budget, policy = documents(KUBERNETES / "scaling.yaml")
    (monitor,) = documents(KUBERNETES / "monitor.yaml")
    labels = deployment["spec"]["selector"]["matchLabels"]
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    assert "replicas" not in deployment["spec"], "to apply it again would undo the scaler"
    assert scaler["spec"]["minReplicas"] > budget["spec"]["maxUnavailable"], "one pod is left while a node is drained"
    assert budget["spec"]["selector"]["matchLabels"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    (port,) = service["spec"]["ports"]
    (endpoint,) = monitor["spec"]["endpoints"]
    (rule,) = policy["spec"]["ingress"]
    assert {endpoint["port"], rule["ports"][0]["port"]} == {port["name"]}
    assert endpoint["path"] == deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]


def users_of(pod: dict) -> set[str]:
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    return {f"{context['runAsUser']}:{context['runAsGroup']}"}


# ---- Dockerfile ---------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, list[str]]]:
    """Every instruction of the Dockerfile with its words."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.split()[1:]) for line in joined.splitlines()]


def arguments_of(name: str) -> list[str]:
    return [" ".join(words) for found, words in instructions() if found == name]


def test_images_are_pinned_and_stages_exist():
    stages: set[str] = set()
    for words in arguments_of("FROM"):
        image, _, stage = words.split()
        if image == "${DEVICE}":
            assert {"cpu", "gpu"} <= stages
        elif image not in stages:
            assert re.search(r":\d+\.\d+\.\d+-", image), f"{image}: name a version"
            assert "latest" not in image
        stages.add(stage)
    assert {"cpu", "gpu", "server", "server-with-model"} <= stages
    for words in arguments_of("COPY"):
        taken = re.match(r"--from=(\S+)", words)
        assert taken is None or taken[1] in stages
    assert any("python:3.12" in words for words in arguments_of("FROM"))


def test_the_server_is_not_root_gets_its_signals_and_is_asked_without_other_programs():
    (user,) = arguments_of("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    (entry,), (command,) = arguments_of("ENTRYPOINT"), arguments_of("CMD")
    assert ast.literal_eval(entry) == ["cse", "serve"]
    words = ast.literal_eval(command)
    assert words[0] == "/model"
    assert words[words.index("--host") + 1] == "0.0.0.0"
    assert [words[words.index("--port") + 1]] == arguments_of("EXPOSE")
    (check,) = arguments_of("HEALTHCHECK")
    program = ast.literal_eval(check.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "check", "exec")
    assert f"http://127.0.0.1:{arguments_of('EXPOSE')[0]}/ready" in program[2]


def test_the_build_sees_what_it_copies_and_no_more():
    seen = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
    assert all((ROOT / name).exists() or name.startswith("data/") for name in seen)
    copied = [words.split()[:-1] for words in arguments_of("COPY") if not words.startswith("--from")]
    names = {word for words in copied for word in words if not word.startswith("--")} - {"${MODEL}"}
    assert names <= set(seen)
    (model,) = [words.partition("=")[2] for words in arguments_of("ARG") if words.startswith("MODEL=")]
    assert model in seen


def test_a_change_of_code_leaves_the_layer_of_dependencies():
    """What comes before them in their stage holds no code."""
    found = instructions()
    start = found.index(("FROM", ["${DEVICE}", "AS", "packages"]))
    steps = [(name, " ".join(words)) for name, words in found[start:]]
    heavy = next(n for n, (name, words) in enumerate(steps) if name == "RUN" and "${EXTRAS},${DEVICE}" in words)
    copied = {word for name, words in steps[:heavy] if name == "COPY" for word in words.split()[:-1]}
    assert copied == {"constraints.txt", "pyproject.toml", "README.md", "LICENSE"}
    assert any(name == "COPY" and words.startswith("--from=wheel") for name, words in steps[heavy:])


def test_extras_of_the_image_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    defaults = dict(words.split("=") for words in arguments_of("ARG") if "=" in words)
    assert {defaults["DEVICE"], defaults["EXTRAS"], "gpu"} <= set(extras)


# ---- Grafana -------------------------------------------------------------------------------------------------------

BOARD = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
SHOWN = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
GIVEN = {"__rate_interval", "__all"}  # by Grafana


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\bcse_\w+", text))


def family(metric: str) -> str:
    """The name that a metric's series share."""
    return re.sub(r"_(bucket|sum|count)$", "", metric)


def expressions() -> list[str]:
    return [target["expr"] for panel in SHOWN for target in panel["targets"]]


def test_metrics_and_variables_of_the_dashboard_are_there_and_ids_are_unique():
    used = set().union(*map(metrics_in, expressions()))
    assert used <= metric_names()
    assert len(set(map(family, used))) >= 15
    for variable in VARIABLES.values():
        assert metrics_in(json.dumps(variable)) <= metric_names()
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD))) - GIVEN
    assert used == set(VARIABLES)
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
