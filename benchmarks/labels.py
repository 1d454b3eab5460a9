"""Few labelled rows: ``cse adapt`` against SetFit and a classifier on the bare vectors, by accuracy on the test rows.

    python -m benchmarks.labels FOLDER                              # train.* and test.* of labelled texts; an hour
    python -m benchmarks.labels FOLDER --rows 5 --draws 1 --setfit max_steps=30 max_steps=100 num_iterations=20

For each number of rows a label and each draw of them: the bare backbone, ``cse adapt --labels`` as a user runs it, and
SetFit (package ``setfit``: pip install -e '.[benchmarks]') on the same backbone, as many steps as ``--setfit`` says.
Every model's vectors are judged alike: by a logistic regression on the drawn rows, and by the nearest class mean.
SetFit's own regression is given too. Its best, by the mean over the draws on these same test rows, is what
``cse adapt`` is compared with: a choice in SetFit's favour. The interval and p value of each difference know of both
chances, test rows and draws, and every contestant has the same of both.

What has ended is on record in .cse/benchmarks/labels: the same command goes on from there; delete the folder to
measure another version of the code.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import FOLDER, facts, parser_of, run, say, table
from cse import OnnxEncoder
from cse.bench.ledger import Ledger
from cse.cli.adapt import Duration
from cse.data.shape import read_rows
from cse.data.tasks.read import splits_of
from cse.errors import CseError
from cse.evaluation.comparison import Outcomes, compare
from cse.evaluation.tasks.labels import class_mean_hits, probe_hits, same_label_precisions
from cse.files import fingerprint
from cse.model.backbone_files import find_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.model import BackboneSettings

BARE, OURS, SETFIT = "the bare backbone", "cse adapt", "SetFit"
MEASURES = ("accuracy", "class mean", "MAP")
OWN = "its own classifier"


@dataclass(frozen=True)
class LabelledRows:
    """Texts, each with the number of its label."""

    texts: list[str]
    label: np.ndarray
    names: list[str]

    @classmethod
    def read(cls, path: Path) -> LabelledRows:
        """Read a file of labelled texts."""
        rows = [row for row in read_rows(path, "categories", None) if row.label and row.texts[0]]
        names = sorted({str(row.label) for row in rows})
        number = {name: place for place, name in enumerate(names)}
        label = np.array([number[str(row.label)] for row in rows])
        return cls([str(row.texts[0]) for row in rows], label, names)

    def drawn(self, rows: int, seed: int) -> LabelledRows:
        """Return so many rows of each label, all of a label that has fewer."""
        rng = random.Random(seed)
        places = [np.flatnonzero(self.label == label).tolist() for label in range(len(self.names))]
        kept = sorted(place for of in places for place in rng.sample(of, min(rows, len(of))))
        return LabelledRows([self.texts[place] for place in kept], self.label[kept], self.names)

    def write(self, path: Path) -> None:
        """Write a table that ``cse adapt --labels`` reads."""
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                [("text", "label"), *((t, self.names[n]) for t, n in zip(self.texts, self.label, strict=True))]
            )


Encode = Callable[[list[str]], np.ndarray]
Found = dict[str, list[float]]  # by measure, of each test row, from 0 to 1


def judged(encode: Encode, train: LabelledRows, test: LabelledRows) -> Found:
    """Return the ``MEASURES`` of an encoder's unit vectors for each test row."""
    reference, vectors = (np.asarray(encode(rows.texts), np.float32) for rows in (train, test))
    rows = vectors, test.label, reference, train.label
    found = probe_hits(*rows), class_mean_hits(*rows), same_label_precisions(vectors, test.label)
    return {name: np.round(items, 4).tolist() for name, items in zip(MEASURES, found, strict=True)}


def of_bare(backbone: str, train: LabelledRows, test: LabelledRows) -> Found:
    """Measure the bare backbone."""
    encoder = SentenceEncoder.load(backbone)
    return judged(lambda texts: np.asarray(encoder.encode(texts, normalize=True)), train, test)


