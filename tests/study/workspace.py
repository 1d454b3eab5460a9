"""A study of tiny trainings: rows, dev pairs and two tasks of known words, and a file with three settings."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

from tests.pipeline.workspace import write_pairs, write_triplets
from tests.tiny import WORDS

STUDY = """
set:
  data.source: files
  data.drop: [duplicates]
  train.batch_size: 16
  train.eval_every: 3
rounds:
  screen: {set: {data.max_rows: 32}}
  whole: {seeds: [1, 2]}
  path: {snapshots: 2}
settings:
  plain: {}
  fast: {train.learning_rate: 0.1}
  full: &full {train.parameters: full, prompt.kind: none, prompt.length: 0, train.learning_rate: 1.0e-4}
  near: {objective.distillation.weight: 1.0}
  taught: {objective.distillation.weight: 1.0, objective.distillation.teacher: folder}
"""


def write_study(folder: Path, backbone: Path) -> Path:
    """Write a project's data and settings and a study's file, and return the file."""
    raw = folder / "data/raw"
    for place in ("train", "dev", "evaluation", "task/labels", "task/search/qrels"):
        (raw / place).mkdir(parents=True)
    write_triplets(raw / "train/rows.csv", 96, 0)
    write_pairs(raw / "dev/dev.csv", 30, 1)
    write_pairs(raw / "evaluation/pairs.csv", 30, 2)
    chance = random.Random(3)

    def text(label: int) -> str:
        return f"{WORDS[label]} {WORDS[label + 3]} {' '.join(chance.sample(WORDS, 4))}"

    for part, count in (("train", 20), ("test", 6)):
        with (raw / f"task/labels/{part}.csv").open("w", newline="", encoding="utf-8") as stream:
            rows = [[text(label), f"label {label}"] for label in range(3) for _ in range(count)]
            csv.writer(stream).writerows([["text", "label"], *rows])
    search = raw / "task/search"
    for name, count in (("corpus", 20), ("queries", 9)):
        lines = [json.dumps({"_id": f"{name}{number}", "text": text(number % 5)}) for number in range(count)]
        (search / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    judged = [f"queries{number}\tcorpus{(7 * number) % 20}\t1" for number in range(9)]
    (search / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n", encoding="utf-8")
    (folder / "params.yaml").write_text(
        f"backbone: {{name: {backbone}}}\nprompt: {{length: 4}}\n"
        "train: {max_length: 16, precision: fp32, device: cpu, save_seconds: 0}\n"
        "evaluation: {device: cpu, measures: [sts, tasks]}\n"
    )
    path = folder / "tiny.study.yaml"
    path.write_text(STUDY, encoding="utf-8")
    return path
