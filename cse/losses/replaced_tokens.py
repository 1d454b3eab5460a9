r"""Conditional replaced-token detection (DiffCSE, Chuang et al. 2022; D2CSE equations 2 and 3).

With ``y_bl = 1`` where token ``l`` of sentence ``b`` was replaced and ``c_bl = -log softmax(logits_bl)[y_bl]``::

    positions   1/(B * L) sum_{b, l} c_bl     over all positions; y = 0 at padding (code of DiffCSE)
    tokens      1/T sum_{real b, l} c_bl      over the T real tokens
    sum         1/B sum_{real b, l} c_bl      sum over a sentence's tokens, mean over sentences (D2CSE equation 2)

In the papers the discriminator gives the probability of "original". Here, as in the code, class 1 is "replaced"; the
loss is the same. ``positions`` depends on padding: ``L`` is the length of the longest row in the batch, however the
batch is cut into slices. The sentence's embedding stands in the place of ``[CLS]``, behind LayerNorm and dropout.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from cse.losses.shared import Batch, Loss, Slice, Source, in_float32
from cse.model.backbone import Backbone
from cse.model.passes import Alteration
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import ReplacedTokensSettings


@in_float32
def replaced_tokens(
    logits_BL2: torch.Tensor,
    replaced_BL: torch.Tensor,
    mask_BL: torch.Tensor,
    *,
    normalize: Literal["positions", "tokens", "sum"],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed cross-entropy in nats and its divisor, two scalars; both add up over the slices of a batch.

    Args:
        replaced_BL: 1 or True where the token differs from the original; ignored at padding.
        normalize: as above; ``sum`` does not count rows of padding only as sentences.
    """
    real_BL = mask_BL.bool()
    labels_BL = (replaced_BL.bool() & real_BL).long()
    losses_BL = F.cross_entropy(logits_BL2.flatten(0, 1), labels_BL.flatten(), reduction="none").view_as(real_BL)
    if normalize == "positions":
        return losses_BL.sum(), losses_BL.new_full((), losses_BL.numel())
    total = losses_BL.where(real_BL, 0.0).sum()
    count = real_BL.sum() if normalize == "tokens" else real_BL.any(dim=1).sum()
    return total, count.to(total.dtype)


class ReplacedTokens(Loss[ReplacedTokensSettings]):
    """Detects which tokens of a corrupted sentence were replaced, given the sentence embedding."""

    def __init__(self, encoder: SentenceEncoder, settings: ReplacedTokensSettings, source: Source) -> None:
        super().__init__(encoder, settings)
        self.source = source
        self.copy: Backbone | None = None
        if settings.discriminator == "copy":
            body = encoder.backbone
            self.copy = Backbone(copy.deepcopy(body.model), body.tokenizer, body.files, body.declared)
            self.copy.requires_grad_(True)
        self.head = nn.Linear(encoder.backbone.hidden_size, 2)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def rates(self) -> dict[str, float]:
        """Return the learning rate of the copy's weights; the head uses the run's."""
        rate = self.settings.copy_learning_rate
        if self.copy is None or rate is None:
            return {}
        return {f"copy.{name}": rate for name, _ in self.copy.named_parameters()}

    def forward(self, batch: Batch) -> torch.Tensor:
        total = torch.zeros((), device=batch.projected_XD.device)
        count = torch.zeros_like(total)
        for piece in batch.slices:
            corrupted_BL = self.source(piece.rows, piece.ids_BL.device, batch.epoch)
            replaced_BL = (corrupted_BL != piece.ids_BL) & (piece.mask_BL == 1)
            corrupted_BL, replaced_BL, mask_BL = self._padded(batch.longest, corrupted_BL, replaced_BL, piece.mask_BL)
            sentence_BD = batch.projected_XD[piece.places] if self.settings.condition else None

            def detect(
                corrupted_BL: torch.Tensor,
                replaced_BL: torch.Tensor,
                mask_BL: torch.Tensor,
                piece: Slice = piece,
                sentence_BD: torch.Tensor | None = sentence_BD,
            ) -> tuple[torch.Tensor, torch.Tensor]:
                logits_BL2 = self.head(self._read(piece, corrupted_BL, mask_BL, sentence_BD))
                return replaced_tokens(logits_BL2, replaced_BL, mask_BL, normalize=self.settings.normalize)

            part, number = piece.run(detect, corrupted_BL, replaced_BL, mask_BL)
            total, count = total + part, count + number
        return batch.group.over_all(total, count)

    def _padded(
        self, longest: int, corrupted_BL: torch.Tensor, replaced_BL: torch.Tensor, mask_BL: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows, padded to the longest of the batch if the mean includes padding."""
        missing = longest - mask_BL.shape[1] if self.settings.normalize == "positions" else 0
        return (
            F.pad(corrupted_BL, (0, missing), value=self.encoder.backbone.pad_id),
            F.pad(replaced_BL, (0, missing)),
            F.pad(mask_BL, (0, missing)),
        )

    def _read(
        self, piece: Slice, corrupted_BL: torch.Tensor, mask_BL: torch.Tensor, sentence_BD: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the discriminator's outputs ``(B, L, D)``."""
        encoder = self.encoder

        def with_sentence(embedded_BLD: torch.Tensor) -> torch.Tensor:
            if sentence_BD is None:
                return embedded_BLD
            return torch.cat([sentence_BD.unsqueeze(1).to(embedded_BLD.dtype), embedded_BLD[:, 1:]], dim=1)

        if self.settings.discriminator == "shared":
            return encoder.states(corrupted_BL, mask_BL, piece.prefix(), Alteration(with_sentence))[-1]
        body = encoder.backbone if self.copy is None else self.copy
        positions_BL = body.positions(mask_BL, 0)
        embedded_BLD = with_sentence(body.embed(body.words(corrupted_BL), positions_BL))
        return body.run(embedded_BLD, positions_BL, mask_BL, None, every=False)[-1]
