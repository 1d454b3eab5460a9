"""The gate in front of a promotion, on real bundles of tiny models."""

from __future__ import annotations

import shutil

import pytest

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from cse.evaluation.score import score_dev
from cse.model.sentence_encoder import load_checkpoint
from cse.stages.bank import judge
from cse.stages.evaluate import stale_bundles
from cse.stages.export import export_stage
from tests.stages.training import train_in
from tests.tiny import write_dev


@pytest.fixture(scope="module")
def made(data, settings, tmp_path_factory) -> dict[int, tuple]:
    """Checkpoints and bundles by seed, with their dev scores by torch."""
    found = {}
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp(f"seed{seed}")
        of_seed = settings({"data.view": "triplets", "train.seed": seed, "train.learning_rate": 0.3})
        train_in(folder, of_seed, data["triplets"])
        export_stage(
            of_seed, model=folder / "checkpoint", prepared=data["triplets"], metrics=(), bundle=folder / "bundle"
        )
        score = score_dev(load_checkpoint(folder / "checkpoint"), open_dev(PreparedData(data["triplets"]))).value
        found[seed] = (folder, of_seed, score)
    assert abs(found[1][2] - found[2][2]) > 0.5, "these tests need two scores"
    return found


def test_a_bundle_names_the_checkpoint_that_it_was_made_from(made):
    folders = {seed: folder for seed, (folder, _, _) in made.items()}
    assert stale_bundles([str(folders[1] / "checkpoint"), str(folders[1] / "bundle")]) == []
    (line,) = stale_bundles([str(folders[2] / "checkpoint"), str(folders[1] / "bundle")])
    assert line.startswith(f"{folders[1] / 'bundle'}: was not exported from {folders[2]}")


def verdict(made, data, new: int, old: int | None, dev_tolerance: float = 0.5, **changes):
    folder, settings, _ = made[new]
    promotion = settings.promotion.model_copy(update={"dev_tolerance": dev_tolerance})
    settings = settings.model_copy(update={"promotion": promotion})
    places = {"bundle": folder / "bundle", "checkpoint": folder / "checkpoint", "prepared": data} | changes
    return judge(settings, **places, promoted=None if old is None else made[old][0] / "bundle")


def better_and_worse(made) -> tuple[int, int]:
    return (1, 2) if made[1][2] > made[2][2] else (2, 1)


def test_the_first_model_passes(made, data):
    found = verdict(made, data["triplets"], 1, None)
    assert found.passed
    assert found.dev == pytest.approx(made[1][2], abs=0.01), "ONNX and torch agree on the score"
    assert found.promoted_dev is None
    assert found.difference < 1e-5


def test_a_better_model_passes_and_a_worse_one_does_not(made, data):
    better, worse = better_and_worse(made)
    assert verdict(made, data["triplets"], better, worse).passed
    refused = verdict(made, data["triplets"], worse, better)
    assert not refused.passed
    assert refused.dev < refused.promoted_dev
    assert "(promotion.dev_tolerance)" in refused.reasons[0]
    gap = made[better][2] - made[worse][2]
    assert verdict(made, data["triplets"], worse, better, dev_tolerance=gap + 0.1).passed
    assert not verdict(made, data["triplets"], worse, better, dev_tolerance=gap - 0.1).passed


def test_a_bundle_that_is_not_its_checkpoint(made, data):
    """The bundle of other prompts: the scores may be fine, the vectors are not those of the checkpoint."""
    better, worse = better_and_worse(made)
    found = verdict(made, data["triplets"], worse, None, bundle=made[better][0] / "bundle")
    assert not found.passed
    assert "no parity with torch" in found.reasons[0]
    assert found.difference is None


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_bare_backbones_bundle_does_not_pass_for_a_checkpoint(models, data, settings, tmp_path, precision):
    """A prompt of one vector moves vectors less than a tolerance for int8 would allow."""
    made = settings({
        "data.view": "triplets", "prompt.length": 1, "prompt.position_shift": False, "train.learning_rate": 1e-6,
        "train.epochs": 1, "export.precision": precision, "export.score_loss": 100.0,
    })  # fmt: skip
    train_in(tmp_path, made, data["triplets"])
    for model in (tmp_path / "checkpoint", models["bert"]):
        export_stage(made, model=model, prepared=data["triplets"], metrics=(), bundle=tmp_path / f"of-{model.name}")
    places = {"checkpoint": tmp_path / "checkpoint", "prepared": data["triplets"], "promoted": None}
    found = judge(made, bundle=tmp_path / "of-checkpoint", **places)
    assert found.passed, found.reasons
    assert found.difference < {"fp32": 1e-5, "fp16": 1e-3, "int8": 0.05}[precision]
    found = judge(made, bundle=tmp_path / "of-bert", **places)
    assert not found.passed
    assert "no parity with torch" in found.reasons[0]


def test_without_dev_pairs_nothing_is_compared(made, data, tmp_path):
    bare = tmp_path / "prepared"
    shutil.copytree(data["triplets"], bare)
    write_dev(bare, None)
    assert verdict(made, bare, 1, None).passed
    found = verdict(made, bare, 1, 2)
    assert not found.passed
    assert "no dev pairs" in found.reasons[0]
