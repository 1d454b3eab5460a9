"""Every preset trains for a few steps on a tiny random backbone, evaluates, exports with parity and loads again.

Presets share parts. A few of them have every part between them and are fast tests; the others are slow ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cse.data.scored import ScoredPairs
from cse.data.store import DEV_FILE, TASKS_FILE, TRAIN_FILE, write_pairs, write_rows
from cse.model.encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings.load import check_settings, set_key
from cse.settings.presets import load_preset, preset_names
from cse.stages.corrupt import corrupt_stage
from cse.stages.evaluate import evaluate_stage
from cse.stages.export import export_stage
from cse.stages.train import train_stage
from tests.conftest import WORDS, make_backbone_folder, write_report

ROWS, STEPS, PARITY = 24, 3, 2e-5
# numbers do not choose code; these do, though their values are numbers
STRUCTURAL_NUMBERS = ("weight", "queue", "repeat_words", "mask_span", "cut_features", "warmup_share")


def structure(name: str) -> tuple:
    """What of a preset chooses code: every value that is no number, and which numbers are zero."""
    facts = []
    for key, value in sorted(load_preset(name).settings.items()):
        if isinstance(value, bool) or not isinstance(value, int | float):
            facts.append((key, _family(value) if key in ("backbone.name", "data.hub_file") else str(value)))
        elif key.split(".")[-1] in STRUCTURAL_NUMBERS:
            facts.append((key, value > 0))
    return tuple(facts)


def _family(name: str) -> str:
    return next((kind for kind in ("roberta", "glove", "MiniLM") if kind in name), "bert")


def cover_of_parts() -> list[str]:
    """A few presets that have every part of all presets between them: again and again the one that adds most."""
    left = {part for name in preset_names() for part in structure(name)}
    chosen = []
    while left:
        best = max(preset_names(), key=lambda name: len(left & set(structure(name))))
        chosen.append(best)
        left -= set(structure(best))
    return chosen


COVER = cover_of_parts()
CASES = [pytest.param(name, marks=[] if name in COVER else pytest.mark.slow) for name in preset_names()]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Tiny backbones with their MLM heads, a generator for each, and a file of word vectors."""
    root = tmp_path_factory.mktemp("models")
    found = {}
    for family in ("bert", "roberta"):
        found[family] = make_backbone_folder(
            root / family, family, pooling="mean", head=True, max_position_embeddings=90
        )
        found[f"{family} generator"] = make_backbone_folder(
            root / f"{family}-generator", family, seed=1, head=True, num_hidden_layers=1
        )
    rng = np.random.default_rng(0)
    lines = [" ".join([word, *(f"{x:.4f}" for x in rng.normal(size=12))]) for word in WORDS]
    found["glove"] = root / "glove.txt"
    found["glove"].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, Path]:
    """Prepared rows of each view, with dev pairs and one task."""
    rng = np.random.default_rng(1)

    def text() -> str:
        return " ".join(rng.choice(WORDS, int(rng.integers(2, 9))))

    def pairs(name: str, count: int) -> ScoredPairs:
        first, second = [text() for _ in range(count)], [text() for _ in range(count)]
        return ScoredPairs(name, first, second, rng.uniform(0, 5, count), ["all"] * count)

    labels = ["entailment", "neutral", "contradiction"]
    rows = {
        "sentences": [(text(),) for _ in range(ROWS * 3)],
        "pairs": [(text(), text()) for _ in range(ROWS)],
        "triplets": [(text(), text(), text()) for _ in range(ROWS)],
        "labelled": [(text(), text(), labels[i % 3]) for i in range(ROWS)],
    }
    folders = {}
    for view, lines in rows.items():
        folder = folders[view] = tmp_path_factory.mktemp(view)
        write_rows(folder / TRAIN_FILE, view, lines)
        write_pairs(folder / DEV_FILE, [pairs("dev", 12)])
        write_pairs(folder / TASKS_FILE, [pairs("task", 20)])
        write_report(folder, view, len(lines))
    return folders


