"""NT-Xent over the views of a batch and, with ESimCSE's queue, over earlier batches."""

from __future__ import annotations

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.cosine import cosines, rows_of
from cse.objectives.nt_xent import nt_xent, nt_xent_two_views
from cse.training.batch import Batch
from cse.training.terms.momentum_queue import MomentumQueue
from cse.training.terms.term import Term


class NtXent(Term):
    """Contrastive cross-entropy (SimCSE equations 1 and 5; SimCLR's form with ``two_views``).

    Args:
        hard_negative_weight: added to the logit of a row's own hard negative.
        two_views: whether every row of both copies is an anchor.
        queue: further negatives from earlier batches, or None.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        weight: float,
        temperature: float,
        hard_negative_weight: float,
        two_views: bool,
        queue: MomentumQueue | None,
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.temperature = temperature
        self.hard_negative_weight = hard_negative_weight
        self.two_views = two_views
        self.queue = queue

    @property
    def from_tensors(self) -> bool:
        """True without a queue."""
        return self.queue is None

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean cross-entropy over the anchors."""
        anchor_BD, positive_BD, *rest = batch.views
        rows = len(anchor_BD) * (2 if self.two_views else 1)
        own = batch.group.block(rows)
        if self.two_views:
            part = nt_xent_two_views(anchor_BD, positive_BD, temperature=self.temperature, anchors=own)
            return batch.group.over_blocks(part, rows)
        own_AD = rows_of(anchor_BD, own)
        queue_QD = None if self.queue is None else self.queue.negatives()
        part = nt_xent(
            cosines(own_AD, positive_BD),
            cosines(own_AD, rest[0]) if rest else None,
            temperature=self.temperature,
            hard_negative_weight=self.hard_negative_weight,
            queue_AQ=None if queue_QD is None else cosines(own_AD, queue_QD),
            first=own.start,
        )
        return batch.group.over_blocks(part, rows)

    def after_update(self, batch: Batch) -> None:
        """Add the batch to the queue."""
        if self.queue is not None:
            self.queue.take_in(batch)
