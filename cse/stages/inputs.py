"""What a training reads beside its rows, by content: settings name folders and hub ids, whose files may change."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.checkpoint_config import WEIGHTS_FILE
from cse.model.generator import find_generator
from cse.model.static_words import find_words, is_word_file
from cse.runtime.seal import sha256
from cse.settings.groups.backbone import BackboneSettings
from cse.settings.groups.objective import ReplacedTokensSettings
from cse.settings.groups.prompt import PromptSettings
from cse.stages.build.replaced_tokens import check_generator


def training_inputs(
    backbone: BackboneSettings,
    prompt: PromptSettings,
    replaced: ReplacedTokensSettings | None,
    *,
    opened: BackboneFiles | None = None,
) -> dict[str, str]:
    """Return a hash of each model that a training reads: its backbone, its prompt's start and its generator.

    Where rows were corrupted beforehand, those rows are read and no generator.

    Args:
        backbone: what prompts are trained on.
        prompt: where it starts.
        replaced: which generator corrupts; None: nothing is trained.
        opened: the backbone's files, where they were found before; they are not hashed again.

    Raises:
        CseError: one of them is not there.
    """
    facts = {"backbone": (opened or _find(backbone)).content()}
    if prompt.kind != "none" and prompt.init == "checkpoint":
        facts["prompt.init_checkpoint"] = _hash_of_start(Path(prompt.init_checkpoint))
    if replaced is not None and replaced.reads_generator:
        check_generator(replaced)
        facts["generator"] = find_generator(replaced.generator_model, replaced.generator_revision).content()
    return facts


def _find(backbone: BackboneSettings) -> BackboneFiles:
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
