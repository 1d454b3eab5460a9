"""A training is known by the bytes of the models that it reads, not by the names of their folders."""

import json
import re
import shutil
from pathlib import Path

import pytest

from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import DistillationSettings
from cse.settings.train import TrainSettings
from cse.training.losses import teachers_of
from cse.training.ready import depends_on
from tests.parts import refusal
from tests.stages.training import write_checkpoint
from tests.tiny import make_backbone_folder

REPLACED = "objective.replaced_tokens."


def test_other_bytes_in_the_same_folder_are_another_training(settings, opened, models, tmp_path):
    bert, generator = (shutil.copytree(models[name], tmp_path / name) for name in ("bert", "generator"))
    start = write_checkpoint(tmp_path / "start", bert, 0.1, length=4)
    teachers = tmp_path / "teachers"
    shutil.copytree(models["headless"], teachers / "first")
    write_checkpoint(teachers / "second", bert, 0.1, length=4)
    chosen = settings({
        "backbone.name": str(bert), "train.parameters": "prompts", f"{REPLACED}weight": 0.1,
        f"{REPLACED}generator": "folder", f"{REPLACED}generator_folder": str(generator), "prompt.init": "checkpoint",
        "prompt.init_checkpoint": str(start), "objective.distillation.weight": 1.0,
        "objective.distillation.teacher": "folder", "objective.distillation.teacher_folder": str(teachers),
    })  # fmt: skip
    names = [opened(chosen).folder.path.name]
    assert opened(chosen).folder.path.name == names[0]
    config = json.loads((bert / "config.json").read_text()) | {"layer_norm_eps": 1e-6}
    for change in (
        lambda: write_checkpoint(start, bert, 0.2, length=4),
        lambda: write_checkpoint(teachers / "second", bert, 0.3, length=4),
        lambda: make_backbone_folder(generator, "bert", seed=2, head=True, num_hidden_layers=1),
        lambda: (bert / "config.json").write_text(json.dumps(config)),
    ):
        change()
        names.append(opened(chosen).folder.path.name)
    assert len({*names}) == 5


def test_a_model_that_is_not_there_is_one_line(settings):
    generated = {f"{REPLACED}weight": 0.1}
    for changes, message in (
        (generated | {f"{REPLACED}generator": "."}, r"^objective.*\.generator: \. is a folder; .*generator_folder to "),
        (generated | {f"{REPLACED}generator": "no/such/one"}, r"^objective.*no folder no/such/one.*set .*: unigram$"),
        ({"prompt.init": "checkpoint", "prompt.init_checkpoint": "nowhere"}, r"^prompt\.init_checkpoint: nowhere"),
    ):
        assert re.search(message, refusal(depends_on, settings(changes)))


def taught(folder: Path, models: dict[str, Path], longest: int = 12) -> list:
    """The teachers of a folder, for the tiny BERT."""
    chosen = DistillationSettings(weight=1.0, teacher="folder", teacher_folder=str(folder))
    return teachers_of(chosen, SentenceEncoder.load(models["bert"]), TrainSettings(max_length=longest))


WRONG = [
    ("no model in {}; put a checkpoint", lambda folder, models: folder.mkdir()),
    ("{}/notes is no checkpoint or model", lambda folder, models: (folder / "notes").mkdir(parents=True)),
    ("{} has another vocabulary (46 tokens) than", lambda folder, models: shutil.copytree(models["roberta"], folder)),
    ("{} reads sentences in a temp", lambda folder, models: write_checkpoint(folder, models["bert"], pooler="mask")),
    ("{}/weights.safetensors",
     lambda folder, models: (write_checkpoint(folder, models["bert"]) / "weights.safetensors").unlink()),
]  # fmt: skip


@pytest.mark.parametrize(("message", "make"), WRONG)
def test_a_folder_that_cannot_teach_is_one_line(message, make, models, tmp_path):
    folder = tmp_path / "teacher"
    make(folder, models)
    said = refusal(taught, folder, models)
    assert said.startswith("objective.distillation.teacher_folder: ")
    assert message.format(folder) in said


def test_a_teacher_that_reads_fewer_tokens_is_refused_only_where_rows_are_longer(models, tmp_path):
    """Five positions are taken by its prompt."""
    folder = write_checkpoint(tmp_path / "teacher", models["bert"])
    most = SentenceEncoder.load(folder).max_length
    assert len(taught(folder, models, most)) == 1
    said = refusal(taught, folder, models, most + 1)
    assert f"reads {most} tokens; set train.max_length to that or less, not {most + 1}" in said
