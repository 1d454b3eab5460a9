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
from cse.training.ready import depends_on, open_training
from tests.parts import refusal
from tests.stages.training import write_checkpoint
from tests.tiny import make_backbone_folder

REPLACED = "objective.replaced_tokens."


@pytest.fixture
def inputs(settings, models, tmp_path):
    """Settings that read four local folders, and the folders, to change at will."""
    folders = {name: shutil.copytree(models[name], tmp_path / name) for name in ("bert", "generator")}
    folders["start"] = write_checkpoint(tmp_path / "start", folders["bert"], 0.1, length=4)
    folders["teachers"] = tmp_path / "teachers"
    shutil.copytree(models["headless"], folders["teachers"] / "first")
    write_checkpoint(folders["teachers"] / "second", folders["bert"], 0.1, length=4)
    read = {
        "backbone.name": str(folders["bert"]), f"{REPLACED}generator": "folder",
        f"{REPLACED}generator_folder": str(folders["generator"]), "prompt.init": "checkpoint",
        "prompt.init_checkpoint": str(folders["start"]), "objective.distillation.weight": 1.0,
        "objective.distillation.teacher": "folder",
        "objective.distillation.teacher_folder": str(folders["teachers"]),
    }  # fmt: skip
    return settings({f"{REPLACED}weight": 0.1, "train.parameters": "prompts"} | read), folders


def change_config(bert: Path) -> None:
    path = bert / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_norm_eps": 1e-6}))


CHANGES = {
    "start": lambda of: write_checkpoint(of["start"], of["bert"], 0.2, length=4),
    "teacher": lambda of: write_checkpoint(of["teachers"] / "second", of["bert"], 0.3, length=4),
    "generator": lambda of: make_backbone_folder(of["generator"], "bert", seed=2, head=True, num_hidden_layers=1),
    "backbone's configuration": lambda of: change_config(of["bert"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_bytes_in_the_same_folder_are_another_training(inputs, data, tmp_path, name):
    settings, folders = inputs

    def folder() -> str:
        return open_training(settings, data["sentences"], scratch=tmp_path / "scratch").folder.path.name

    before = folder()
    assert folder() == before
    CHANGES[name](folders)
    assert folder() != before


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
