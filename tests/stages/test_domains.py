"""``cse.stages.domain``: domains side by side equal those trained alone; a lost worker or bad data cost no other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from cse.data.store import TRAIN_FILE, open_rows
from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.domain import domain_stage, main
from cse.stages.prepare import prepare_stage
from tests.cli.workspace import contents, write_params
from tests.parts import refusal
from tests.pipeline.workspace import write_pairs, write_triplets
from tests.stages.training import train_in
from tests.waiting import wait_for

WORKER = "ray::_reason_of_run"
DOMAINS = {
    "first": "{data: raw/first, set: {train.epochs: 20}}",
    "second": "{data: raw/second, set: {prompt.length: 2}}",
    "third": "{data: raw/third, set: {data.view: pairs, mine.negatives: 1, mine.margin: 1.0, pooler.kind: cls}}",
    "wrong": "{data: raw/wrong}",
}


def write_project(folder: Path, backbone: Path) -> Path:
    for seed, name in enumerate(DOMAINS):
        write_triplets(folder / f"raw/{name}/train/rows.csv", 48, seed)
        for part in ("dev", "evaluation"):
            write_pairs(folder / f"raw/{name}/{part}/{part}.csv", 16, seed)
    (folder / "raw/first/dev/dev.csv").unlink()  # so that it keeps its last weights, which all its updates made
    (folder / "raw/wrong/train/rows.csv").write_text("text,label\nthe cat sits,yes\n")
    write_params(folder / "params.yaml", backbone)
    domains = "".join(f"    {name}: {entry}\n" for name, entry in DOMAINS.items())
    with (folder / "params.yaml").open("a") as file:
        file.write(f"bank:\n  at_once: 2\n  domains:\n{domains}")
    return folder


def start(folder: Path, *names: str) -> subprocess.Popen[str]:
    """Start trainings on two processors, so that each of two workers has one thread."""
    two = sorted(os.sched_getaffinity(0))[:2]
    return subprocess.Popen(
        [sys.executable, "-m", "cse.stages.domain", *names],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, preexec_fn=lambda: os.sched_setaffinity(0, two),
    )  # fmt: skip


def results(folder: Path, name: str) -> dict[str, bytes]:
    """What a training gives, to the byte: weights, scores, curves."""
    here = folder / "data/domains" / name
    found = contents(here / "plots") | contents(here / "prepared")
    found |= {file: (here / file).read_bytes() for file in ("train.json", "evaluation.json")}
    weights = list((here / "checkpoint").glob("*.safetensors"))
    assert len(weights) == 1
    return found | {"weights": weights[0].read_bytes(), "scores": scores_of(folder, name).read_bytes()}


def scores_of(folder: Path, name: str) -> Path:
    return folder / f"data/metrics/domains/{name}.json"


@contextmanager
def one_thread() -> Iterator[None]:
    """As many as a worker has: sums depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone(tiny_folders, tmp_path_factory) -> Path:
    """A project whose domains were trained one by one by stage ``domain``; do not change it."""
    folder = write_project(tmp_path_factory.mktemp("alone"), tiny_folders["bert"])
    with chdir(folder), one_thread():
        settings = load_settings(PARAMS_FILE, any_view=True)
        for name in ("first", "second", "third"):
            domain_stage(settings_of_domain(settings, name), name)
    assert len({results(folder, name)["weights"] for name in ("first", "second", "third")}) == 3
    assert open_rows(folder / "data/domains/third/mined" / TRAIN_FILE).column_names[-1] == "hard_neg", (
        "it mines for itself"
    )
    return folder


@pytest.fixture
def project(tiny_folders, tmp_path) -> Path:
    return write_project(tmp_path / "project", tiny_folders["bert"])


def training_workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The Ray workers below a command that are training a domain."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if WORKER in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def said(errors: str, names: Iterable[str]) -> dict[str, str]:
    """What the command said of each domain; Ray's own lines are left out."""
    lines = [line.split(": ", 1) for line in errors.splitlines() if line.partition(": ")[0] in names]
    found = dict(lines)
    assert len(found) == len(lines)
    return found


@pytest.mark.slow
def test_a_domain_is_the_pipeline_with_the_same_settings(alone, tmp_path):
    paths = {f"data.{part}_path": f"raw/first/{part}" for part in ("train", "dev", "evaluation")}
    with chdir(alone), one_thread():
        settings = load_settings(PARAMS_FILE, {"data.source": "files", "train.epochs": 20} | paths)
        prepare_stage(settings, prepared=tmp_path / "prepared", progress=False)
        train_in(tmp_path, settings, tmp_path / "prepared")
    domain, weights = alone / "data/domains/first", "checkpoint/weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (domain / weights).read_bytes()
    assert contents(tmp_path / "prepared") == contents(domain / "prepared")
    assert contents(tmp_path / "plots") == contents(domain / "plots/train")


@pytest.mark.slow
def test_side_by_side_as_alone_though_a_worker_is_killed_and_another_domain_has_bad_data(alone, project):
    names = ("first", "second", "third")
    shutil.copytree(alone / "data/domains/second", project / "data/domains/wrong")  # of an earlier run
    before = contents(project / "data/domains/wrong")
    process = start(project, *names, "wrong")
    saved = project / "data/domains/first/prepared"
    wait_for(
        lambda: process.poll() is not None or (saved.is_dir() and list(project.glob(".cse/resume/*/state.pt"))), 300
    )
    victims = training_workers(process)
    assert 1 <= len(victims) <= 2, process.communicate(timeout=60)
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=400)
    assert process.returncode == 2, output + errors
    outcomes = said(errors, (*names, "wrong"))
    assert "raw/wrong/train/rows.csv" in outcomes.pop("wrong")
    assert outcomes == dict.fromkeys(names, "trained")
    assert contents(project / "data/domains/wrong") == before, "the results of an earlier run stay"
    for name in names:
        mine, expected = results(project, name), results(alone, name)
        assert [file for file in expected if mine.get(file) != expected[file]] == []
        dev = json.loads(mine["scores"])["dev_spearman"]
        assert dev is None if name == "first" else isinstance(dev, float)
    assert not list((project / ".cse/resume").iterdir())
    assert not list(project.rglob(".*.cse-tmp-*"))


def test_mistakes_start_nothing(project, monkeypatch):
    monkeypatch.chdir(project)
    for names, line in (
        ((), "name domains of bank.domains in params.yaml"),
        (("second", "thrid"), "bank.domains: no domain 'thrid'; did you mean 'third'?"),
    ):
        assert line in refusal(main.callback, names, None)
    assert not (project / "data").exists()
