"""The pipeline end to end, as a user runs it: ``dvc repro`` in a clone, with and without changes, and kills.

A tiny random backbone stands in for the real one, so that a whole run takes seconds; test_default.py has the default.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cse.settings import load_settings
from cse.settings.document import write_values
from cse.settings.load import flatten
from cse.settings.presets import apply_preset
from tests.flows.prefect_server import end_group
from tests.pipeline.workspace import STAGES, Workspace, ran, write_triplets
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PREPARE, TRAIN, EVALUATE, EXPORT = STAGES
OUTPUTS = ("data/prepared", "data/metrics", "data/checkpoint", "data/plots", "data/bundle")
LONG = {"train.epochs": 30, "train.save_seconds": 0.0}  # 600 updates, a few seconds


@pytest.fixture(scope="module")
def finished(finished_tiny_clone, tmp_path_factory) -> Workspace:
    """A clone after ``dvc repro``; tests copy it before they change anything."""
    return finished_tiny_clone.copy(tmp_path_factory.mktemp("finished") / "clone")


@pytest.fixture
def copy(finished, tmp_path) -> Workspace:
    return finished.copy(tmp_path / "clone")


def test_repro_makes_everything_and_a_second_one_nothing(finished):
    stages = finished.locked_stages()
    assert list(stages) == list(STAGES)
    for name in OUTPUTS:
        assert finished.bytes_of(name)
    assert finished.leftovers() == []
    assert not list((finished.folder / ".cse/resume").iterdir()), "the state of a finished run is removed"
    tracked = finished.run("git", "ls-files").splitlines()  # nothing that DVC asks git to track is ignored by it
    assert {"dvc.lock", "data/.gitignore", "data/plots/.gitignore", "data/metrics/train.json"} <= set(tracked)
    assert [name for name in tracked if name.startswith(OUTPUTS[0:1] + OUTPUTS[2:3] + OUTPUTS[4:])] == []
    assert finished.run("git", "status", "--short") == ""
    # Python writes byte code beside the code; a stage that depended on it would be stale in every clone
    assert list((finished.folder / "cse").rglob("*.pyc")), "this test needs byte code to be there"
    for name, stage in stages.items():
        for dep in stage["deps"]:
            folder = finished.folder / dep["path"]
            if dep["path"].startswith("cse") and folder.is_dir():
                sources = [path for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file()]
                assert dep["nfiles"] == len(sources), f"{name}: {dep['path']} holds more than its sources"
    lock, times = finished.lock(), finished.times()
    assert finished.dvc("repro").count("didn't change, skipping") == len(STAGES)
    assert finished.lock() == lock
    assert finished.times() == times and len(times) > 60


def test_a_setting_that_the_file_lacked_makes_the_stages_stale_that_read_it(copy):
    """DVC alone decides, of a file that has the common keys alone; nothing runs here."""
    params = copy.folder / "params.yaml"
    original = params.read_text(encoding="utf-8")
    for values, expected in (
        ({"promotion.dev_tolerance": 1.0, "tune.concurrent": 3}, set()),
        ({"augment.repeat_words": 0.2, "export.tolerance": 1e-4}, {TRAIN, EXPORT}),
        ({"pooler.mlp": "train_only", "evaluation.device": "cpu"}, {TRAIN, EVALUATE}),
        ({"objective.replaced_tokens.mask_share": 0.2}, {TRAIN}),
        ({"template.end_with_period": True}, {TRAIN}),
        ({"data.encoding": "latin-1"}, {PREPARE}),
        ({"backbone.max_length": 16}, {PREPARE, TRAIN}),
    ):
        assert not values.keys() & flatten(YAML(typ="safe").load(original)).keys()
        write_values(params, values)
        assert json.loads(copy.dvc("status", "--json")).keys() == expected, values
        params.write_text(original, encoding="utf-8")


def test_a_readme_runs_nothing_and_changed_code_and_text_their_stages(copy):
    for name in ("README.md", "cse/README.md", "docs/train.md"):
        (copy.folder / name).parent.mkdir(exist_ok=True)
        (copy.folder / name).write_text("changed\n", encoding="utf-8")
    assert ran(copy.dvc("repro")) == []
    with (copy.folder / "cse/export/parity.py").open("a", encoding="utf-8") as file:
        file.write("\nraise SystemExit('the code of this clone')\n")
    output = copy.dvc("repro", fails=True)
    assert ran(output) == [EXPORT]
    assert "the code of this clone" in output
    write_triplets(copy.folder / "data/raw/train/rows.csv", 40, seed=1)
    assert ran(copy.dvc("repro", PREPARE)) == [PREPARE]
    assert json.loads((copy.folder / "data/prepared/report.json").read_text())["train"]["kept"] == 40
    assert {TRAIN, EVALUATE, EXPORT} <= json.loads(copy.dvc("status", "--json")).keys()


def test_an_experiment_has_metrics_and_plots_and_leaves_settings_that_can_be_edited(copy, tmp_path):
    """Its settings in `dvc exp show`, and one that the file lacks: docs/pipeline.md."""
    before = copy.locked_stages()
    output = copy.dvc("exp", "run", "--name", "hot", "-S", "train.learning_rate=0.5", "-S", "+augment.repeat_words=0.2")
    assert ran(output) == [TRAIN, EVALUATE, EXPORT]
    assert copy.locked_stages()[TRAIN]["outs"] != before[TRAIN]["outs"]
    metrics = json.loads(copy.dvc("metrics", "show", "--json"))[""]["data"]
    train, scores = (metrics[f"data/metrics/{name}.json"]["data"] for name in ("train", "evaluation"))
    assert isinstance(train["dev_spearman"], float) and scores.keys() == {"trained", "backbone"}
    copy.dvc("plots", "diff", "HEAD", "--out", str(tmp_path / "html"))
    html = (tmp_path / "html/index.html").read_text(encoding="utf-8")
    specs = [json.loads(text) for text in re.findall(r"var spec = (\{.*\});", html)]
    assert len(specs) == 4 and all(spec["data"]["values"] for spec in specs) and "<DVC_METRIC" not in html
    file = copy.folder / "params.yaml"
    assert load_settings(file).augment.repeat_words == 0.2
    apply_preset("simcse-unsup-bert-base", file, keep_data=True)
    write_values(file, {"post.dimension": 5, "data.columns": None})
    assert load_settings(file).post.dimension == 5


def kill_when(workspace: Workspace, there: Callable[[], object]) -> None:
    """Start ``dvc repro``, and end its whole process group with SIGKILL as soon as ``there()``."""
    process = subprocess.Popen(
        ["dvc", "repro"], cwd=workspace.folder, env=workspace.real_environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: there() or process.poll() is not None, 200, every=0.001)
    end_group(process)
    assert process.returncode == -signal.SIGKILL, "it was over before the kill"
    with contextlib.suppress(ProcessLookupError):  # until none of the group is in the process table
        wait_for(lambda: os.killpg(process.pid, 0), 30)


def test_killed_training_resumes_to_the_same_bytes(finished, tmp_path):
    whole, killed = (finished.copy(tmp_path / name / "clone") for name in ("whole", "killed"))
    for workspace in (whole, killed):
        workspace.set(LONG)
    assert ran(whole.dvc("repro", TRAIN)) == [TRAIN]
    before = killed.lock()

    def saved() -> list[Path]:
        return list(killed.folder.glob(".cse/resume/*/state.pt"))

    kill_when(killed, saved)
    assert killed.lock() == before and saved()
    assert not (killed.folder / "data/checkpoint").exists()
    output = killed.dvc("repro", TRAIN)
    assert ran(output) == [TRAIN]
    steps = re.search(r"resuming after step (\d+) of 600", output)
    assert steps and 1 <= int(steps[1]) < 600, output
    for name in ("data/checkpoint", "data/plots/train", "data/metrics"):
        assert killed.bytes_of(name) == whole.bytes_of(name)
    assert killed.lock() == whole.lock()
    assert not saved()
