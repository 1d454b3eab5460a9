"""Sweeps with a real Ray: killed and resumed, a worker killed, refusals; and `cse tune` with real DVC."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys

import psutil
import pytest

from cse.data.store import PreparedData
from cse.data.tasks.store import TASKS_FILE, TEST, open_dev, open_tasks, write_tasks
from tests.pipeline.workspace import ROOT
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GRID = ("-s", "tune.over=['train.learning_rate=[0.01, 1e30]', 'prompt.length=[2, 3]']")
LONG = ("-s", "train.epochs=60", "-s", "train.eval_every=100", "-s", "train.save_seconds=0")


# the sweep behind ``cse tune`` over prepared data, without DVC
SCRIPT = """
import sys
import click
from cse.cli.options import data_option, settings_from, settings_options
from cse.stages.common import SCRATCH, run_safely
from flows.tune import sweep_and_confirm, tune

@click.command()
@settings_options
@data_option
def main(params, overrides, data, **trials):
    sweep_and_confirm(settings_from(params, overrides), data, scratch=SCRATCH, **trials)

main.params += [option for option in tune.params if option.name in ("names", "seeds", "confirm", "against")]
sys.exit(run_safely(lambda: main.main(standalone_mode=False)))
"""


def start(folder, *options):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *options], cwd=folder, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(folder, *options, code=0):
    process = start(folder, *options)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    assert "Traceback" not in output
    return output


def trials_of(folder):
    (path,) = folder.glob(".cse/tune/*/trials.csv")
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def scores(folder):
    return {(row["train.learning_rate"], row["prompt.length"]): row["dev_spearman"] for row in trials_of(folder)}


def finished(folder):
    """The records of trials that did not fail, by the names of their folders."""
    records = {path.parent.name: path.read_bytes() for path in folder.glob(".cse/tune/*/trials/*/run.json")}
    return {name: record for name, record in records.items() if not json.loads(record)["reason"]}


def test_a_killed_driver_goes_on_and_ends_as_if_nothing_had_been(folder, tmp_path_factory, forking_python, monkeypatch):
    first = start(folder, *GRID, *LONG)
    wait_for(lambda: finished(folder))
    assert first.poll() is None  # in mid-sweep
    first.kill()
    first.communicate(timeout=60)
    done = finished(folder)
    assert done
    monkeypatch.setattr(sys, "executable", forking_python)  # nothing of what follows is killed

    output = finish(folder, *GRID, *LONG)
    on_record = re.search(r"(\d) of 4 trials are on record", output)  # one may have failed meanwhile, or ended
    assert len(done) <= int(on_record[1]) < 4
    assert finished(folder).items() >= done.items()  # nothing that was done is done again
    assert len(trials_of(folder)) == 4

    other = tmp_path_factory.mktemp("undisturbed")
    for name in ("data", "params.yaml"):
        (other / name).symlink_to(folder / name)
    finish(other, *GRID, *LONG)
    assert scores(folder) == scores(other)
    failed = [row for row in trials_of(folder) if row["state"] == "failed"]
    assert len(failed) == 2 and all("the loss is" in row["reason"] for row in failed)

    done = finished(folder)
    assert "best: trial" in finish(folder, *GRID, *LONG)  # a sweep that is done is only shown
    assert finished(folder) == done


def test_a_trial_whose_worker_is_lost_goes_on_in_another(folder):
    process = start(folder, "-s", "tune.over=['prompt.length=[2]']", *LONG)
    wait_for(lambda: process.poll() is not None or [*folder.glob(".cse/tune/*/trials/*/scratch/resume/*/state.pt")])
    family = psutil.Process(process.pid).children(recursive=True)
    (worker,) = (one for one in family if "ray::ImplicitFunc" in " ".join(one.cmdline()))
    worker.kill()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and output.count("running, length 2") == 2, output
    assert [row["state"] for row in trials_of(folder)] == ["finished"]


@pytest.mark.usefixtures("forked")
def test_default_search_stops_what_falls_behind(folder):
    """Four CPU-bound trials at a time would hide it."""
    options = (
        "-s", "tune.over=['train.learning_rate=1e-3..10 log', 'prompt.length=2..6']", "-s", "tune.trials=8",
        "-s", "train.epochs=10",
    )  # fmt: skip
    output = finish(folder, *options)
    rows = trials_of(folder)
    assert len(rows) == 8 and {"finished", "stopped"} <= {row["state"] for row in rows}, output
    assert all(int(row["percent"]) < 100 for row in rows if row["state"] == "stopped")
    assert (rows[0]["train.learning_rate"], rows[0]["prompt.length"]) == ("0.01", "4")  # the setting of now
    (state,) = folder.glob(".cse/tune/*/tune/tuner.pkl")
    (state.parents[1] / "search.json").unlink()  # killed before it was written: no trial is left to run
    assert "resuming the sweep" in finish(folder, *options)
    done = finished(folder)
    state.write_bytes(state.read_bytes()[:100])  # cut off by a full disk, or by a kill
    (state.parents[1] / "search.json").unlink()
    output = finish(folder, *options)
    assert "is truncated; restarting the search, but keeping finished trials" in output
    assert finished(folder).items() >= done.items()


WAYS = """
settings:
  plain: {}
  fast: {train.learning_rate: 0.1}
  full: {train.parameters: full, prompt.kind: none, prompt.length: 0, train.learning_rate: 1.0e-4}
  wrong: {train.learning_rate: 1.0e+30}
