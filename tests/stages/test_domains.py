"""``cse.stages.domain``: a domain is the pipeline with the domain's settings, in folders of its own."""

import json
from contextlib import chdir

import pytest

from cse.settings.domains import settings_of_domain
from cse.settings.load import PARAMS_FILE, load_settings
from cse.stages.domain import domain_stage
from cse.stages.prepare import prepare_stage
from tests.cli.workspace import contents, write_params
from tests.pipeline.workspace import write_pairs, write_triplets
from tests.stages.training import train_in


@pytest.mark.slow
def test_a_domain_is_the_pipeline_with_the_same_settings(tiny_folders, tmp_path):
    """Without dev pairs, so that it keeps its last weights, which all its updates made."""
    project = tmp_path / "project"
    write_triplets(project / "raw/first/train/rows.csv", 48)
    write_pairs(project / "raw/first/evaluation/evaluation.csv", 16, 0)
    (project / "raw/first/dev").mkdir()
    write_params(project / "params.yaml", tiny_folders["bert"])
    with (project / "params.yaml").open("a") as file:
        file.write("bank: {domains: {first: {data: raw/first, set: {train.epochs: 20}}}}\n")
    paths = {f"data.{part}_path": f"raw/first/{part}" for part in ("train", "dev", "evaluation")}
    with chdir(project):
        domain_stage(settings_of_domain(load_settings(PARAMS_FILE, any_view=True), "first"), "first")
        settings = load_settings(PARAMS_FILE, {"data.source": "files", "train.epochs": 20} | paths)
        prepare_stage(settings, prepared=tmp_path / "prepared", progress=False)
        train_in(tmp_path, settings, tmp_path / "prepared")
    domain, weights = project / "data/domains/first", "checkpoint/weights.safetensors"
    assert (tmp_path / weights).read_bytes() == (domain / weights).read_bytes()
    assert contents(tmp_path / "prepared") == contents(domain / "prepared")
    assert contents(tmp_path / "plots") == contents(domain / "plots/train")
    metrics = json.loads((project / "data/metrics/domains/first.json").read_text(encoding="utf-8"))
    assert metrics["dev_spearman"] is None
