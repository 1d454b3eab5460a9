"""Conditional replaced-token detection (DiffCSE, Chuang et al. 2022; D2CSE equations 2 and 3)."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from cse.model.backbone import Backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.replaced_tokens import replaced_tokens_sums
from cse.training.batch import Batch, Slice
from cse.training.corruption import Source
from cse.training.terms.term import Term


class ReplacedTokens(Term):
    """Detect which tokens of a corrupted sentence were replaced, given the sentence embedding.

    Args:
        discriminator: ``shared`` (frozen backbone with the same prompts), ``frozen`` (without prompts) or ``copy`` (a
            trained copy of the backbone without prompts).
        condition: whether the embedding replaces ``[CLS]``, after embedding LayerNorm and dropout.
        normalize: as in ``replaced_tokens_sums``. With ``positions`` every row is padded to the longest of the batch,
            as in the released code, however the batch is cut into slices.
        learning_rate: learning rate of the copy; None: the run's.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        source: Source,
        *,
        weight: float,
        discriminator: str,
        condition: bool,
        normalize: str,
        separate_draw: bool,
        learning_rate: float | None,
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.source = source
        self.discriminator = discriminator
        self.condition = condition
        self.normalize = normalize
        self.separate_draw = separate_draw
        self.learning_rate = learning_rate
        self.copy: Backbone | None = None
        if discriminator == "copy":
            body = encoder.backbone
            self.copy = Backbone(copy.deepcopy(body.model), body.tokenizer, body.files, body.declared)
            self.copy.requires_grad_(True)
        self.head = nn.Linear(encoder.backbone.hidden_size, 2)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def rates(self) -> dict[str, float]:
        """Return the learning rate of the copy's weights; the head uses the run's."""
        if self.copy is None or self.learning_rate is None:
            return {}
        return {f"copy.{name}": self.learning_rate for name, _ in self.copy.named_parameters()}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the two-class cross-entropy over the batch's tokens."""
        total = torch.zeros((), device=batch.projected_XD.device)
        count = torch.zeros_like(total)
        for piece in batch.slices:
            corrupted_BL = self.source(piece.rows, piece.ids_BL.device, batch.epoch)
            replaced_BL = (corrupted_BL != piece.ids_BL) & (piece.mask_BL == 1)
            corrupted_BL, replaced_BL, mask_BL = self._padded(batch.longest, corrupted_BL, replaced_BL, piece.mask_BL)
            sentence_BD = batch.projected_XD[piece.places] if self.condition else None

            def detect(
                corrupted_BL: torch.Tensor,
                replaced_BL: torch.Tensor,
                mask_BL: torch.Tensor,
                piece: Slice = piece,
                sentence_BD: torch.Tensor | None = sentence_BD,
            ) -> tuple[torch.Tensor, torch.Tensor]:
                logits_BL2 = self.head(self._read(piece, corrupted_BL, mask_BL, sentence_BD))
                return replaced_tokens_sums(logits_BL2, replaced_BL, mask_BL, normalize=self.normalize)

            part, number = piece.run(detect, corrupted_BL, replaced_BL, mask_BL)
            total, count = total + part, count + number
        return batch.group.over_all(total, count)

    def _padded(
        self, longest: int, corrupted_BL: torch.Tensor, replaced_BL: torch.Tensor, mask_BL: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows, padded to the longest of the batch if the mean includes padding."""
        missing = longest - mask_BL.shape[1] if self.normalize == "positions" else 0
        encoder = self.encoder
        return (
            F.pad(corrupted_BL, (0, missing), value=encoder.backbone.pad_id),
            F.pad(replaced_BL, (0, missing)),
            F.pad(mask_BL, (0, missing)),
        )

    def _read(
        self, piece: Slice, corrupted_BL: torch.Tensor, mask_BL: torch.Tensor, sentence_BD: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the discriminator's outputs ``(B, L, D)``."""
        encoder = self.encoder
        if self.discriminator == "shared":
            prefix = encoder.prefix(len(corrupted_BL)) if self.separate_draw else piece.prefix()
            return encoder.states(corrupted_BL, mask_BL, prefix, _first(sentence_BD))[-1]
        body = encoder.backbone if self.copy is None else self.copy
        positions_BL = body.positions(mask_BL, 0)
        embedded_BLD = body.embed(body.words(corrupted_BL), positions_BL)
        alter = _first(sentence_BD)
        if alter is not None:
            embedded_BLD = alter.embedded(embedded_BLD)
        return body.run(embedded_BLD, positions_BL, mask_BL, None, every=False)[-1]


class _First:
    """Replaces the first token with the sentence's embedding."""

    def __init__(self, sentence_BD: torch.Tensor) -> None:
        self.sentence_BD = sentence_BD

    def positions(self, positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Return the positions unchanged."""
        return positions_BL

    def embedded(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        """Return the input with the embedding in first position."""
        first_B1D = self.sentence_BD.unsqueeze(1).to(embedded_BLD.dtype)
        return torch.cat([first_B1D, embedded_BLD[:, 1:]], dim=1)


def _first(sentence_BD: torch.Tensor | None) -> _First | None:
    return None if sentence_BD is None else _First(sentence_BD)
