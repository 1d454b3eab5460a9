"""Corrupted copies of rows for replaced-token detection (DiffCSE's code; methods of D2CSE).

Every random choice is a hash of (seed, epoch, view, index of the token in its column), so it is the same in whatever
slice of a batch a row stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cse.errors import CseError
from cse.losses.masked_lm import Vocabulary, mask_tokens, uniform
from cse.losses.shared import PaddedRows
from cse.model.backbone import Backbone
from cse.model.mlm_head import Generator, UnigramGenerator, load_generator
from cse.model.passes import pinned
from cse.settings.objective import ReplacedTokensSettings
from cse.settings.train import TrainSettings
from cse.training.batch import TokenTable

_CHOOSE = 3  # stream of random numbers, after those of masking


@dataclass(frozen=True)
class Corrupter:
    """Replaces tokens with a generator's proposals; a ``Source`` that corrupts each slice during training."""

    how: ReplacedTokensSettings
    seed: int
    vocabulary: Vocabulary
    generator: Generator

    def __call__(self, rows: PaddedRows, device: torch.device, epoch: int) -> torch.Tensor:
        """Return corrupted ids ``(B, L)``, int64; the first token and padding stay."""
        how, ids_BL, mask_BL, place = self.how, rows.ids_BL, rows.mask_BL, (rows.index_BL, rows.views)
        masked_BL, chosen_BL = mask_tokens(
            ids_BL, mask_BL, *place, self.vocabulary, share=how.mask_share, seed=self.seed, epoch=epoch
        )
        draws = how.choice == "sample" or not self.generator.reads_context
        draw_BL = uniform(self.seed, epoch, rows.views, rows.index_BL, _CHOOSE) if draws else None
        proposed_BL = self.generator.propose(masked_BL, mask_BL, draw_BL)
        everywhere = how.positions == "all" and self.generator.reads_context
        taken_BL = (mask_BL == 1) if everywhere else chosen_BL
        if how.protect_special:
            taken_BL = taken_BL & ~np.isin(ids_BL, self.vocabulary.special)
        taken_BL[:, 0] = False
        taken, kept = (pinned(array, proposed_BL.device) for array in (taken_BL, ids_BL))
        corrupted_BL = torch.where(taken, proposed_BL, kept)
        own = corrupted_BL.device.type == device.type
        return corrupted_BL if own else pinned(corrupted_BL.cpu().numpy(), device)


def corrupter_of(
    how: ReplacedTokensSettings,
    train: TrainSettings,
    backbone: Backbone,
    table: TokenTable,
    *,
    device: torch.device,
    bf16: bool,
) -> Corrupter:
    """Load the generator, in bfloat16 if training is, or count the table's tokens for a unigram generator."""
    vocabulary = Vocabulary.of(backbone)
    if how.generator == "unigram":
        counted = UnigramGenerator([column.ids for column in table.columns], vocabulary.size, vocabulary.special)
        return Corrupter(how, train.seed, vocabulary, counted)
    check_generator(how)
    loaded = load_generator(how.generator_model, backbone, dropout=True, device=device, bf16=bf16)
    return Corrupter(how, train.seed, vocabulary, loaded)


def check_generator(replaced: ReplacedTokensSettings) -> None:
    """Refuse a folder in place of a hub id, because changes to its files would go unnoticed."""
    key = "objective.replaced_tokens.generator"
    if replaced.generator not in ("unigram", "folder") and Path(replaced.generator).is_dir():
        raise CseError(f"{key}: {replaced.generator} is a folder; set {key}: folder and {key}_folder to its path")
