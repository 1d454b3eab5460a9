r"""SG-OPT (Kim et al. 2021, "Self-Guided Contrastive Learning for BERT Sentence Representations").

With ``c_i`` the projected ``[CLS]`` of the tuned model, ``h_ik`` the projected mean of layer ``k`` of a frozen clone,
and ``phi(a, b) = exp(cos(a, b) / t)``::

    L     = mean_{i, k} -log( phi(c_i, h_ik) / ( phi(c_i, h_ik) + sum_{m != i} sum_n phi(c_i, h_mn) ) )
    L_reg = || weights - initial ||^2

Neither other layers of the same sentence nor other anchors are negatives (the paper's third optimisation).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from cse.errors import CseError
from cse.losses.shared import Batch, Loss, cosines, in_float32
from cse.model.pooling import pool
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import SelfGuidedSettings


@in_float32
def self_guided(anchor_BD: torch.Tensor, views_KBD: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Return the contrastive part, a scalar in nats; ``views_KBD`` are ``K`` layers of the same ``B`` sentences."""
    layers, rows, _ = views_KBD.shape
    logits_BKB = cosines(anchor_BD, views_KBD.flatten(0, 1)).view(rows, layers, rows) / temperature
    positive_BK = logits_BKB.diagonal(dim1=0, dim2=2).T
    own_B1B = torch.eye(rows, dtype=torch.bool, device=logits_BKB.device)[:, None, :]
    negative_BN = logits_BKB.masked_fill(own_B1B, float("-inf")).flatten(1)
    # the sum includes the positive, so it is never empty, not even in a batch of one sentence
    candidate_BKN = torch.cat([positive_BK[:, :, None], negative_BN[:, None, :].expand(-1, layers, -1)], dim=2)
    return (candidate_BKN.logsumexp(dim=2) - positive_BK).mean()


def squared_distance(weights: Sequence[torch.Tensor], initial: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of squared differences, a scalar; half precision is cast to float32, 0 for no tensors."""
    return sum((_squares(now, then) for now, then in zip(weights, initial, strict=True)), torch.zeros(()))


@in_float32
def _squares(now: torch.Tensor, then: torch.Tensor) -> torch.Tensor:
    return (now - then).square().sum()


class SelfGuided(Loss[SelfGuidedSettings]):
    """The contrastive part plus the weighted pull to the initial weights, by a clone and a projection of its own."""

    temperature, regularizer = 0.01, 0.1  # the authors', as is the width of the projection

    def __init__(self, encoder: SentenceEncoder, settings: SelfGuidedSettings, *, projection: int = 4096) -> None:
        super().__init__(encoder, settings)
        self.clone = copy.deepcopy(encoder.backbone).requires_grad_(False)
        width = encoder.backbone.hidden_size
        if encoder.backbone.dimension != width:
            raise CseError(
                f"objective.self_guided.weight: compares a vector with the layers' states of {width} numbers, and "
                f"{encoder.backbone.files.name} gives {encoder.backbone.dimension} behind its pooling; set it to 0"
            )
        self.project = nn.Sequential(
            nn.Linear(width, projection), nn.GELU(), nn.Linear(projection, projection), nn.GELU()
        )
        for part, values in self.project.named_parameters():
            nn.init.zeros_(values) if part.endswith("bias") else nn.init.normal_(values, std=0.02)

    def forward(self, batch: Batch) -> torch.Tensor:
        encoder = self.encoder
        (anchor_BD, *_) = batch.views
        self.clone.eval()
        layers = []
        with torch.no_grad():
            for piece in batch.slices:
                positions_BL = self.clone.positions(piece.mask_BL, 0)
                embedded_BLD = self.clone.embed(self.clone.words(piece.ids_BL), positions_BL)
                states = self.clone.run(embedded_BLD, positions_BL, piece.mask_BL, None)
                layers.append(torch.stack([pool("mean", [state], piece.mask_BL) for state in states], dim=1))
        views_KBD = batch.layout.join(layers).float()[: len(anchor_BD)].transpose(0, 1)
        loss = self_guided(
            self.project(anchor_BD).float(), self.project(views_KBD).float(), temperature=self.temperature
        )
        if encoder.frozen:
            return loss
        initial = dict(self.clone.named_parameters())
        trained = {name: weight for name, weight in encoder.backbone.named_parameters() if weight.requires_grad}
        moved = squared_distance(list(trained.values()), [initial[name] for name in trained])
        return loss + self.regularizer * moved
