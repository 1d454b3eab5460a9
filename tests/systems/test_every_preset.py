"""Every preset trains for a few steps on a tiny random backbone, evaluates, exports with parity and loads again.

Of each training: what is trained and what is not, every term of its loss, dropout, and that scores are the model's.

Presets share parts. A few of them have every part between them and are fast tests; the others are slow ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from cse.data.scored import ScoredPairs
from cse.data.store import DEV_FILE, TASKS_FILE, TRAIN_FILE, PreparedData, write_pairs, write_rows
from cse.model.encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings.load import check_settings, set_key
from cse.settings.presets import load_preset, preset_names
from cse.stages.corrupt import corrupt_stage
from cse.stages.evaluate import evaluate_stage
from cse.stages.export import export_stage
from cse.stages.train import Training, train_stage
from cse.training.state import RunState
from tests.conftest import WORDS, make_backbone_folder, write_report
from tests.training.helpers import Recorder

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
    run_training(tiny("mlm-warmup-bert-base", models, out), data, out, Watch())
    return out / "checkpoint"


class Watch(Recorder):
    """Runs a training and keeps what it found before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.state: RunState | None = None
        self.zeros: list[float] = []  # share of zeros behind the first dropout of each pass in training

    def __call__(self, training: Training) -> RunState:
        self.encoder = training.encoder
        self.before = {name: weight.detach().clone() for name, weight in self.encoder.named_parameters()}
        first = self.encoder.backbone.model.embeddings.dropout
        hook = first.register_forward_hook(self._count)
        self.state = training.run(self)
        hook.remove()
        return self.state

    def _count(self, module, _, output) -> None:
        if module.training:
            self.zeros.append((output == 0).float().mean().item())


def check_training(settings, watch: Watch) -> None:
    encoder, state, prompt = watch.encoder, watch.state, settings.prompt
    trained = encoder.trainable()
    parts = {
        "prompt": prompt.kind != "none",
        "cls": prompt.cls,
        "template": settings.template.trained,
        "mlp": settings.pooler.mlp != "none",
        "cnn": settings.pooler.kind == "cnn",
        "backbone": settings.train.parameters == "full",
    }
    assert {name.split(".")[0] for name in trained} == {part for part, wanted in parts.items() if wanted}
    if prompt.kind != "none":
        layers = {"key_value": 2 * 3, "hidden_state": 3, "input": 1}[prompt.kind]
        size = prompt.length * 32 * (layers // 3 if prompt.layers == "shared" else layers)
        assert encoder.prompt.values().numel() == size

    frozen = watch.before.keys() - trained.keys()
    assert all(encoder.get_parameter(name).grad is None for name in frozen)
    assert all(torch.equal(encoder.get_parameter(name), watch.before[name]) for name in frozen)
    assert len(frozen) > 40 or parts["backbone"]
    still = {name for name in trained if torch.equal(state.weights[name], watch.before[name])}
    # a template's noise goes through the projector too and is subtracted: the bias of its LayerNorm cancels
    cancels = settings.template.denoise != "none" and settings.pooler.projector == "mlm_transform"
    assert still == ({"mlp.2.bias"} if cancels else set())

    weights = {name: term["weight"] for name, term in settings.objective.model_dump().items() if term["weight"] > 0}
    if "masked_lm" in weights:
        decay = settings.objective.masked_lm
        weights["masked_lm"] *= decay.decay_rate ** ((state.step - 1) / decay.decay_steps)
    found = dict(watch.records[-1].terms)
    assert watch.records[-1].step == state.step >= STEPS
    assert found.pop("loss") == pytest.approx(sum(weights[name] * value for name, value in found.items()), rel=1e-5)
    assert found.keys() == weights.keys()
    assert all(np.isfinite(value) and value != 0 for value in found.values()), found
    own = {
        "masked_lm": settings.objective.masked_lm.train_head,
        "replaced_tokens": True,
        "contrastive_tension": True,
        "self_guided": True,
        "nli_softmax": True,
    }
    heads = {name.split(".")[2] for name in state.weights if name.startswith("loss.")}
    assert heads == {name for name in weights if own.get(name, False)}
    assert len(watch.zeros) >= state.step
    # the tiny backbones drop a tenth
    assert np.mean(watch.zeros) == pytest.approx(0.1 if settings.augment.dropout else 0.0, abs=0.03)


def score(encoder: SentenceEncoder, pairs: ScoredPairs) -> float:
    first, second = (encoder.encode(list(side)) for side in (pairs.sentence1, pairs.sentence2))
    return 100 * spearmanr((first * second).sum(axis=1), pairs.score).statistic


def run_training(settings, data: dict[str, Path], out: Path, launch=None) -> Path:
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
        launch=launch,
    )
    return prepared


@pytest.mark.parametrize("name", CASES)
def test_preset(name, models, data, warm_start, tmp_path):
    settings = tiny(name, models, warm_start)
    watch = Watch()
    prepared = run_training(settings, data, tmp_path, watch)
    facts = json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))
    if settings.train.parameters == "none":
        assert watch.state is None and "steps" not in facts
    else:
        check_training(settings, watch)
        assert facts["steps"] == watch.state.step
    loaded = SentenceEncoder.load(tmp_path / "checkpoint")
    dev = PreparedData(prepared).dev
    assert facts["dev_spearman"] == pytest.approx(score(loaded, dev), abs=1e-3)
    chooses = settings.train.selection == "training" and watch.state is not None
    assert ("selection_spearman" in facts) == chooses
    if chooses:
        with watch.encoder.read_as_in_training():
            assert facts["selection_spearman"] == pytest.approx(score(watch.encoder, dev), abs=1e-3)

    evaluate_stage(
        settings,
        prepared=prepared,
        checkpoint=tmp_path / "checkpoint",
        metrics=tmp_path / "evaluation.json",
        records=tmp_path / "records",
        plots=tmp_path / "plots",
    )
    evaluation = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    (task,) = PreparedData(prepared).tasks
    assert evaluation["trained"]["task"] == pytest.approx(score(loaded, task), abs=1e-3)

    export_stage(settings, model=tmp_path / "checkpoint", prepared=prepared, metrics=(), bundle=tmp_path / "bundle")
    sentences = ["the cat sleeps", "a dog runs near the old house in the rain", "book"]
    served = OnnxEncoder(tmp_path / "bundle", provider="cpu", threads=1).encode(sentences)
    assert served.shape == (3, settings.post.dimension or (12 if "glove" in name else 32))
    np.testing.assert_allclose(served, loaded.encode(sentences), atol=PARITY)


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
