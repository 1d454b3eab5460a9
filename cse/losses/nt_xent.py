r"""NT-Xent, the contrastive cross-entropy of SimCSE (Gao et al. 2021, equations 1 and 5) and of SimCLR.

With ``s_ij = cos(z1_i, z2_j)``, ``h_ij = cos(z1_i, z3_j)``, ``g_iq = cos(z1_i, m_q)`` and temperature ``t``::

    L = mean_i -log( exp(s_ii / t) / ( sum_j exp(s_ij / t) + sum_j w_ij exp(h_ij / t) + sum_q exp(g_iq / t) ) )
    w_ij = exp(hard_negative_weight) where i == j, else 1

It runs from anchor to copy only: no symmetric term and no negatives from the anchor's own view. Without ``z3`` there is
no second sum (unsupervised by dropout, or pairs). The third sum is over the vectors ``m_q`` of ESimCSE's momentum queue
(Wu et al. 2022), if there is one.

SimCLR's form (Chen et al. 2020, equation 1; ConSERT, Mirror-BERT) uses every row of both views as an anchor and every
other row of both as a candidate. With ``z`` the ``2N`` rows and ``p(i)`` the other copy of row ``i``::

    L = mean_{i <= 2N} -log( exp(cos(z_i, z_p(i)) / t) / sum_{j != i} exp(cos(z_i, z_j) / t) )
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from cse.losses.shared import EVERY, Batch, Loss, cosines, in_float32, rows_of
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import NtXentSettings


def nt_xent(
    positive_AB: torch.Tensor,
    negative_AB: torch.Tensor | None = None,
    *,
    temperature: float,
    hard_negative_weight: float = 0.0,
    queue_AQ: torch.Tensor | None = None,
    first: int = 0,
) -> torch.Tensor:
    """Return the loss, a scalar; of a block of anchors, its part of the mean over all rows.

    Args:
        positive_AB: cosines between the anchors and every row's positive; a block of ``A`` rows, or all.
        negative_AB: cosines between the anchors and every row's hard negative, or None.
        hard_negative_weight: added to the logit of a row's own hard negative; the log of its weight.
        queue_AQ: cosines between the anchors and ``Q`` further negatives that belong to no row, or None.
        first: row of the first anchor.
    """
    anchors, rows = positive_AB.shape
    own_A = torch.arange(first, first + anchors, device=positive_AB.device)
    blocks = [block for block in (positive_AB, negative_AB, queue_AQ) if block is not None]
    logits_AN = (torch.cat(blocks, dim=1) if len(blocks) > 1 else positive_AB) / temperature
    if negative_AB is not None and hard_negative_weight != 0.0:
        weight_AN = torch.zeros_like(logits_AN)
        weight_AN.diagonal(rows + first).fill_(hard_negative_weight)
        logits_AN = logits_AN + weight_AN
    return F.cross_entropy(logits_AN, own_A) * (anchors / rows)


@in_float32
def nt_xent_two_views(
    first_BD: torch.Tensor, second_BD: torch.Tensor, *, temperature: float, anchors: slice = EVERY
) -> torch.Tensor:
    """Return SimCLR's loss, a scalar: ``2B`` anchors with ``2B - 1`` candidates each.

    Args:
        anchors: which of the ``2B`` rows, first copies first; the value is their part of the mean over all.
    """
    rows = len(first_BD)
    both_ND = torch.cat([first_BD, second_BD])
    place_A = torch.arange(2 * rows, device=both_ND.device)[anchors]
    logits_AN = cosines(rows_of(both_ND, anchors), both_ND) / temperature
    itself_AN = torch.zeros_like(logits_AN, dtype=torch.bool).scatter_(1, place_A[:, None], True)
    loss = F.cross_entropy(logits_AN.masked_fill(itself_AN, float("-inf")), (place_A + rows) % (2 * rows))
    return loss * (len(place_A) / (2 * rows))


class NtXent(Loss[NtXentSettings]):
    """NT-Xent over the views of a batch and, with ESimCSE's queue, over earlier batches."""

    def __init__(self, encoder: SentenceEncoder, settings: NtXentSettings) -> None:
        super().__init__(encoder, settings)
        self.queue = MomentumQueue(encoder, settings) if settings.queue > 0 else None

    @property
    def from_tensors(self) -> bool:  # type: ignore[override]
        return self.queue is None

    def forward(self, batch: Batch) -> torch.Tensor:
        anchor_BD, positive_BD, *rest = batch.views
        chosen = self.settings

        def of_both(own: slice) -> torch.Tensor:
            return nt_xent_two_views(anchor_BD, positive_BD, temperature=chosen.temperature, anchors=own)

        def of_anchors(own: slice) -> torch.Tensor:
            own_AD = rows_of(anchor_BD, own)
            queue_QD = None if self.queue is None else self.queue.negatives()
            return nt_xent(
                cosines(own_AD, positive_BD),
                cosines(own_AD, rest[0]) if rest else None,
                temperature=chosen.temperature,
                hard_negative_weight=chosen.hard_negative_weight,
                queue_AQ=None if queue_QD is None else cosines(own_AD, queue_QD),
                first=own.start,
            )

        rows = len(anchor_BD)
        of, part = (2 * rows, of_both) if chosen.two_views else (rows, of_anchors)
        return batch.group.over_blocks(of, part)

    def after_update(self, batch: Batch) -> None:
        if self.queue is not None:
            self.queue.take_in(batch)


class MomentumQueue(nn.Module):
    """ESimCSE's negatives: embeddings of earlier batches from a momentum encoder (Wu et al. 2022)."""

    momentum = 0.995  # share of its own weights that the momentum encoder keeps at each update

    def __init__(self, encoder: SentenceEncoder, settings: NtXentSettings) -> None:
        super().__init__()
        self.encoder = (encoder,)
        shared: dict[int, nn.Module] = {id(encoder.backbone): encoder.backbone} if encoder.frozen else {}
        if settings.queue_projector == "current" and encoder.mlp is not None:
            shared[id(encoder.mlp)] = encoder.mlp
        self.follower = (copy.deepcopy(encoder, shared),)
        for name, weight in self._followed().items():
            self.register_buffer(_flat(name), weight.detach().clone())
        self.register_buffer("vectors", torch.zeros(settings.queue, encoder.backbone.dimension))
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
        new = batch.embed_anchors(follower)
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
