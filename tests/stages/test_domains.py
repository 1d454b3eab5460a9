"""``cse.stages.domain``: a domain is the pipeline with the domain's settings, in folders of its own."""

import json
from contextlib import chdir
from pathlib import Path

import pytest

from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.domain import domain_stage
from cse.stages.prepare import prepare_stage
from tests.cli.workspace import contents, write_params
from tests.pipeline.workspace import write_pairs, write_triplets
from tests.stages.training import train_in

DOMAINS = {
    "first": "{data: raw/first, set: {train.epochs: 20}}",
    "third": "{data: raw/third, set: {data.view: pairs, objective.energy_hinge.weight: 0.0, pooler.kind: cls}}",
}


@pytest.fixture
def project(tiny_folders, tmp_path) -> Path:
    folder = tmp_path / "project"
    for seed, name in enumerate(DOMAINS):
        write_triplets(folder / f"raw/{name}/train/rows.csv", 48, seed)
        for part in ("dev", "evaluation"):
            write_pairs(folder / f"raw/{name}/{part}/{part}.csv", 16, seed)
    (folder / "raw/first/dev/dev.csv").unlink()  # so that it keeps its last weights, which all its updates made
    write_params(folder / "params.yaml", tiny_folders["bert"])
    domains = "".join(f"    {name}: {entry}\n" for name, entry in DOMAINS.items())
    with (folder / "params.yaml").open("a") as file:
        file.write(f"bank:\n  domains:\n{domains}")
    return folder


@pytest.mark.slow
def test_a_domain_is_the_pipeline_with_the_same_settings(project, tmp_path):
    paths = {f"data.{part}_path": f"raw/first/{part}" for part in ("train", "dev", "evaluation")}
    with chdir(project):
        whole = load_settings(PARAMS_FILE, any_view=True)
        for name in DOMAINS:
            domain_stage(settings_of_domain(whole, name), name)
        settings = load_settings(PARAMS_FILE, {"data.source": "files", "train.epochs": 20} | paths)
        prepare_stage(settings, prepared=tmp_path / "prepared", progress=False)
        train_in(tmp_path, settings, tmp_path / "prepared")
    domain, weights = project / "data/domains/first", "checkpoint/weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (domain / weights).read_bytes()
    assert contents(tmp_path / "prepared") == contents(domain / "prepared")
    assert contents(tmp_path / "plots") == contents(domain / "plots/train")
    for name in DOMAINS:
        dev = json.loads((project / f"data/metrics/domains/{name}.json").read_text(encoding="utf-8"))["dev_spearman"]
        assert dev is None if name == "first" else isinstance(dev, float)
