"""SG-OPT: contrast with the layers of a frozen clone (Kim et al. 2021)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from cse.errors import CseError
from cse.model.pooling import pool
from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.self_guided import self_guided, squared_distance
from cse.training.batch import Batch
from cse.training.terms.term import Term


class SelfGuided(Term):
    """SG-OPT: layers of a frozen clone are the positives (Kim et al. 2021).

    Args:
        projection: width of the training-only projection.
        regularizer: weight of the squared distance to the initial weights.
    """

    def __init__(
        self, encoder: SentenceEncoder, *, weight: float, temperature: float, projection: int, regularizer: float
    ) -> None:
        super().__init__(encoder, weight=weight)
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
        self.temperature = temperature
        self.regularizer = regularizer

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the contrastive term plus the weighted regulariser."""
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
        views_KBD = batch.in_order(layers).float()[: len(anchor_BD)].transpose(0, 1)
        loss = self_guided(
            self.project(anchor_BD).float(), self.project(views_KBD).float(), temperature=self.temperature
        )
        if self.regularizer == 0.0 or encoder.frozen:
            return loss
        initial = dict(self.clone.named_parameters())
        trained = {name: weight for name, weight in encoder.backbone.named_parameters() if weight.requires_grad}
        moved = squared_distance(list(trained.values()), [initial[name] for name in trained])
        return loss + self.regularizer * moved
