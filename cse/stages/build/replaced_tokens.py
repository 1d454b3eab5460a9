"""Build the source of corrupted rows for replaced-token detection: prepared or on the fly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.generator import UNIGRAM, Generator, UnigramGenerator, load_generator
from cse.settings.objective import ReplacedTokensSettings
from cse.stages.common import CORRUPTION_FILE
from cse.training.corruption import Corruption, Source, Vocabulary, on_the_fly, prepared
from cse.training.tokens import TokenTable


def source_from(
    settings: ReplacedTokensSettings,
    backbone: Backbone,
    table: TokenTable,
    *,
    seed: int,
    epochs: int,
    corrupted: Path,
    device: torch.device,
    bf16: bool,
) -> Source:
    """Return the source of corrupted rows.

    Args:
        corrupted: folder of rows corrupted before training.
        bf16: whether the generator multiplies in bfloat16.
    """
    if settings.corrupts_beforehand:
        _check_corruption(corrupted / CORRUPTION_FILE, corruption_facts(settings, seed))
        return prepared(corrupted, table, epochs=epochs)
    generator = generator_from(settings, backbone, table, device, bf16=bf16)
    return on_the_fly(corruption_from(settings, seed), Vocabulary.of(backbone), generator)


def corruption_from(settings: ReplacedTokensSettings, seed: int) -> Corruption:
    """Convert the settings of replaced-token detection to plain values."""
    return Corruption(
        mask_share=settings.mask_share,
        choice=settings.choice,
        positions=settings.positions,
        protect_special=settings.protect_special,
        seed=seed,
    )


def corruption_facts(settings: ReplacedTokensSettings, seed: int) -> dict[str, Any]:
    """Return everything that affects how rows are corrupted, as JSON values."""
    generator = {"generator": settings.generator_model, "generator_revision": settings.generator_revision}
    return generator | asdict(corruption_from(settings, seed))


def _check_corruption(path: Path, wanted: dict[str, Any]) -> None:
    """Refuse rows corrupted with other settings: ``cse train -s`` may override those of ``cse corrupt``."""
    again = "run `cse corrupt` (or `dvc repro`) again"
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CseError(f"{path}: missing or cut off; {again}") from None
    if made["corruption"] == "none":
        raise CseError(f"{path.parent}: contains no corrupted rows; {again} with the settings of this training")
    for name, value in wanted.items():
        if made[name] != value:
            raise CseError(
                f"{path.parent}: was made with {name} {made[name]!r}, but the settings say {value!r}; {again}"
            )


def generator_from(
    settings: ReplacedTokensSettings, backbone: Backbone, table: TokenTable, device: torch.device, *, bf16: bool
) -> Generator:
    """Load the generator, in bfloat16 if training is, or count tokens for a unigram generator."""
    if settings.generator == UNIGRAM:
        vocabulary = Vocabulary.of(backbone)
        return UnigramGenerator([column.ids for column in table.columns], vocabulary.size, vocabulary.special)
    dropout = settings.generator_dropout and settings.corruption == "on_the_fly"
    check_generator(settings)
    return load_generator(
        settings.generator_model, settings.generator_revision, backbone, dropout=dropout, device=device, bf16=bf16
    )


def check_generator(settings: ReplacedTokensSettings) -> None:
    """Refuse a folder in place of a hub id, because changes to its files would go unnoticed."""
    key = "objective.replaced_tokens.generator"
    if settings.generator not in (UNIGRAM, "folder") and Path(settings.generator).is_dir():
        raise CseError(f"{key}: {settings.generator} is a folder; set {key}: folder and {key}_folder to its path")