def of_adapt(options: argparse.Namespace, train: LabelledRows, test: LabelledRows) -> Found:
    """Adapt as a user does, measure the bundle, and say what is in it."""
    with tempfile.TemporaryDirectory(prefix="labels-") as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        train.write(folder / "rows/train.csv")
        test.write(folder / "rows/test.csv")
        command = [sys.executable, "-m", "cse.cli", "adapt", "--labels", "rows", "--budget", f"{options.budget:.0f}s"]
        command += [*options.adapt, "--out", "adapted", "-s", f"backbone.name={options.backbone}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CseError(f"cse adapt returned {done.returncode}: {done.stderr.strip().splitlines()[-1][:300]}")
        say("\n".join(re.findall("^(?:plan|in the bundle): .*", done.stderr + done.stdout, re.MULTILINE)))
        encoder = OnnxEncoder(folder / "adapted/bundle")
        return judged(lambda texts: encoder.encode(texts, normalize=True), train, test)


def of_setfit(backbone: str, how: str, train: LabelledRows, test: LabelledRows, seed: int) -> Found:
    """Train SetFit in one of the ways of ``--setfit`` and measure its vectors, and its own classifier."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    key, _, number = how.partition("=")
    own = {key: int(number)} if number else {}
    with tempfile.TemporaryDirectory(prefix="setfit-") as folder:
        model = SetFitModel.from_pretrained(str(find_backbone(backbone).folder), device="cpu")
        arguments = TrainingArguments(
            output_dir=folder, save_strategy="no", report_to="none", show_progress_bar=False, seed=seed, **own
        )
        rows = Dataset.from_dict({"text": train.texts, "label": train.label.tolist()})
        Trainer(model=model, args=arguments, train_dataset=rows).train()
    encode = model.model_body.encode
    found = judged(lambda texts: encode(texts, normalize_embeddings=True), train, test)
    predicted = np.asarray(model.predict(test.texts, as_numpy=True))
    return found | {OWN: (predicted == test.label).astype(float).tolist()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything and return the figures."""
    splits = splits_of(options.folder) if options.folder.is_dir() else None
    if splits is None:
        raise CseError(f"{options.folder}: no folder with train.* and test.* of labelled texts")
    everything, test = LabelledRows.read(splits["train"]), LabelledRows.read(splits["test"])
    if test.names != everything.names:
        raise CseError(f"{options.folder}: train.* and test.* have other labels")
    contestants = [BARE, OURS, *(f"{SETFIT} {how}".replace(" default", "") for how in options.setfit)]
    ledger = Ledger(FOLDER / "labels", "delete it to measure this again")
    of = {"the texts": fingerprint({}, list(splits.values())), "backbone": options.backbone}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for rows in options.rows:
        draws = found[str(rows)] = {name: [] for name in contestants}
        for draw in range(options.draws):
            train = everything.drawn(rows, seed=1000 * rows + draw)
            works = [
                partial(of_bare, options.backbone, train, test),
                partial(of_adapt, options, train, test),
                *(partial(of_setfit, options.backbone, how, train, test, draw) for how in options.setfit),
            ]
            for name, work in zip(contestants, works, strict=True):
                own = of | ({"budget": options.budget, "options": options.adapt} if name == OURS else {})
                record = ledger.run(f"{options.folder.resolve().name} {rows} {draw} {name}", work, of=own)
                items = {measure: np.array(values) for measure, values in record.result.items()}
                draws[name].append(items | {"seconds": record.seconds})
                told = ", ".join(f"{key} {100 * np.mean(value):.2f}" for key, value in items.items())
                say(f"{rows} rows a label, draw {draw + 1}: {name}: {told}, {record.seconds:.0f} s")
    figures = {
        rows: {
            name: [{key: float(np.mean(value)) for key, value in each.items()} for each in of]
            for name, of in by.items()
        }
        for rows, by in found.items()
    }
    of_run = {"folder": options.folder.name, "backbone": options.backbone, "figures": figures}
    return facts("cpu") | of_run | {"table": _table(found)}


def _table(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Return the means over draws, and on each line the difference of ``cse adapt`` to it."""
    lines = []
    for rows, of in found.items():
        ours = np.array([draw[MEASURES[0]] for draw in of[OURS]])
        for name, draws in of.items():
            mean = {key: f"{100 * np.mean([draw[key] for draw in draws]):.2f}" for key in draws[0]}
            best = max((key for key in (MEASURES[0], OWN) if key in mean), key=lambda key: float(mean[key]))
            ahead = "" if name == OURS else _ahead(ours - np.array([draw[best] for draw in draws]))
            seconds = f"{np.mean([draw['seconds'] for draw in draws]):.0f}"
            lines.append((f"{rows}, {name}", *(mean.get(key, "-") for key in (*MEASURES, OWN)), seconds, ahead))
    head = ("rows a label", *MEASURES, OWN, "seconds", "cse adapt's accuracy minus its best")
    return table(head, lines)


def _ahead(difference: np.ndarray) -> str:
    """Return the mean of differences ``(draws, test rows)`` with its 95 % interval and p, which know of both."""
    nothing = Outcomes(np.zeros((1, difference.shape[1])), trained=False)
    one = compare(nothing, Outcomes(difference))
    return f"{one.difference:+.2f} ({one.low:+.2f} to {one.high:+.2f}; p {one.p:.3f})"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="train.* and test.* of labelled texts")
    parser.add_argument("--rows", type=int, nargs="+", default=[5, 10, 20], help="a label")
    parser.add_argument("--draws", type=int, default=3, help="of each number of rows")
    parser.add_argument("--budget", default="3m", help="of each `cse adapt`")
    parser.add_argument("--adapt", nargs="*", default=[], metavar="OPTION", help="further options of `cse adapt`")
    parser.add_argument(
        "--setfit", nargs="*", default=["max_steps=100"], metavar="HOW",
        help="trainings of SetFit: default, max_steps=N or num_iterations=N; 77 labels have by default 9,000 steps at "
        "5 rows and 150,000 at 20; max_steps=100 is its best of those tried on 77 labels",
    )  # fmt: skip
    parser.add_argument("--backbone", default=BackboneSettings().name, help="as in backbone.name")
    options = parser.parse_args(arguments)
    options.budget = Duration().convert(options.budget, None, None)
    return options


def main() -> int:
    """Print the table and keep the figures."""
    return run("labels", lambda: measure(parse()))


if __name__ == "__main__":
    sys.exit(main())
