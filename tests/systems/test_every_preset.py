"""Every preset trains for a few steps on a tiny random backbone: which weights, every loss term against recorded ones.

Those that together have every part are evaluated (scores are the model's), and a few that have every part of what is
served are exported, as slow tests: to trace a graph takes longer than all else.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from cse.data.store import PreparedData
from cse.data.tasks.kinds import ScoredPairs
from cse.data.tasks.store import TEST, open_dev, open_tasks
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings.presets import preset_names
from cse.stages.evaluate import evaluate_stage
from cse.stages.export import export_stage
from tests.systems.record import RECORDED, losses_of
from tests.systems.tiny import COVER, EXPORTED, FAST, PARITY, Watch, make_world, run_training, tiny

STEPS = 3
RECORDED_LOSSES = json.loads(RECORDED.read_text(encoding="utf-8"))
CASES = [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in preset_names()]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[dict[str, Path], dict[str, Path], Path]:
    return make_world(tmp_path_factory.mktemp("systems"))


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
    frozen = watch.before.keys() - trained.keys()
    assert all(encoder.get_parameter(name).grad is None for name in frozen)
    assert all(torch.equal(encoder.get_parameter(name), watch.before[name]) for name in frozen)
    assert len(frozen) > 40 or parts["backbone"]
    still = {name for name in trained if torch.equal(state.weights[name], watch.before[name])}
    # a template's noise passes through the projector too and is subtracted, so the LayerNorm bias cancels
    cancels = settings.template.denoise != "none" and settings.pooler.projector == "mlm_transform"
    assert still == ({"mlp.2.bias"} if cancels else set())

    found = dict(watch.records[-1].terms)
    assert watch.records[-1].step == state.step >= STEPS
    assert found.keys() - {"loss"} == {name for name, term in settings.objective if term.weight > 0}
    assert all(np.isfinite(value) and value != 0 for value in found.values()), found
    own = {"replaced_tokens", "contrastive_tension", "self_guided", "nli_softmax"}
    own |= {"masked_lm"} if settings.objective.masked_lm.train_head else set()
    assert {name.split(".")[2] for name in state.weights if name.startswith("loss.")} == own & found.keys()


def score(encoder: SentenceEncoder, pairs: ScoredPairs) -> float:
    first, second = (encoder.encode(list(side)) for side in (pairs.sentence1, pairs.sentence2))
    return 100 * spearmanr((first * second).sum(axis=1), pairs.score).statistic


@pytest.mark.parametrize("name", CASES)
def test_preset(name, world, tmp_path):
    models, data, warm_start = world
    settings, watch = tiny(name, models, warm_start), Watch()
    prepared = run_training(settings, data, tmp_path, watch)
    facts = json.loads((tmp_path / "train.json").read_text(encoding="utf-8"))
    if settings.train.parameters == "none":
        assert watch.state is None and "steps" not in facts
    else:
        check_training(settings, watch)
        # other processors round differently; run python -m tests.systems.record to rewrite the file
        assert losses_of(watch) == pytest.approx(RECORDED_LOSSES[name], rel=1e-4), "losses differ from those recorded"
        assert facts["steps"] == watch.state.step
    if name not in COVER:
        return
    loaded = SentenceEncoder.load(tmp_path / "checkpoint")
    dev = open_dev(PreparedData(prepared))
    assert facts["dev_spearman"] == pytest.approx(score(loaded, dev), abs=1e-3)
    chooses = settings.train.selection == "training" and watch.state is not None
    assert ("selection_spearman" in facts) == chooses
    if chooses:
        with watch.encoder.read_as_in_training():
            assert facts["selection_spearman"] == pytest.approx(score(watch.encoder, dev), abs=1e-3)

    places = {name: tmp_path / name for name in ("checkpoint", "records", "plots")}
    evaluate_stage(settings, prepared=prepared, metrics=tmp_path / "evaluation.json", **places)
    evaluation = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    (task,) = open_tasks(PreparedData(prepared), TEST)
    assert evaluation["trained"]["task"] == pytest.approx(score(loaded, task), abs=1e-3)
    if name not in EXPORTED:
        return
    export_stage(settings, model=tmp_path / "checkpoint", prepared=prepared, metrics=(), bundle=tmp_path / "bundle")
    sentences = ["the cat sleeps", "a dog runs near the old house in the rain", "book"]
    served = OnnxEncoder(tmp_path / "bundle", provider="cpu", threads=1).encode(sentences)
    assert served.shape == (3, settings.post.dimension or (12 if "glove" in name else 32))
    np.testing.assert_allclose(served, loaded.encode(sentences), atol=PARITY)
