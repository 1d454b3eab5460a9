"""Further negatives for NT-Xent: embeddings of earlier batches from a momentum encoder (ESimCSE)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from cse.model.sentence_encoder import SentenceEncoder
from cse.training.batch import Batch, embed_anchors


class MomentumQueue(nn.Module):
    """ESimCSE's negatives: embeddings of earlier batches from a momentum encoder (Wu et al. 2021).

    Args:
        momentum: share of its own weights that the momentum encoder keeps at each update.
        follow_projector: whether the momentum encoder has its own projector that follows too; False: it shares the
            trained one, as in the released code.
    """

    def __init__(self, encoder: SentenceEncoder, *, size: int, momentum: float, follow_projector: bool) -> None:
        super().__init__()
        self.encoder = (encoder,)
        self.momentum = momentum
        shared = {id(encoder.backbone): encoder.backbone} if encoder.frozen else {}
        if not follow_projector and encoder.mlp is not None:
            shared[id(encoder.mlp)] = encoder.mlp
        self.follower = (copy.deepcopy(encoder, shared),)
        for name, weight in self._followed().items():
            self.register_buffer(_flat(name), weight.detach().clone())
        self.register_buffer("vectors", torch.zeros(size, encoder.backbone.dimension))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self._count: int | None = None

    def negatives(self) -> torch.Tensor | None:
        """Return the queue, newest first, ``(Q, D)``, or None before the first update."""
        count = self._filled()
        return self.vectors[:count] if count else None  # type: ignore[index]

    @torch.no_grad()
    def take_in(self, batch: Batch) -> None:
        """Move the momentum encoder towards the encoder and queue its embeddings of the anchors, without dropout."""
        (encoder,), (follower,) = self.encoder, self.follower
        follower.to(batch.projected_XD.device)
        weights = dict(follower.named_parameters())
        for name, weight in self._followed().items():
            kept: torch.Tensor = getattr(self, _flat(name))
            kept.lerp_(weight, 1.0 - self.momentum)
            weights[name].copy_(kept)
        was_training = encoder.training
        follower.eval()
        new = embed_anchors(follower, batch)
        encoder.train(was_training)  # the follower of a frozen backbone shares it
        size = len(self.vectors)  # type: ignore[arg-type]
        self.vectors.copy_(torch.cat([new, self.vectors])[:size])  # type: ignore[operator, list-item]
        self._count = min(self._filled() + len(new), size)
        self.filled.fill_(self._count)  # type: ignore[operator]

    def _filled(self) -> int:
        """Return the number of embeddings; it is read from the device once, after a run starts or resumes."""
        if self._count is None:
            self._count = int(self.filled)  # type: ignore[arg-type]
        return self._count

    def _followed(self) -> dict[str, nn.Parameter]:
        """Return the trained weights of which the momentum encoder has its own copy."""
        (encoder,), (follower,) = self.encoder, self.follower
        own = dict(follower.named_parameters())
        return {name: weight for name, weight in encoder.trainable().items() if own[name] is not weight}


def _flat(name: str) -> str:
    return "follows_" + name.replace(".", "__")
