"""Stage ``evaluate``: whatever ``evaluation.measures`` names, as metrics, records and the data of plots."""

import json
import shutil

import numpy as np

from cse.data.store import REPORT_FILE, PreparedData
from cse.data.tasks.store import open_dev, write_tasks
from cse.evaluation.record import read_record
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint import identity_of, save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.report.systems import find_records, group
from cse.settings.model import BackboneSettings
from cse.stages.common import shortfall
from cse.stages.evaluate import describe_model, evaluate_stage
from cse.stages.open_model import BackboneOf, open_model
from tests.evaluation.test_suite import make_suite
from tests.parts import backbone_of, new_prompt, refusal, sentence_encoder
from tests.stages.training import train_in, write_checkpoint
from tests.tiny import WORDS, make_backbone_folder


def known(text: str) -> str:
    """The same text always as the same words of the tiny vocabulary."""
    rng = np.random.default_rng([*text.encode()])
    return " ".join(rng.choice(WORDS, 6))


def test_every_measure_through_prepared_data(data, settings, tmp_path, capsys):
    suite = make_suite(tmp_path, known)
    prepared = shutil.copytree(data["sentences"], tmp_path / "prepared")
    write_tasks(prepared, dev=open_dev(PreparedData(prepared)), test=suite.test)
    report = json.loads((prepared / REPORT_FILE).read_text(encoding="utf-8"))
    report["evaluation"]["missing"] = suite.missing
    (prepared / REPORT_FILE).write_text(json.dumps(report), encoding="utf-8")
    measures = ["sts", "cxc", "transfer", "retrieval", "space"]
    chosen = settings({"evaluation.measures": measures, "train.parameters": "none", "prompt.kind": "none",
                       "prompt.length": 0, "pooler.kind": "mean"})  # fmt: skip
    train_in(tmp_path, chosen, prepared)
    outputs = {name: tmp_path / name for name in ("checkpoint", "plots", "records")}
    evaluate_stage(chosen, prepared=prepared, metrics=tmp_path / "evaluation.json", **outputs)
    found = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))["trained"]
    assert {"STS12", "STS-B", "CxC-STS", "CR (accuracy)", "recall@1", "alignment", "uniformity"} <= set(found)
    assert next(iter(found)) == "mean of 2 tasks", "the average first, and none that is called Avg. or is of one task"
    assert not any(name.startswith("Avg.") or "mean)" in name or "mean of 1" in name for name in found)
    # the baseline is the backbone that was trained on, not whatever its name means now
    backbone = find_backbone(chosen.backbone.name)
    recorded = {"name": backbone.name, "revision": "main", "sha256": backbone.sha256}
    assert read_record(tmp_path / "records/backbone").model["backbone"] == recorded
    assert [system.name for system in group(find_records([tmp_path / "records"]))] == ["backbone", "trained"]
    assert "not measured: TREC (TREC/train_5500.label)" in capsys.readouterr().out


def test_a_model_below_its_backbone_is_said():
    below = {"trained": {"STS-B": 70.0, "STS12": 60.0}, "backbone": {"STS-B": 72.0, "STS12": 61.0}}
    assert shortfall(below) == "below its bare backbone: 65.00 against 66.50 (mean of 2 tasks)"
    assert shortfall({"trained": {"STS-B": 72.0}, "backbone": {"STS-B": 72.0}}) == ""
    assert shortfall({"trained": {"STS-B": 72.0}, "backbone": {}}) == ""


def test_the_bare_backbone_reads_texts_as_the_model_does_and_others_are_no_baseline(tmp_path):
    """Else what the task text and the length bring is counted as the training's."""
    backbone, checkpoint = make_backbone_folder(tmp_path / "backbone", "bert"), tmp_path / "checkpoint"
    checkpoint.mkdir()
    reads = {"max_length": 9, "texts": {"query": "find: "}}
    loaded = backbone_of(backbone).use_as(**reads)
    save_checkpoint(sentence_encoder(loaded, new_prompt("key_value", loaded, length=3)), checkpoint)
    plain = SentenceEncoder.load(str(backbone))
    for model in (BackboneOf(checkpoint), BackboneOf(BackboneSettings(name=str(backbone), **reads))):
        bare = open_model(model, device="cpu")
        assert (bare.encode("a dog", role="query") == plain.encode("find: a dog")).all()
        assert (bare.encode("a dog " * 20) != plain.encode("a dog " * 20)).any(), "as long as the model reads"
    shutil.rmtree(backbone)
    make_backbone_folder(backbone, "bert", seed=1)
    assert "has other weights" in refusal(open_model, BackboneOf(checkpoint), device="cpu")


def test_records_of_a_checkpoint_hold_nothing_that_tells_its_seeds_apart(models, tmp_path):
    first, second = (write_checkpoint(tmp_path / f"{std}", models["headless"], std) for std in (0.1, 0.2))
    assert identity_of(first) != identity_of(second)
    assert describe_model(str(first)) == describe_model(str(second))
