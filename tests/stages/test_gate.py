"""The gate in front of a promotion, on real bundles of tiny models.

Scores are compared in tests/cli/test_bank_update.py, the measure that selected in test_dev_task.py.
"""

from __future__ import annotations

import pytest

from cse.stages.bank import judge
from cse.stages.export import export_stage
from tests.stages.training import train_in


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_bare_backbones_bundle_does_not_pass_for_a_checkpoint(models, data, settings, tmp_path, precision):
    """A prompt of one vector moves vectors less than a tolerance for int8 would allow."""
    made = settings({
        "data.view": "triplets", "prompt.length": 1, "prompt.position_shift": False, "train.learning_rate": 1e-6,
        "train.epochs": 1, "export.precision": precision, "export.score_loss": 100.0,
    })  # fmt: skip
    facts = train_in(tmp_path, made, data["triplets"])
    for model in (tmp_path / "checkpoint", models["bert"]):
        export_stage(made, model=model, prepared=data["triplets"], metrics=(), bundle=tmp_path / f"of-{model.name}")
    places = {"checkpoint": tmp_path / "checkpoint", "prepared": data["triplets"], "promoted": None}
    found = judge(made, bundle=tmp_path / "of-checkpoint", **places)
    assert found.passed, found.reasons
    assert found.difference < {"fp32": 1e-5, "int8": 0.05}[precision]
    assert precision == "int8" or found.dev == pytest.approx(facts["dev_spearman"], abs=0.01), "ONNX and torch agree"
    found = judge(made, bundle=tmp_path / "of-bert", **places)
    assert not found.passed and found.difference is None
    assert "no parity with torch" in found.reasons[0]
