"""The example that holds all of PromCSE in one file trains step by step as the project does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cse.data.store import TRAIN_FILE, VIEW_COLUMNS, PreparedData, open_rows
from cse.data.tasks.store import TEST, open_tasks
from cse.training.state import copy_into
from tests.rows import write_lines, write_table
from tests.systems.test_every_preset import score
from tests.systems.tiny import Watch, make_data, make_models, run_training, tiny

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/promcse.py"
LINE = re.compile(r"step (\d+)  nt_xent (\S+)  energy_hinge (\S+)  loss (\S+)")


@pytest.mark.slow
def test_the_losses_and_the_score_are_those_of_cse_train(tmp_path):
    models, data, steps, rate = make_models(tmp_path / "models"), make_data(tmp_path / "data"), 40, 1e-3
    folder = models["bert"]
    changes = {"backbone.name": str(folder), "train.learning_rate": rate, "train.max_steps": steps}
    changes |= {"train.epochs": 20, "train.row_groups": 1, "train.eval_every": steps}
    watch = Watch()
    prepared = run_training(tiny("promcse-eh-minilm", models, tmp_path, changes), data, tmp_path / "run", watch)
    columns, (task,) = VIEW_COLUMNS["triplets"], open_tasks(PreparedData(prepared), TEST)
    rows = open_rows(prepared / TRAIN_FILE).to_pylist()
    triplets = write_table(tmp_path / "triplets.csv", columns, ([row[name] for name in columns] for row in rows))
    pairs = zip(task.score, task.sentence1, task.sentence2, strict=True)
    sts = write_lines(tmp_path / "sts.csv", (f"genre\tfile\tyear\t1\t{gold}\t{one}\t{two}" for gold, one, two in pairs))

    options = ["--sts", sts, "--steps", steps, "--batch-size", 8, "--learning-rate", rate]
    command = [sys.executable, *map(str, [EXAMPLE, folder, triplets, *options])]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    printed = [[float(number) for number in found] for found in LINE.findall(done.stdout)]
    names = ("nt_xent", "energy_hinge", "loss")
    recorded = [[each.step, *(each.terms[name] for name in names)] for each in watch.records]
    assert [row[0] for row in printed] == list(range(5, steps + 1, 5))
    assert printed == [pytest.approx(row, rel=1e-5) for row in recorded]
    assert printed[0][3] != pytest.approx(printed[-1][3], rel=1e-2)
    copy_into(watch.encoder.trainable(), watch.state.weights)  # the last ones, whatever dev pairs chose
    (task,) = open_tasks(PreparedData(prepared), TEST)
    assert float(done.stdout.split()[-1]) == pytest.approx(score(watch.encoder.eval(), task), abs=0.01)
