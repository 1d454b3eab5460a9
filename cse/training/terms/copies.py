"""Terms with a second copy of the encoder: Contrastive Tension, SG-OPT, and ESimCSE's momentum queue."""

from __future__ import annotations

import copy

import torch
from torch import nn

from cse.model.encoder import Constants, SentenceEncoder, Tokens
from cse.model.pooling import pool
from cse.objectives.contrastive_tension import contrastive_tension
from cse.objectives.self_guided import self_guided, squared_distance
from cse.training.batch import Batch, project_in_order
from cse.training.losses import NegativeQueue, Term


class ContrastiveTension(Term):
    """Two independent copies, dot products, one positive among negatives (Carlsson et al. 2021).

    The first copy, which is kept, reads the anchors; the second reads the candidates.

    Args:
        encoder: the encoder that is trained.
        weight: of the term.
        group: rows of one positive and its negatives.
    """

    name = "contrastive_tension"

    def __init__(self, encoder: SentenceEncoder, *, weight: float, group: int) -> None:
        super().__init__(weight)
        self.group = group
        self.second = copy.deepcopy(encoder)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean binary cross-entropy; a last group that is not whole is left out."""
        (first_BD, *_) = batch.views  # beside a term that compares copies there are more
        second_BD = _embed_anchors(self.second, batch)
        whole = len(first_BD) // self.group * self.group
        if whole == 0:
            return (first_BD.sum() + second_BD.sum()) * 0.0
        return contrastive_tension(first_BD[:whole], second_BD[:whole], group=self.group)


class SelfGuided(Term):
    """SG-OPT: layers of a frozen clone are the positives (Kim et al. 2021).

    Args:
        encoder: the encoder that is trained.
        weight: of the term.
        temperature: divides the cosines.
        projection: width of the projection that training alone uses.
        regularizer: weight of the squared distance to the initial weights.
    """

    name = "self_guided"

    def __init__(
        self, encoder: SentenceEncoder, *, weight: float, temperature: float, projection: int, regularizer: float
    ) -> None:
        super().__init__(weight)
        self.encoder = (encoder,)  # in a tuple, so that its weights are not counted as the term's
        self.clone = copy.deepcopy(encoder.backbone).requires_grad_(False)
        width = encoder.backbone.hidden_size
        self.project = nn.Sequential(
            nn.Linear(width, projection), nn.GELU(), nn.Linear(projection, projection), nn.GELU()
        )
        for part, values in self.project.named_parameters():
            nn.init.zeros_(values) if part.endswith("bias") else nn.init.normal_(values, std=0.02)
        self.temperature = temperature
        self.regularizer = regularizer

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the contrastive term and the regulariser together."""
        (encoder,) = self.encoder
        (anchor_BD, *_) = batch.views
        self.clone.eval()
        layers = []
        with torch.no_grad():
            for piece in batch.slices:
                embedded = self.clone.embed(self.clone.words(piece.ids_BL), self.clone.positions(piece.mask_BL, 0))
                states = self.clone.run(embedded, piece.mask_BL, None)
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


class MomentumQueue(NegativeQueue):
    """ESimCSE's negatives: embeddings of earlier batches by a slowly following copy (Wu et al. 2021).

    Args:
        encoder: the encoder that is trained.
        size: embeddings to keep.
        momentum: what the copy keeps of itself at each update.
        follow_projector: whether the copy's projector follows too; False: it is the trained one, as in the released
            code.
    """

    def __init__(self, encoder: SentenceEncoder, *, size: int, momentum: float, follow_projector: bool = True) -> None:
        super().__init__()
        self.encoder = (encoder,)
        self.momentum = momentum
        shared = {id(encoder.backbone): encoder.backbone} if encoder.frozen else {}
        if not follow_projector and encoder.mlp is not None:
            shared[id(encoder.mlp)] = encoder.mlp
        self.follower = (copy.deepcopy(encoder, shared),)
        for name, weight in self._followed().items():
            self.register_buffer(_flat(name), weight.detach().clone())
        self.register_buffer("vectors", torch.zeros(size, encoder.backbone.hidden_size))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def negatives(self) -> torch.Tensor | None:
        """Return the newest embeddings first, ``(Q, D)``, or None before the first update."""
        filled = int(self.filled)  # type: ignore[arg-type]
        return self.vectors[:filled] if filled else None  # type: ignore[index]

    @torch.no_grad()
    def after_update(self, batch: Batch) -> None:
        """Move the copy towards the encoder and take in its embeddings of the batch's anchors, dropout off."""
        (encoder,), (follower,) = self.encoder, self.follower
        follower.to(batch.projected_XD.device)
        weights = dict(follower.named_parameters())
        for name, weight in self._followed().items():
            kept: torch.Tensor = getattr(self, _flat(name))
            kept.lerp_(weight, 1.0 - self.momentum)
            weights[name].copy_(kept)
        was_training = encoder.training
        follower.eval()
        new = _embed_anchors(follower, batch)
        encoder.train(was_training)  # the follower of a frozen backbone shares it
        size = len(self.vectors)  # type: ignore[arg-type]
        self.vectors.copy_(torch.cat([new, self.vectors])[:size])  # type: ignore[operator, list-item]
        self.filled.fill_(min(int(self.filled) + len(new), size))  # type: ignore[operator, arg-type]

    def _followed(self) -> dict[str, nn.Parameter]:
        """Return the trained weights that the copy has of its own."""
        (encoder,), (follower,) = self.encoder, self.follower
        own = dict(follower.named_parameters())
        return {name: weight for name, weight in encoder.trainable().items() if own[name] is not weight}


def _embed_anchors(encoder: SentenceEncoder, batch: Batch) -> torch.Tensor:
    """Return what an encoder makes of the batch's anchors, ``(B, D)`` in float32, as the loss would see them."""
    noise_TND = encoder.noise(batch.longest + 1) if encoder.denoise != "none" else None

    def embed(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> Tokens:
        made = encoder.pooled(ids_BL, mask_BL, Constants(encoder.prefix(len(ids_BL)), noise_TND))
        return Tokens([], None, made.pooled_BD, made.noise_BD)

    found = [(piece, piece.view_B == 0) for piece in batch.slices]
    found = [(piece, own_B) for piece, own_B in found if own_B.any()] or found[:1]
    parts = [piece.run(embed, piece.ids_BL[own_B], piece.mask_BL[own_B]) for piece, own_B in found]
    return project_in_order(encoder, batch.anchors, batch.group, parts)


def _flat(name: str) -> str:
    return "follows_" + name.replace(".", "__")