"""


def choices_of(folder):
    (path,) = folder.glob(".cse/tune/*/choices.json")
    return json.loads(path.read_text(encoding="utf-8"))["result"]


@pytest.mark.usefixtures("forked")
def test_the_best_are_trained_with_seeds_chosen_and_only_then_tested(folder):
    """What is on record is trained and measured once; a test set is opened once the choice is on record."""
    (folder / "ways.yaml").write_text(WAYS, encoding="utf-8")
    space = ("-s", "tune.space=ways.yaml", "-s", "train.device=cpu", "-s", "evaluation.device=cpu")
    finish(folder, *space)
    swept = finished(folder)
    assert len(trials_of(folder)) == 4 and len(swept) == 3
    assert not list(folder.glob(".cse/tune/**/record"))
    prepared = folder / "data/prepared"
    dev, tested = open_dev(PreparedData(prepared)), open_tasks(PreparedData(prepared), TEST)
    (prepared / TASKS_FILE).unlink()
    write_tasks(prepared, dev=dev)  # no test set is there
    failed = finish(folder, *space, "--confirm", "2", "--seeds", "2", code=2)
    assert "no data for sts, cxc, tasks" in failed
    ((choice,), confirmed) = choices_of(folder), finished(folder)
    assert choice["blind"] and [len(scores) for scores in choice["dev"].values()] == [2, 2]
    assert len(confirmed) == 3 + 2 and confirmed.items() >= swept.items()
    (prepared / TASKS_FILE).unlink()
    write_tasks(prepared, dev=dev, test=tested)

    best, second = choice["dev"]
    output = finish(folder, *space, "--confirm", "2", "--seeds", "2", "--against", second)
    assert finished(folder) == confirmed and choices_of(folder) == [choice]
    assert f"{best}, {second}; no test set was open" in output
    table = output.partition("; no test set was open\n")[2].splitlines()
    assert [line.split()[:2] for line in table[1:4]] == [["backbone", "1"], [best, "2"], [second, "2"]]
    assert f"{best} (2 seeds) against {second} (2 seeds)" in output
    records = {path: path.stat().st_mtime_ns for path in folder.glob(".cse/tune/**/record/record.json")}
    assert len(records) == 5

    one, other = [path.parents[1] for path in sorted(records) if "trials" in path.parts][:2]
    shutil.rmtree(one / "checkpoint")
    shutil.copytree(other / "checkpoint", one / "checkpoint")
    output = finish(folder, *space, "--confirm", "3", "--seeds", "1")
    assert "not blind, since a test set had been opened before" in output
    assert [choice["blind"] for choice in choices_of(folder)] == [True, False]
    changed = [path for path, when in records.items() if path.stat().st_mtime_ns != when]
    assert changed == [one / "record/record.json"]


@pytest.mark.usefixtures("forked")
def test_refusals_are_one_line_and_fast(folder):
    for options, says in [
        (("-s", "tune.gpus_per_trial=4.0"), "tune.gpus_per_trial: 4 GPUs per trial, but there are 0"),
        (("-s", "tune.cpus_per_trial=999"), "tune.cpus_per_trial: a trial takes 999 CPUs of one machine, and Ray has"),
    ]:
        last = finish(folder, *options, code=2).splitlines()[-1]
        assert last.startswith("error: ") and says in last
    (folder / "data/prepared" / TASKS_FILE).unlink()
    write_tasks(folder / "data/prepared")
    last = finish(folder, code=2).splitlines()[-1]
    assert "no dev pairs to score trials on" in last


def test_the_best_is_promoted_and_restored(finished_tiny_clone, tmp_path):
    workspace = finished_tiny_clone.copy(tmp_path / "work")
    tune = ("cse", "tune", "--over", "train.learning_rate=[0.02, 0.5]")
    params = (workspace.folder / "params.yaml").read_bytes()
    output = workspace.run(*tune)
    assert (workspace.folder / "params.yaml").read_bytes() == params
    assert workspace.run("git", "status", "--porcelain").strip() == ""
    score = re.search(r"best: trial \d+, dev (\S+) with", output)[1]
    output = workspace.run(*tune, "--promote")
    assert re.search(r"^\+ train\.learning_rate: ", output, flags=re.M)
    assert "`dvc repro` restores the best trial's training" in output
    text = (workspace.folder / "params.yaml").read_text()
    assert text.count("#") == params.decode().count("#")  # comments are kept
    output = workspace.run("dvc", "repro")
    assert "Stage 'train' is cached" in output
    found = json.loads((workspace.folder / "data/metrics/train.json").read_text())
    assert found["dev_spearman"] == pytest.approx(float(score), abs=0.005)

    # trained anew instead of restored it lands there too
    workspace.run("dvc", "repro", "--force", "--single-item", "train")
    assert json.loads((workspace.folder / "data/metrics/train.json").read_text()) == found
