"""Tiny versions of every preset: tiny backbones, a few rows of each view, a few training steps."""

from pathlib import Path

import numpy as np

from cse.data.store import TRAIN_FILE, write_rows
from cse.data.tasks.kinds import ScoredPairs
from cse.data.tasks.store import write_tasks
from cse.settings import Settings
from cse.settings.load import settings_with
from cse.settings.presets import load_preset
from cse.stages.train import launched
from cse.training.ready import Training
from cse.training.state import RunState
from tests.stages.training import train_in
from tests.tiny import WORDS, make_backbone_folder, write_report
from tests.training.helpers import Recorder

ROWS, PARITY = 24, 2e-5
# Presets that together have every value and every part: some that are fast, all that a bundle may hold, others
FAST = (
    "d2cse-unsup-bert-base", "d2cse-a-minilm", "ct-unsup-bert-base", "esimcse-unsup-bert-base",
    "promcse-unsup-roberta-base", "scpcse-unsup-bert-base", "diffcse-unsup-roberta-base", "d2cse-unsup-bert-base-c-cls",
    "mirror-unsup-bert-base", "minilm-keeps",
)  # fmt: skip
EXPORTED = (
    "promptbert-sup-bert-base", "d2cse-unsup-roberta-base", "sbert-whitening", "scpcse-minilm",
    "promcse-unsup-bert-base-hidden-shared", "promptbert-unsup-roberta-base", "glove-average",
    "promcse-unsup-bert-base-input", "promptbert-unsup-bert-base", "consert-unsup-bert-base", "isbert-unsup-bert-base",
    "sbert-flow", "bert-first-last",
)  # fmt: skip
COVER = (
    *FAST, *EXPORTED, *(f"promcse-unsup-bert-base-init-{how}" for how in ("text", "mlp", "lstm", "mlm")),
    "dcpcse-unsup-roberta-base-no-mlm", "sgopt-unsup-bert-base", "sbert-sup-bert-base",
)  # fmt: skip


def make_models(root: Path) -> dict[str, Path]:
    """Make tiny backbones with MLM heads, a generator for each, and a file of word vectors."""
    root.mkdir(parents=True)
    found = {}
    for family in ("bert", "roberta"):
        whole, small = {"pooling": "mean", "max_position_embeddings": 90}, {"seed": 1, "num_hidden_layers": 1}
        for name, shape in ((family, whole), (f"{family} generator", small)):
            found[name] = make_backbone_folder(root / name.replace(" ", "-"), family, head=True, **shape)
    found["glove"] = write_words(root / "glove.txt")
    return found


def write_words(path: Path) -> Path:
    """A file of word vectors, 12 numbers each."""
    rng = np.random.default_rng(0)
    lines = [" ".join([word, *(f"{x:.4f}" for x in rng.normal(size=12))]) for word in WORDS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_data(root: Path) -> dict[str, Path]:
    """Make prepared rows of each view, with dev pairs and one task."""
    return make_views(root, {"sentences": 3 * ROWS, "pairs": ROWS, "triplets": ROWS, "labelled": ROWS}, dev=12)


def make_views(root: Path, counts: dict[str, int], *, dev: int) -> dict[str, Path]:
    """Make prepared folders by view with these numbers of rows and dev pairs, and a task of 20 pairs."""
    rng = np.random.default_rng(1)

    def text() -> str:
        return " ".join(rng.choice(WORDS, int(rng.integers(2, 9))))

    def pairs(name: str, count: int) -> ScoredPairs:
        first, second = [text() for _ in range(count)], [text() for _ in range(count)]
        return ScoredPairs(name, first, second, rng.uniform(0, 5, count))

    texts = {"sentences": 1, "pairs": 2, "triplets": 3, "labelled": 2}
    rows = {view: [tuple(text() for _ in range(texts[view])) for _ in range(count)] for view, count in counts.items()}
    labels = ("entailment", "neutral", "contradiction")
    rows["labelled"] = [(*row, labels[number % 3]) for number, row in enumerate(rows["labelled"])]
    folders = {}
    for view, lines in rows.items():
        folder = folders[view] = root / view
        folder.mkdir(parents=True)
        write_rows(folder / TRAIN_FILE, view, lines)
        write_tasks(folder, dev=pairs("dev", dev), test=[pairs("task", 20)])
        write_report(folder, view, len(lines))
    return folders


def tiny(name: str, models: dict[str, Path], warm_start: Path, more: dict | None = None):
    """Return a preset's settings with a tiny backbone, generator and budget, and ``more``; otherwise unchanged."""
    values = dict(load_preset(name).settings)
    backbone = values["backbone.name"]
    family = "roberta" if "roberta" in backbone else "bert"
    batch = min(values.get("train.batch_size", 8), 8)
    changes = {
        "backbone.name": str(models["glove" if "glove" in backbone else family]),
        "train.batch_size": batch,
        "train.epochs": 1,
        "train.eval_every": 2,
        "train.learning_rate": min(values.get("train.learning_rate", 1e-3), 1e-3),  # tiny models collapse easily
        "train.precision": "fp32",
        "train.device": "cpu",
        "post.dimension": 8 if values.get("post.kind") == "whitening" else None,
        "objective.nt_xent.queue": min(values.get("objective.nt_xent.queue", 0), 10),
        "export.tolerance": PARITY,
    }
    if values.get("objective.replaced_tokens.generator", "") not in ("", "unigram"):
        changes["objective.replaced_tokens.generator"] = "folder"
        changes["objective.replaced_tokens.generator_folder"] = str(models[f"{family} generator"])
    if values.get("prompt.init") == "checkpoint":
        changes["prompt.init_checkpoint"] = str(warm_start)
    return settings_with(Settings(), values | changes | (more or {}))


def make_world(root: Path) -> tuple[dict[str, Path], dict[str, Path], Path]:
    """Make models, data, and the checkpoint of MLM training that one preset starts from."""
    models, data, out = make_models(root / "models"), make_data(root / "data"), root / "warm"
    run_training(tiny("mlm-warmup-bert-base", models, out), data, out, Watch())
    return models, data, out / "checkpoint"


class Watch(Recorder):
    """Runs a training and keeps the weights from before and the state after it."""

    def __init__(self) -> None:
        super().__init__()
        self.state: RunState | None = None

    def __call__(self, training: Training) -> RunState:
        self.encoder = training.encoder
        self.before = {name: weight.detach().clone() for name, weight in self.encoder.named_parameters()}
        self.state = training.run(self)
        return self.state


def run_training(settings, data: dict[str, Path], out: Path, launch=launched) -> Path:
    prepared = data[settings.data.view]
    train_in(out, settings, prepared, launch=launch)
    return prepared
