r"""Masked language modelling alongside the contrastive loss (DCPCSE section 2.2, Jiang and Wang 2022).

With ``C`` the chosen tokens of all sentences in a batch, read in a second pass behind the same prompts::

    L = -1/|C| sum_{c in C} log softmax(logits_c)[label_c]
    weight(step) = weight * decay_rate ** (step / 100)

The exponent is real, so the weight sinks at every step. Every random choice is a hash of (seed, epoch, view, index of
the token in its column), so it does not depend on the batch in which a sentence stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from cse.losses.shared import Batch, Loss, Slice, in_float32
from cse.model.backbone import Backbone
from cse.model.mlm_head import MlmHead
from cse.model.passes import on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import MaskedLmSettings

_SELECT, _TREAT, _RANDOM = range(3)  # streams of random numbers


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary facts that masking needs."""

    size: int
    mask: int
    special: tuple[int, ...]

    @classmethod
    def of(cls, backbone: Backbone) -> Vocabulary:
        """Return these facts for a backbone."""
        special = backbone.special_ids
        return cls(backbone.tokenizer.get_vocab_size(), special["mask"], (*special.values(), backbone.pad_id))


def uniform(seed: int, epoch: int, view_B: np.ndarray, index_BL: np.ndarray, stream: int) -> np.ndarray:
    """Return one number in [0, 1) per token, ``(B, L)`` float64, from a hash (splitmix64) of its index."""
    word = int(np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)[0])
    with np.errstate(over="ignore"):
        x = index_BL.astype(np.uint64) * np.uint64(8) + view_B.astype(np.uint64)[:, None] + np.uint64(word)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x + np.uint64(0x9E3779B97F4A7C15)) if shift == 30 else x
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) / 2.0**53


def mask_tokens(
    ids_BL: np.ndarray,
    mask_BL: np.ndarray,
    index_BL: np.ndarray,
    view_B: np.ndarray,
    vocabulary: Vocabulary,
    *,
    share: float,
    seed: int,
    epoch: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose a share of the real, non-special tokens: 80 % become the mask, 10 % a random token, 10 % stay.

    Args:
        index_BL: index of each token in its column's flat ids.

    Returns:
        Ids for the language model and a boolean mask of the chosen tokens, both ``(B, L)``.
    """
    choices = [uniform(seed, epoch, view_B, index_BL, stream) for stream in (_SELECT, _TREAT, _RANDOM)]
    chosen_BL = (mask_BL == 1) & ~np.isin(ids_BL, vocabulary.special) & (choices[0] < share)
    chosen_BL &= ids_BL < vocabulary.size  # trained pieces of a template stand beyond the vocabulary
    random_BL = (choices[2] * vocabulary.size).astype(np.int64)
    treated_BL = np.where(choices[1] < 0.8, vocabulary.mask, np.where(choices[1] < 0.9, random_BL, ids_BL))
    return np.where(chosen_BL, treated_BL, ids_BL), chosen_BL


@in_float32
def masked_lm(logits_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
    """Return the summed cross-entropy of ``N`` chosen tokens, a scalar in nats; the sums of slices add up."""
    return F.cross_entropy(logits_ND, labels_N, reduction="sum")


class MaskedLm(Loss[MaskedLmSettings]):
    """Predicts masked tokens of every sentence of the batch, in a second pass with the same prompt draw."""

    mask_share = 0.15  # of BERT (Devlin et al. 2019)

    def __init__(self, encoder: SentenceEncoder, settings: MaskedLmSettings, head: MlmHead, seed: int) -> None:
        super().__init__(encoder, settings)
        if settings.train_head:
            head.untie(encoder.transformer.word_table)
        self.head = head
        self.vocabulary = Vocabulary.of(encoder.transformer)
        self.seed = seed

    def decay(self, step: int) -> float:
        return self.settings.decay_rate ** (step / 100)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean over all chosen tokens; 0 with zero gradient if nothing was chosen."""
        encoder = self.encoder
        table_VD = encoder.transformer.word_table
        total = torch.zeros((), device=batch.projected_XD.device)
        count = 0
        for piece in batch.slices:
            masked_BL, chosen_N = self._mask(piece, batch.epoch)

            def predict(masked_BL: torch.Tensor, chosen_N: torch.Tensor, piece: Slice = piece) -> torch.Tensor:
                last_BLD = encoder.states(masked_BL, piece.mask_BL, piece.prefix())[-1]
                return masked_lm(
                    self.head(last_BLD.flatten(0, 1)[chosen_N], table_VD), piece.ids_BL.flatten()[chosen_N]
                )

            total, count = total + piece.run(predict, masked_BL, chosen_N), count + len(chosen_N)
        return batch.group.over_all(total, torch.full_like(total, count))

    def _mask(self, piece: Slice, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids with masked tokens ``(B, L)`` and the places ``(N,)`` of the chosen ones among all of them."""
        rows = piece.rows
        masked_BL, chosen_BL = mask_tokens(
            rows.ids_BL,
            rows.mask_BL,
            rows.index_BL,
            rows.views,
            self.vocabulary,
            share=self.mask_share,
            seed=self.seed,
            epoch=epoch,
        )
        masked, chosen = on_device([masked_BL, np.flatnonzero(chosen_BL)], piece.ids_BL.device)
        return masked, chosen
