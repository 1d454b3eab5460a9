"""Load the models whose similarities the distillation term learns."""

from __future__ import annotations

import copy
from pathlib import Path

from cse.errors import CseError, in_terms_of
from cse.files import fingerprint
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint_config import identity_of
from cse.model.named import is_checkpoint
from cse.model.sentence_encoder import SentenceEncoder

_KEY = "objective.distillation.teacher_folder"


def bare_teacher(encoder: SentenceEncoder) -> SentenceEncoder:
    """Return the bare backbone of an encoder as it is now; it shares the memory of weights that stay frozen."""
    backbone = encoder.backbone
    return SentenceEncoder(backbone.sibling() if encoder.frozen else copy.deepcopy(backbone))


def teachers_from(folder: Path, encoder: SentenceEncoder, *, longest: int) -> list[SentenceEncoder]:
    """Load the model in a folder, or each of those in its subfolders, by name.

    Args:
        folder: ``objective.distillation.teacher_folder``.
        encoder: the encoder being trained, whose token ids the teachers read.
        longest: most tokens of a training sentence.
    """
    return [_load(place, encoder, min(longest, encoder.max_length)) for place in _places(folder)]


def teachers_content(folder: Path, key: str = _KEY) -> str:
    """Return a hash of everything read from the models in a folder, which the setting ``key`` names."""
    return fingerprint({"teachers": [_content(place, key) for place in _places(folder, key)]})


def _places(folder: Path, key: str = _KEY) -> list[Path]:
    if _is_model(folder):
        return [folder]
    inside = [path for path in sorted(folder.glob("*")) if path.is_dir() and not path.name.startswith(".")]
    for path in inside:
        if not _is_model(path):
            raise CseError(f"{key}: {path} is no checkpoint or model; put only folders of models there")
    if not inside:
        raise CseError(f"{key}: no model in {folder}; put a checkpoint or model there, or several in folders of it")
    return inside


def _is_model(folder: Path) -> bool:
    return is_checkpoint(folder) or (folder / "config.json").is_file()


def _content(place: Path, key: str) -> str:
    with in_terms_of(f"{key}: "):
        return identity_of(place) if is_checkpoint(place) else find_backbone(str(place)).content()


def _load(place: Path, encoder: SentenceEncoder, longest: int) -> SentenceEncoder:
    with in_terms_of(f"{_KEY}: "):
        teacher = SentenceEncoder.load(place)
    own, other = (each.backbone.tokenizer.get_vocab() for each in (encoder, teacher))
    if own != other:
        raise CseError(
            f"{_KEY}: {place} has another vocabulary ({len(other)} tokens) than the backbone "
            f"{encoder.backbone.files.name} ({len(own)}); take a teacher of the same family"
        )
    if teacher.templates:
        raise CseError(f"{_KEY}: {place} reads sentences in a template; take a teacher without one")
    if teacher.max_length < longest:
        raise CseError(
            f"{_KEY}: {place} reads {teacher.max_length} tokens; set train.max_length to that or less, not {longest}"
        )
    return teacher
