"""What a training depends on beside settings and rows: one fingerprint for states, sweeps, studies, adaptations."""

from __future__ import annotations

from pathlib import Path

import torch

from cse.errors import CseError
from cse.files import fingerprint
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.checkpoint import WEIGHTS_FILE
from cse.model.mlm_head import find_generator
from cse.model.named import is_word_file
from cse.model.static_words import find_words
from cse.runtime.seal import sha256
from cse.settings import Settings
from cse.settings.model import BackboneSettings
from cse.stages.build.losses import teachers_content
from cse.stages.common import training_code
from cse.stages.corrupt import check_generator
from cse.training.precision import choose_bf16, choose_device


def depends_on(settings: Settings, *, opened: BackboneFiles | None = None) -> dict[str, str]:
    """Return what a training depends on beside its settings and rows, each in words: models, code, arithmetic.

    If rows were corrupted before training, the generator is not read.

    Args:
        opened: the backbone's files if already found, to avoid hashing them again.
    """
    device = choose_device(settings.train.device)
    facts = {
        "the backbone's files": (opened or files_of_backbone(settings.backbone)).content(),
        "the code": fingerprint({}, training_code()),
        "torch": torch.__version__,
        "device": device.type,
        "precision": "bf16" if choose_bf16(settings.train.precision, device) else "fp32",
    }
    prompt, objective = settings.prompt, settings.objective.over(settings.data.more_terms)
    if prompt.kind != "none" and prompt.init == "checkpoint":
        facts["the initial prompt"] = _hash_of_start(Path(prompt.init_checkpoint))
    trains, collection = settings.train.parameters != "none", objective.collection
    replaced, distillation = objective.replaced_tokens, objective.distillation
    if trains and replaced.reads_generator:
        check_generator(replaced)
        facts["the generator"] = find_generator(replaced.generator_model).content()
    if trains and distillation.reads_folder:
        facts["the teachers of its distillation"] = teachers_content(Path(distillation.teacher_folder))
    if collection.reads_folder and ((trains and collection.weight > 0) or settings.post.kind == "query_map"):
        facts["the teacher of its collection"] = teachers_content(
            Path(collection.teacher_folder), "objective.collection.teacher_folder"
        )
    return facts


def files_of_backbone(backbone: BackboneSettings) -> BackboneFiles:
    """Find the files of a language model or of word vectors."""
    if is_word_file(Path(backbone.name)):
        return find_words(backbone.name)
    return find_backbone(backbone.name, backbone.revision)


def _hash_of_start(folder: Path) -> str:
    try:
        return sha256(folder / WEIGHTS_FILE)
    except OSError as error:
        raise CseError(
            f"prompt.init_checkpoint: {folder / WEIGHTS_FILE}: {error.strerror}; train a prompt there first, or name "
            "the folder of a checkpoint"
        ) from None
