"""IS-BERT's mutual information between tokens and sentences of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.mutual_information import local_global_information
from cse.training.batch import Batch
from cse.training.terms.term import Term


class MutualInformation(Term):
    """Maximise mutual information between token features and their sentence (IS-BERT, Zhang et al. 2020)."""

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the negated estimate of mutual information between tokens and sentences of the batch."""
        local, real = [], []
        for piece in batch.slices:
            missing = batch.longest - piece.ids_BL.shape[1]
            assert piece.tokens.local_BLD is not None  # noqa: S101 - kept if there are convolutions
            local.append(F.pad(piece.tokens.local_BLD, (0, 0, 0, missing)).float())
            real.append(F.pad(piece.mask_BL, (0, missing)))
        return local_global_information(batch.in_order(local), batch.projected_XD, batch.in_order(real))
