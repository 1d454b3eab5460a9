"""Image, cluster and orchestrator files: they parse, agree with each other and with the project."""

import ast
import json
import re
from pathlib import Path

import click
import pytest
from ruamel.yaml import YAML

from cse.cli.main import cli
from cse.training.workers import STORAGE_VARIABLE
from deploy.server.command import serve
from tests.deploy.servers import metric_names

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def documents(path: Path) -> list:
    text = path.read_text(encoding="utf-8")
    return [json.loads(text)] if path.suffix == ".json" else list(YAML(typ="safe", pure=True).load_all(text))


def arguments_of(name: str) -> list[str]:
    """The words behind each such instruction of the Dockerfile."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [" ".join(line.split()[1:]) for line in lines if line.startswith(f"{name} ")]


def is_confined(pod: dict) -> bool:
    context, (user,) = pod["securityContext"], arguments_of("USER")
    own = all(one["securityContext"]["allowPrivilegeEscalation"] is False for one in pod["containers"])
    return own and context["runAsNonRoot"] and f"{context['runAsUser']}:{context['runAsGroup']}" == user


@pytest.mark.parametrize("name", ["rayjob-train", "rayjob-index"])
def test_a_job_on_a_cluster(name):
    """Its words are read as the command line reads them; it has as many pods as workers, behind a token and a wall."""
    found = documents(DEPLOY / f"{name}.yaml")
    (job,) = (one for one in found if one["apiVersion"] == "ray.io/v1")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    last = spec["entrypoint"].rpartition("&& ")[2].rstrip('"').split()
    assert last[0] == "cse"
    cli.get_command(click.Context(cli), last[1]).make_context(last[1], last[2:])
    (workers,), head = cluster["workerGroupSpecs"], cluster["headGroupSpec"]
    (wanted,) = re.findall(r"workers[= ](\d+)", spec["entrypoint"])
    assert workers["minReplicas"] == workers["maxReplicas"] == int(wanted)
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert (cluster["rayVersion"], cluster["authOptions"]) == (pinned, {"mode": "token"})
    (policy,) = (one for one in found if one["kind"] == "NetworkPolicy")
    labels = policy["spec"]["podSelector"]["matchLabels"]
    assert all("from" in rule for rule in policy["spec"]["ingress"])
    for template in (head["template"], workers["template"]):
        assert template["metadata"]["labels"] == labels and is_confined(template["spec"])
    if name == "rayjob-train":  # its command asks for a GPU of the head's, which no worker takes
        (container,) = head["template"]["spec"]["containers"]
        assert [one["name"] for one in container["env"]] == [STORAGE_VARIABLE]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert head["rayStartParams"]["num-gpus"] == "0"


def test_the_server_on_kubernetes_is_that_of_the_image():
    """Probed, confined, behind a wall; with arguments that `cse serve` has and time to end requests."""
    deployment, service, claim = documents(KUBERNETES / "server.yaml")
    scaler, budget, policy = documents(KUBERNETES / "scaling.yaml")
    (monitor,) = documents(KUBERNETES / "monitor.yaml")
    template, labels = deployment["spec"]["template"], deployment["spec"]["selector"]["matchLabels"]
    pod = template["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    given = serve.make_context("serve", list(container["args"])).params
    assert arguments_of("EXPOSE") == [str(port["containerPort"])]
    assert (given["host"], given["port"]) == ("0.0.0.0", port["containerPort"])
    assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + given["drain"]
    assert str(given["threads"]) == container["resources"]["limits"]["cpu"]
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    assert probes == ["/ready", "/ready", "/health"]
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert mounts == {given["model"], str(given["api_keys"].parent)}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes["model"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert is_confined(pod)
    guards = (budget["spec"]["selector"]["matchLabels"], policy["spec"]["podSelector"]["matchLabels"])
    for selector in (template["metadata"]["labels"], service["spec"]["selector"], *guards):
        assert selector == labels
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "to apply it again would undo the scaler"


def test_the_image_is_not_root_and_gets_its_signals():
    (user,), (exposed,) = arguments_of("USER"), arguments_of("EXPOSE")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert [ast.literal_eval(words) for words in arguments_of("ENTRYPOINT")] == [["cse", "serve"]]
    (words,) = map(ast.literal_eval, arguments_of("CMD"))
    given = serve.make_context("serve", words).params
    assert (given["model"], given["host"], str(given["port"])) == ("/model", "0.0.0.0", exposed)
    (check,) = arguments_of("HEALTHCHECK")
    program = ast.literal_eval(check.partition("CMD ")[2])[2]
    assert compile(program, "check", "exec") and f"http://127.0.0.1:{exposed}/ready" in program


def test_metrics_and_variables_of_the_dashboard_are_there():
    (board,) = documents(DEPLOY / "grafana.json")
    assert set(re.findall(r"\bcse_\w+", json.dumps(board))) - {"cse_"} <= metric_names()
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board))) - {"__rate_interval", "__all"}  # those are Grafana's
    assert used == {variable["name"] for variable in board["templating"]["list"]}