def tiny(name: str, models: dict[str, Path], warm_start: Path):
    """A preset with a tiny backbone, generator and budget; all else as it is."""
    values = dict(load_preset(name).settings)
    family = values.get("backbone.family") or "bert"
    batch = min(values.get("train.batch_size", 8), 8)
    changes = {
        "backbone.name": str(models["glove" if _family(values["backbone.name"]) == "glove" else family]),
        "train.batch_size": batch,
        "train.epochs": 1,
        "train.eval_every": 2,
        "train.learning_rate": min(values.get("train.learning_rate", 1e-3), 1e-3),  # a tiny model collapses soon
        "train.precision": "fp32",
        "train.device": "cpu",
        "post.dimension": 8 if values.get("post.kind") == "whitening" else None,
        "objective.nt_xent.queue": min(values.get("objective.nt_xent.queue", 0), 10),
        "objective.contrastive_tension.group": 8,
        "export.tolerance": PARITY,
        "export.provider": "cpu",
    }
    if values.get("objective.replaced_tokens.generator", "") not in ("", "unigram"):
        changes["objective.replaced_tokens.generator"] = "folder"
        changes["objective.replaced_tokens.generator_folder"] = str(models[f"{family} generator"])
    if values.get("prompt.init") == "checkpoint":
        changes["prompt.init_checkpoint"] = str(warm_start)
    tree: dict = {}
    for key, value in (values | changes).items():
        set_key(tree, key, value)
    return check_settings(tree, where=name)


@pytest.fixture(scope="module")
def warm_start(models, data, tmp_path_factory) -> Path:
    """A checkpoint of MLM training, which one preset starts from."""
    out = tmp_path_factory.mktemp("warm")
    run_training(tiny("mlm-warmup-bert-base", models, out), data, out)
    return out / "checkpoint"


def run_training(settings, data: dict[str, Path], out: Path) -> Path:
    prepared = data[settings.data.view]
    corrupt_stage(settings, prepared=prepared, corrupted=out / "corrupted")
    train_stage(
        settings,
        prepared=prepared,
        corrupted=out / "corrupted",
        checkpoint=out / "checkpoint",
        metrics=out / "train.json",
        plots=out / "plots",
        scratch=out / "scratch",
    )
    return prepared


@pytest.mark.parametrize("name", CASES)
def test_preset(name, models, data, warm_start, tmp_path):
    settings = tiny(name, models, warm_start)
    prepared = run_training(settings, data, tmp_path)
    facts = json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))
    assert facts.get("steps", 0) >= (0 if settings.train.parameters == "none" else STEPS)
    assert -100 <= facts["dev_spearman"] <= 100

    evaluate_stage(
        settings,
        prepared=prepared,
        checkpoint=tmp_path / "checkpoint",
        metrics=tmp_path / "evaluation.json",
        records=tmp_path / "records",
        plots=tmp_path / "plots",
    )
    assert "task" in json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))["trained"]

    export_stage(settings, model=tmp_path / "checkpoint", prepared=prepared, metrics=(), bundle=tmp_path / "bundle")
    sentences = ["the cat sleeps", "a dog runs near the old house in the rain", "book"]
    loaded = SentenceEncoder.load(tmp_path / "checkpoint").encode(sentences)
    served = OnnxEncoder(tmp_path / "bundle", provider="cpu", threads=1).encode(sentences)
    assert loaded.shape == (3, settings.post.dimension or (12 if "glove" in name else 32))
    np.testing.assert_allclose(served, loaded, atol=PARITY)


def test_the_fast_cases_have_every_part():
    assert len(COVER) < len(preset_names()) / 2
    parts = {part for name in COVER for part in structure(name)}
    for part in (
        ("prompt.kind", "input"),
        ("prompt.layers", "shared"),
        ("prompt.cls", "True"),
        ("template.trained", "True"),
        ("pooler.projector", "batch_norm"),
        ("pooler.projector", "mlm_transform"),
        ("pooler.kind", "cnn"),
        ("post.kind", "whitening"),
        ("post.kind", "flow"),
        ("objective.masked_lm.weight", True),
        ("objective.replaced_tokens.discriminator", "copy"),
        ("objective.nt_xent.queue", True),
        ("objective.contrastive_tension.weight", True),
        ("objective.self_guided.weight", True),
        ("objective.mutual_information.weight", True),
        ("objective.nli_softmax.weight", True),
    ):
        assert part in parts, f"no preset has {part}"
