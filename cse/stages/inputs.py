"""Content hashes of the models a training reads: settings name folders and hub ids whose files may change."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.checkpoint_config import WEIGHTS_FILE
from cse.model.generator import find_generator
from cse.model.named import is_word_file
from cse.model.static_words import find_words
from cse.runtime.seal import sha256
from cse.settings.groups.backbone import BackboneSettings
from cse.settings.groups.objective import ObjectiveSettings
from cse.settings.groups.prompt import PromptSettings
from cse.stages.build.replaced_tokens import check_generator
from cse.stages.build.teachers import teachers_content


def training_inputs(
    backbone: BackboneSettings,
    prompt: PromptSettings,
    objective: ObjectiveSettings | None,
    *,
    opened: BackboneFiles | None = None,
) -> dict[str, str]:
    """Return a hash of each model a training reads: backbone, initial prompt, generator and teachers.

    If rows were corrupted before training, the generator is not read.

    Args:
        backbone: backbone settings.
        prompt: prompt settings, with its initialisation.
        objective: every term that is trained; None if nothing is.
        opened: the backbone's files if already found, to avoid hashing them again.

    Raises:
        CseError: a model is missing.
    """
    facts = {"backbone": (opened or files_of_backbone(backbone)).content()}
    if prompt.kind != "none" and prompt.init == "checkpoint":
        facts["prompt.init_checkpoint"] = _hash_of_start(Path(prompt.init_checkpoint))
    if objective is None:
        return facts
    replaced, distillation = objective.replaced_tokens, objective.distillation
    if replaced.reads_generator:
        check_generator(replaced)
        facts["generator"] = find_generator(replaced.generator_model, replaced.generator_revision).content()
    if distillation.reads_folder:
        facts["teachers"] = teachers_content(Path(distillation.teacher_folder))
    if objective.collection.weight > 0 and objective.collection.reads_folder:
        facts["collection"] = teachers_content(Path(objective.collection.teacher_folder))
    return facts


def files_of_backbone(backbone: BackboneSettings) -> BackboneFiles:
    """Find the files of a language model or of word vectors.

    Raises:
        CseError: there are none.
    """
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
