"""Typical mistakes: each is one line that says what to do, before a package is loaded that takes seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW = {"torch", "transformers", "datasets", "sklearn", "ray", "matplotlib", "prefect", "dvc"}
FILES = {
    "intents.csv": "text,intent\nwhere is my card,card\nmy card is late,card\nhello,greeting\ngood day,greeting\n",
    "named.csv": "utterance,scenario\nwhere is my card,card\nmy card is late,card\nhello,greeting\nhi,greeting\n",
    "scored.csv": "text,label\n" + "".join(f"question {number},{number / 7:.4f}\n" for number in range(40)),
    "folder/intents.csv": "text,intent\n",
    "data/adapt/bundle/bundle.json": "{}",
    "data/checkpoint/checkpoint.json": "{}",
}
ROWS = "and none is a word; name the right column with --label-column, or give texts without labels as SOURCE"
MISTAKES = {
    "adapt --labels intent.csv": "intent.csv: no such file or folder; did you mean 'intents.csv'? (or change --labels)",
    "adapt --labels folder": "folder: labelled texts are a file, or a folder with train.* and test.*; it holds intents",
    "adapt --labels intents.csv --label-column label": "intents.csv: no column 'label' (--label-column); the columns",
    "adapt --labels named.csv": "named.csv: no column ",
    "adapt --labels scored.csv": f"scored.csv: none of the 40 labels in column label has two texts, {ROWS}",
    "adapt --labels intents.csv -s train.epoch=3": "train.epoch: unknown key; did you mean 'train.epochs'?",
    "adapt --labels intents.csv --budget soon": "Invalid value for '--budget': 'soon' is no time; write 90s, 45m or 2h",
    "adapt manual/": "manual: no such file or folder; put data there (or change the source)",
    "adapt intents.csv --task mine": "mine: no such file or folder; put data there (or change the task)",
    "adpt --labels intents.csv": "No such command 'adpt'. Did you mean 'adapt'?",
    "serve data/adapt": "data/adapt: no bundle here (bundle.json is missing); did you mean data/adapt/bundle?",
    "serve data/checkpoint": "data/checkpoint: no bundle here (bundle.json is missing); it is a checkpoint: `cse",
    "encode data/chekpoint intents.csv --out x.npy": "data/chekpoint: no such folder; did you mean 'data/checkpoint'?",
    "encode data/adapt intents.csv --out x.npy": "data/adapt: contains no checkpoint.json, bundle.json or config.json;",
    "encode data/checkpoint --out x.csv": "--out x.csv: vectors go to .npy, .parquet or .jsonl; with --classify",
    "encode data/checkpoint intent.csv --out x.npy": "Invalid value for '[TEXT]': 'intent.csv': No such file",
    "train": "data/prepared: no prepared data; run `cse prepare`",
    "train --lenght 3": "No such option '--lenght'",
    "train -p other.yaml": "other.yaml: no such file",
    "train -s train.epochs": "--set train.epochs: write it as KEY=VALUE",
    "train -s train.epochs=[2": "--set train.epochs=[2: '[2' is not a YAML value",
    "train -s train.epochs=2024-13-45": "--set train.epochs=2024-13-45: '2024-13-45' is not a YAML value",
    "train -s train.epochs=two": "params.yaml: train.epochs: input should be a valid integer, found 'two'",
    "train -s train=2": "params.yaml: train: input should be a valid dictionary",
    "train -s data.train_path=": "params.yaml: data.train_path: input should be a valid string, found None",
    "encode params.yaml intents.csv --out x.npy": "params.yaml: a file; name the folder of a checkpoint",
    "encode data/bundle": "Missing option '--out'",
    "encode data/checkpoint intents.csv --out x.npy --device openvino": "--device openvino: data/checkpoint is no ",
    "bank add data/bank data/checkpoint --name x": "data/bank: no bundle here (bundle.json is missing)",
    "prepare -s data.source=files -s data.train_path=row.csv": "row.csv: no such file or folder",
    "preset use promcse-eh-bertbase": "promcse-eh-bertbase: no such preset; did you mean 'promcse-eh-bert-base'?",
    "search data/vectors hello": "data/vectors: no index here",
    "settings augmnt": "augmnt: no setting has it in its key or meaning; did you mean 'augment'?",
}
SCRIPT = f"""
import contextlib, io, json, sys
from cse.cli import main
for line in json.load(sys.stdin):
    sys.argv, told, code = ["cse", *line.split()], io.StringIO(), None
    with contextlib.redirect_stderr(told):
        try:
            main()
        except SystemExit as left:
            code = left.code
    print(json.dumps([line, code, told.getvalue(), sorted({SLOW} & sys.modules.keys())]))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[str, tuple[int, str, list[str]]]:
    """Code, error and slow packages loaded of each command, all run in one new process."""
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps([*MISTAKES]), capture_output=True, text=True, timeout=120,
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {*FILES, "params.yaml"}, "a refused command wrote something"
    return {line: (code, error, slow) for line, code, error, slow in found}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_at_once(told, line):
    code, error, slow = told[line]
    assert code == 2
    assert error.startswith(f"error: {MISTAKES[line]}"), error
    assert error.count("\n") == 1
    assert slow == []
